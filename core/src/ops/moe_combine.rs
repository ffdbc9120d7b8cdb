//! `moe_combine`: the weighted sum of the experts' outputs of each token.
//!
//! `y[t, :] = sum_j weights[t, j] * x[t, j, :] + g[t] * shared[t, :] + residual[t, :]`, with `g = 1`, or
//! `g = sigmoid(gate)` for a gated shared expert.
//!
//! # Shapes
//! `x`: `[n_tokens, k, d_model]` f32 contiguous; `weights`: `[n_tokens, k]` f32 contiguous; then, as the attributes
//! say and in this order, `shared`: `[n_tokens, d_model]`, `gate`: `[n_tokens, 1]`, `residual`:
//! `[n_tokens, d_model]`, each f32 with the last axis contiguous; `y`: `[n_tokens, d_model]`, contiguous.
//! # Numerics
//! In f32, in the order `j = 0 .. k`, shared expert, residual, so the bits of a row depend on nothing else.
//! # Source
//! Shazeer 2017, arXiv:1701.06538, equation 1; shared experts: Dai 2024, arXiv:2401.06066, equation 9.

use std::fmt;

use super::{expect_f32, expect_shape};
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// The part of an expert that every token uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedExpert {
    /// There is none.
    None,
    /// Added as it is.
    Plain,
    /// Times the logistic function of a gate per token.
    Gated,
}

impl SharedExpert {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::None, Self::Plain, Self::Gated];

    /// The name used in case ids.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Plain => "plain",
            Self::Gated => "gated",
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoeCombine {
    /// Whether there is a shared expert, and how it enters.
    pub shared: SharedExpert,
    /// Whether there is a residual.
    pub residual: bool,
}

/// The optional operands and their places among the inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Optional {
    pub(crate) shared: Option<usize>,
    pub(crate) gate: Option<usize>,
    pub(crate) residual: Option<usize>,
    n_inputs: usize,
}

impl MoeCombine {
    /// The one name.
    pub const NAME: &str = "moe_combine";

    /// Where the optional operands are.
    pub(crate) fn optional(&self) -> Optional {
        let mut n_inputs = 2;
        let mut place = |wanted: bool| {
            wanted.then(|| {
                n_inputs += 1;
                n_inputs - 1
            })
        };
        let shared = place(self.shared != SharedExpert::None);
        let gate = place(self.shared == SharedExpert::Gated);
        let residual = place(self.residual);
        Optional {
            shared,
            gate,
            residual,
            n_inputs,
        }
    }
}

impl fmt::Display for MoeCombine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[shared={}", Self::NAME, self.shared.name())?;
        if self.residual {
            f.write_str(", residual")?;
        }
        f.write_str("]")
    }
}

impl Op for MoeCombine {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let optional = self.optional();
        if inputs.len() != optional.n_inputs {
            return Err(OpError::Count {
                op: Self::NAME,
                expected: optional.n_inputs,
                found: inputs.len(),
            });
        }
        let (x, weights) = (inputs[0], inputs[1]);
        expect_f32(Self::NAME, "x", x)?;
        if x.rank() != 3 || !x.is_contiguous() {
            let expected = "contiguous [n_tokens, k, d_model]";
            return Err(bad_operand(Self::NAME, "x", expected, x));
        }
        let [n_tokens, k, d_model] = [x.shape[0], x.shape[1], x.shape[2]];
        expect_f32(Self::NAME, "weights", weights)?;
        expect_shape(Self::NAME, "weights", weights, &[n_tokens, k])?;
        if !weights.is_contiguous() {
            return Err(bad_operand(Self::NAME, "weights", "contiguous", weights));
        }
        for (name, at, width) in [
            ("shared", optional.shared, d_model),
            ("gate", optional.gate, 1),
            ("residual", optional.residual, d_model),
        ] {
            if let Some(at) = at {
                expect_f32(Self::NAME, name, inputs[at])?;
                expect_shape(Self::NAME, name, inputs[at], &[n_tokens, width])?;
            }
        }
        Ok(vec![TensorDesc::f32([n_tokens, d_model])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let optional = self.optional();
        let x = operands.inputs[0];
        let [n_tokens, k, d_model] = [x.shape[0], x.shape[1], x.shape[2]];
        if n_tokens == 0 || d_model == 0 {
            return Ok(Launches::default());
        }
        let (threads, per_thread) = match caps.class {
            // As elementwise ops: a block costs as much as a hundred loads there.
            DeviceClass::Software | DeviceClass::Reference => (32, 16),
            // A thread reads k + 2 elements: there is enough to do without a loop.
            DeviceClass::Integrated | DeviceClass::Discrete => {
                (128.min(caps.max_threads_per_block), 1)
            }
        };
        let chunk = threads as usize * per_thread;
        let n_chunks = d_model.div_ceil(chunk);
        let mut params = Params::new()
            .u32("n_blocks", n_tokens * n_chunks)
            .u32("k", k)
            .u32("n", d_model)
            .u32("chunk", chunk)
            .u32("n_chunks", n_chunks)
            .u32("w_off", operands.inputs[1].offset)
            .u32("x_off", x.offset);
        let mut bindings = vec![Binding::Input(0), Binding::Input(1)];
        for (stride, offset, at) in [
            ("shared_s", "shared_off", optional.shared),
            ("gate_s", "gate_off", optional.gate),
            ("residual_s", "residual_off", optional.residual),
        ] {
            let (s, off) = at.map_or((0, 0), |at| {
                let desc = operands.inputs[at];
                (desc.strides[0], desc.offset)
            });
            params = params.u32(stride, s).u32(offset, off);
            // An operand that is not there is not read; the experts' outputs stand in its place.
            bindings.push(Binding::Input(at.unwrap_or(0)));
        }
        bindings.push(Binding::Output(0));
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(threads)
                .flag("SHARED_EXPERT", optional.shared.is_some())
                .flag("GATED", optional.gate.is_some())
                .flag("RESIDUAL", optional.residual.is_some()),
            params,
            grid: fold_grid(n_tokens * n_chunks, caps)?,
            bindings,
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let elems: usize = operands.inputs.iter().map(|desc| desc.n_elems()).sum();
        let x = operands.inputs[0];
        Cost {
            bytes: 4 * (elems + x.shape[0] * x.shape[2]) as u64,
            flops: 2 * elems as u64,
        }
    }

    /// A sum of `k + 2` products, and the exponential of a gate, whose error magnitudes carry.
    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        let n = operands.inputs[0].shape[1] + 2;
        Tolerance::units(n as f64 + 10.0, n, 1e-11)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Elementwise
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::moe_combine::moe_combine(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

//! `ngram_hash`: rows of an n-gram embedding table by hashing the last tokens.
//!
//! ```text
//! c[0] = ids[t, 0];  c[s] = ids[t, s], or eos from the first s on at which ids[t, s] is missing (negative) or eos
//! m(n) = xor over j < n of c[j] * multipliers[j]                          (64 bits, wrapping)
//! y[t, (n - 2) * G + g] = m(n) mod size + offset,   (size, offset) = heads[(n - 2) * G + g],   n = 2 .. N
//! ```
//! The token's own id being eos does not hide its predecessors.
//!
//! # Shapes
//! `ids`: i32 `[T, N]`, the token first, then its predecessors in its own sequence, negative where there is none;
//! `multipliers`: i32 `[N, 2]`, low and high words of 64-bit numbers; `heads`: i32 `[(N - 1) * G, 2]`, sizes (positive)
//! and offsets; `y`: i32 `[T, (N - 1) * G]`, -1 for a head without a size.
//! # Numerics
//! Integers, exact.
//! # Source
//! The `qwen4exp` architecture of published models; multiplier 0 belongs to the token itself.

use std::fmt;

use super::{expect_type, take};
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Spec, Tolerance,
    fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramHash {
    /// The token that ends a text: it hides all tokens before it. Also stands for missing tokens.
    pub eos: i32,
    /// Rows looked up for each length of n-gram.
    pub n_heads_per_ngram: usize,
}

impl NgramHash {
    /// The one name.
    pub const NAME: &str = "ngram_hash";
}

impl fmt::Display for NgramHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}[eos={},heads={}]",
            Self::NAME,
            self.eos,
            self.n_heads_per_ngram
        )
    }
}

impl Op for NgramHash {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [ids, multipliers, heads] = take(Self::NAME, inputs)?;
        for (name, desc) in [("ids", ids), ("multipliers", multipliers), ("heads", heads)] {
            expect_type(Self::NAME, name, desc, DType::I32)?;
            if desc.rank() != 2 || !desc.is_contiguous() {
                return Err(bad_operand(Self::NAME, name, "a contiguous matrix", desc));
            }
        }
        let n = ids.last();
        if n < 2 {
            return Err(bad_operand(
                Self::NAME,
                "ids",
                "two tokens a row or more",
                ids,
            ));
        }
        if multipliers.shape != [n, 2] {
            let wanted = format!("of shape [{n}, 2]");
            return Err(bad_operand(Self::NAME, "multipliers", wanted, multipliers));
        }
        let n_heads = (n - 1) * self.n_heads_per_ngram;
        if heads.shape != [n_heads, 2] {
            let wanted = format!("of shape [{n_heads}, 2]");
            return Err(bad_operand(Self::NAME, "heads", wanted, heads));
        }
        Ok(vec![TensorDesc::i32([ids.shape[0], n_heads])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [ids, _, heads] = take(Self::NAME, operands.inputs)?;
        let n_rows = ids.shape[0] * heads.shape[0];
        let threads = 64.min(caps.max_threads_per_block);
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(threads),
            params: Params::new()
                .u32("n_rows", n_rows)
                .u32("n_heads", heads.shape[0])
                .u32("n_heads_per_ngram", self.n_heads_per_ngram)
                .u32("n_ids", ids.last())
                .i32("eos", self.eos),
            grid: fold_grid(n_rows.div_ceil(threads as usize), caps)?,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Output(0),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let bytes: usize = operands
            .inputs
            .iter()
            .chain(operands.outputs)
            .map(|desc| desc.n_bytes())
            .sum();
        Cost {
            bytes: bytes as u64,
            flops: 0,
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::EXACT
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::ngram_hash::ngram_hash(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

//! `rope`: rotates pairs of channels of each head by an angle that grows with the token's position.
//!
//! `(x0, x1) -> (x0 cos - x1 sin, x0 sin + x1 cos)`, with the angle of the pair at the token's position
//!
//! # Shapes
//! `x`: f32 `[n_tokens, n_heads, head_dim]`, the last axis contiguous; `pos`: i32 `[n_tokens]`, or `[4, n_tokens]` of
//! positions along (t, h, w, e) for the modes with sections, for which one position `p` means `(p, p, p, 0)`;
//! `table`: f32 `[FINE + n_coarse, n_rot / 2, 2]` of (cos, sin); the output: as `x`, contiguous.
//! # Numerics
//! Row `f < FINE` of the table belongs to position `f`, row `FINE + c` to position `FINE * c`; the angle of a position
//! is the sum of its fine and its coarse one. The host builds the rows in f64 with frequencies, scaling and magnitude
//! baked in (the magnitude into the coarse rows only), because f32 sines of large angles are wrong in the third digit.
//! # Edge cases
//! A negative position (padding) leaves the head as it is. Beyond the table the rotated channels become zeros.
//! Channels from `n_rot` on are copied.
//! # Source
//! Su et al. 2021, arXiv:2104.09864, equation 34; the pairing of `Neox` from the GPT-NeoX model.

use std::fmt;

use super::kv_write::expect_indices;
use super::{expect_f32, take};
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// Rows of the table with consecutive positions; later rows are this many positions apart.
pub const FINE: usize = 256;

pub(super) const THREADS: u32 = 64;

/// Which channels form a pair, and which position turns it.
///
/// Modes with sections have pairs as [`Neox`](Self::Neox); pair `j` belongs to the axis that [`axis`](Self::axis) says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeMode {
    /// Channels `2j` and `2j + 1`.
    Norm,
    /// Channels `j` and `j + n_rot / 2`.
    Neox,
    /// Sections of neighbouring pairs, one for each axis.
    Mrope([u32; 4]),
    /// Sections whose pairs alternate between the first three axes.
    Imrope([u32; 4]),
}

impl RopeMode {
    /// The lower-case word used in printed plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Norm => "norm",
            Self::Neox => "neox",
            Self::Mrope(_) => "mrope",
            Self::Imrope(_) => "imrope",
        }
    }

    /// The lengths of the sections.
    pub fn sections(self) -> Option<[u32; 4]> {
        match self {
            Self::Norm | Self::Neox => None,
            Self::Mrope(sections) | Self::Imrope(sections) => Some(sections),
        }
    }

    /// The axis of a pair: t, h, w, e as 0 to 3. Pairs beyond the sections begin again.
    pub fn axis(self, pair: usize) -> usize {
        let Some(sections) = self.sections() else {
            return 0;
        };
        let [t, h, w, e] = sections.map(|n| n as usize);
        let at = pair % (t + h + w + e).max(1);
        match self {
            Self::Imrope(_) => match at % 3 {
                1 if at < 3 * h => 1,
                2 if at < 3 * w => 2,
                0 if at < 3 * t => 0,
                _ => 3,
            },
            _ if at < t => 0,
            _ if at < t + h => 1,
            _ if at < t + h + w => 2,
            _ => 3,
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which channels form a pair.
    pub mode: RopeMode,
    /// Rotated channels, even and at most the head size.
    pub n_rot: usize,
}

impl Rope {
    /// The one name.
    pub const NAME: &str = "rope";
}

impl fmt::Display for Rope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}[{}, n_rot={}]",
            Self::NAME,
            self.mode.name(),
            self.n_rot
        )?;
        match self.mode.sections() {
            Some(sections) => write!(f, "{sections:?}"),
            None => Ok(()),
        }
    }
}

impl Op for Rope {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [x, pos, table] = take(Self::NAME, inputs)?;
        expect_f32(Self::NAME, "x", x)?;
        if x.rank() != 3 || self.n_rot > x.last() || !self.n_rot.is_multiple_of(2) {
            let expected = format!(
                "[n_tokens, n_heads, head_dim] with n_rot = {} even and at most head_dim",
                self.n_rot
            );
            return Err(bad_operand(Self::NAME, "x", expected, x));
        }
        match self.mode.sections() {
            Some(sections) => {
                if sections.iter().any(|&n| n > 1 << 16) || sections.iter().all(|&n| n == 0) {
                    return Err(OpError::Limit {
                        what: "pairs of a section",
                        needed: sections.iter().copied().max().unwrap_or(0).into(),
                        limit: 1 << 16,
                    });
                }
                let whole = pos.is_contiguous() && pos.dtype == DType::I32;
                if !(whole && pos.shape == [4, x.shape[0]]) {
                    expect_indices(Self::NAME, "pos", pos, x.shape[0])?;
                }
            }
            None => expect_indices(Self::NAME, "pos", pos, x.shape[0])?,
        }
        expect_f32(Self::NAME, "table", table)?;
        let fits = table.rank() == 3
            && table.shape[0] > FINE
            && table.shape[1..] == [self.n_rot / 2, 2]
            && table.is_contiguous()
            && table.offset == 0;
        if !fits {
            let expected = format!("contiguous [{FINE} + n_coarse, {}, 2]", self.n_rot / 2);
            return Err(bad_operand(Self::NAME, "table", expected, table));
        }
        Ok(vec![TensorDesc::f32(x.shape.clone())])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x, pos, table] = take(Self::NAME, operands.inputs)?;
        let turn = Turn::new(self, x, caps);
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: turn.spec(Spec::threads(THREADS)),
            params: turn.params(Params::new(), x, pos, table),
            grid: fold_grid(turn.n_blocks(), caps)?,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Output(0),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let x = operands.inputs[0];
        let n_tokens = x.shape[0];
        Cost {
            bytes: (8 * x.n_elems() + n_tokens * (4 + 8 * self.n_rot)) as u64,
            flops: (3 * self.n_rot * (n_tokens + x.rows())) as u64,
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        // Two products and a sum for the angle, the same again for the pair: four roundings in a row.
        Tolerance::units(6.0, 4, 1e-11)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Heads
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::rope::rope(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// How the threads of a rotation share the heads of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    mode: RopeMode,
    n_heads: usize,
    heads_per_thread: usize,
    pairs: usize,
    /// Threads of a token's part of the heads.
    items: usize,
    n_items: usize,
}

impl Turn {
    /// Of the heads of `x`.
    pub(super) fn new(op: &Rope, x: &TensorDesc, caps: &Caps) -> Self {
        let n_heads = x.shape[1];
        // The angle is the same for all heads. In software a thread rotates all of them, because loads are dear;
        // elsewhere one, because threads are what there is plenty of.
        let heads_per_thread = match caps.class {
            DeviceClass::Software => n_heads.max(1),
            _ => 1,
        };
        let pairs = op.n_rot / 2;
        let items = pairs + x.last() - op.n_rot;
        Self {
            mode: op.mode,
            n_heads,
            heads_per_thread,
            pairs,
            items,
            n_items: x.shape[0] * n_heads.div_ceil(heads_per_thread) * items,
        }
    }

    /// Blocks of threads.
    pub(super) fn n_blocks(&self) -> usize {
        self.n_items.div_ceil(THREADS as usize)
    }

    /// Adds what a rotation is specialised by.
    pub(super) fn spec(&self, spec: Spec) -> Spec {
        let sections = match self.mode {
            RopeMode::Norm | RopeMode::Neox => 0,
            RopeMode::Mrope(_) => 1,
            RopeMode::Imrope(_) => 2,
        };
        spec.with("SECTIONS", sections)
    }

    /// Adds the parameters of `lib/rotate`.
    pub(super) fn params(
        &self,
        params: Params,
        x: &TensorDesc,
        pos: &TensorDesc,
        table: &TensorDesc,
    ) -> Params {
        let (first, second) = match self.mode {
            RopeMode::Norm => (2, 1),
            RopeMode::Neox | RopeMode::Mrope(_) | RopeMode::Imrope(_) => (1, self.pairs),
        };
        let [t, h, w, e] = self.mode.sections().unwrap_or_default();
        // One position a token, or four.
        let pos_axis = if pos.rank() == 2 { x.shape[0] } else { 0 };
        params
            .u32("n_items", self.n_items)
            .u32("items", self.items)
            .u32("n_heads", self.n_heads)
            .u32("heads_per_thread", self.heads_per_thread)
            .u32("head_dim", x.last())
            .u32("pairs", self.pairs)
            .u32("first", first)
            .u32("second", second)
            .u32("n_coarse", table.shape[0] - FINE)
            .u32("x_s0", x.strides[0])
            .u32("x_s1", x.strides[1])
            .u32("x_off", x.offset)
            .u32("pos_off", pos.offset)
            .u32("pos_axis", pos_axis)
            .u32("section_t", t as usize)
            .u32("section_h", h as usize)
            .u32("section_w", w as usize)
            .u32("section_e", e as usize)
    }
}

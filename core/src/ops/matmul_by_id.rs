//! `matmul_by_id`: products of each token with the matrices of the experts chosen for it.
//!
//! `z[t, j, o] = scale[e] * sum_i w[e, o, i] * x[t, j or 0, i] + bias[e, o]` with `e = ids[t, j]`; then `y = z`, or with
//! a gated unit over the two halves of an expert's rows, `y[t, j, o] = act(z[t, j, o]) * z[t, j, d_out / 2 + o]`.
//! Batched, `e = j`: there are no ids, and every token meets every matrix once, as in products head by head.
//!
//! # Shapes
//! `x`: `[n_tokens, d_in]`, one row for all experts of a token, or `[n_tokens, k, d_in]`; f32, the last axis
//! contiguous; `w`: `[n_experts, d_out, d_in]` of any weight type; `ids`: `[n_tokens, k]` i32 contiguous; then, as the
//! attributes say and in this order, `scale`: `[n_experts]`, or `[2, n_experts]` with one row for each half of an
//! expert's rows, and `bias`: `[n_experts, d_out]`, both f32; `y`: `[n_tokens, k, d_out]`, or half of that, contiguous.
//! Batched, `x`: `[n_tokens, n_experts, d_in]` and `k = n_experts`.
//! # Numerics
//! As [`matmul`](super::matmul). An id that is no expert gives a row of zeros; an expert may occur several times in a
//! token. The bits of a row do not depend on the other rows, up to [`FEW_TOKENS`] tokens a step.
//! # Launches
//! Few pairs: a block for rows of one expert and one pair. Many: a first launch orders the pairs by expert, stably,
//! and cuts those of an expert into slots; a block is for rows of one expert and one slot, so weights are read and
//! decoded once a slot. The number of slots is only known to the device; the grid is for the most there can be,
//! `n_items / slot + n_experts + 1`, and the rest of the blocks leave at once. Batched, the slots are known: those of a
//! matrix are its tokens in order.
//! # Source
//! Shazeer 2017, arXiv:1701.06538; grouped products: Gale 2022, arXiv:2211.15841.

use std::fmt;

use super::glu::GluKind;
use super::matmul::{
    FEW_TOKENS, NO_TABLE, codebook_binding, group_stride, product_tolerance, quads_piece,
    tile_piece,
};
use super::{expect_f32, expect_shape, expect_type};
use crate::dtype::{DType, WEIGHT_TYPES};
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::{Layout, TensorDesc};

/// Pairs of token and expert up to which each is computed on its own, unless experts are few.
pub const DIRECT_ITEMS: usize = 64;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatmulById {
    /// The gated unit over the halves of an expert's rows, if any.
    pub glu: Option<GluKind>,
    /// Whether there is an operand `scale`.
    pub scaled: bool,
    /// Whether there is an operand `bias`.
    pub biased: bool,
    /// Whether matrix `j` multiplies row `j` of each token, without an operand `ids`.
    pub batched: bool,
}

impl MatmulById {
    /// The one name.
    pub const NAME: &str = "matmul_by_id";

    /// The product alone.
    pub const PLAIN: Self = Self {
        glu: None,
        scaled: false,
        biased: false,
        batched: false,
    };

    /// Operands before `scale` and `bias`.
    fn n_fixed(&self) -> usize {
        if self.batched { 2 } else { 3 }
    }

    /// The operands.
    pub(crate) fn operands<'a, T>(&self, inputs: &'a [T]) -> Result<Parts<'a, T>, OpError> {
        let expected = self.n_fixed() + usize::from(self.scaled) + usize::from(self.biased);
        if inputs.len() != expected {
            return Err(OpError::Count {
                op: Self::NAME,
                expected,
                found: inputs.len(),
            });
        }
        Ok(Parts {
            x: &inputs[0],
            w: &inputs[1],
            ids: (!self.batched).then(|| &inputs[2]),
            scale: self.scaled.then(|| &inputs[self.n_fixed()]),
            bias: self.biased.then(|| &inputs[expected - 1]),
        })
    }

    /// Whether a weight stack `[n_experts, d_out, d_in]` can be multiplied with a gated unit in one pass: both halves
    /// are whole groups of four rows, and no expert lies in two windows.
    pub fn can_fuse_glu(w: &TensorDesc) -> bool {
        let d_out = w.shape[1];
        d_out.is_multiple_of(8) && (w.window_rows == 0 || w.window_rows.is_multiple_of(d_out))
    }
}

/// The operands by name.
#[derive(Debug)]
pub(crate) struct Parts<'a, T> {
    pub(crate) x: &'a T,
    pub(crate) w: &'a T,
    pub(crate) ids: Option<&'a T>,
    pub(crate) scale: Option<&'a T>,
    pub(crate) bias: Option<&'a T>,
}

impl fmt::Display for MatmulById {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)?;
        let words: Vec<&str> = [
            self.glu.map(GluKind::name),
            self.scaled.then_some("scaled"),
            self.biased.then_some("biased"),
            self.batched.then_some("batched"),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !words.is_empty() {
            write!(f, "[{}]", words.join(", "))?;
        }
        Ok(())
    }
}

impl Op for MatmulById {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let parts = self.operands(inputs)?;
        let (x, w) = (*parts.x, *parts.w);
        expect_stack(w)?;
        let [n_experts, d_out, d_in] = [w.shape[0], w.shape[1], w.shape[2]];
        if let Some(ids) = parts.ids {
            expect_type(Self::NAME, "ids", ids, DType::I32)?;
            if ids.rank() != 2 || !ids.is_contiguous() {
                let expected = "contiguous [n_tokens, k]";
                return Err(bad_operand(Self::NAME, "ids", expected, ids));
            }
        } else if x.rank() != 3 || x.shape[1] != n_experts {
            let expected = format!("[n_tokens, {n_experts}, {d_in}]");
            return Err(bad_operand(Self::NAME, "x", expected, x));
        }
        let [n_tokens, k] = routed(&parts);
        expect_f32(Self::NAME, "x", x)?;
        let one_row = !self.batched && x.shape == [n_tokens, d_in];
        if !one_row && x.shape != [n_tokens, k, d_in] {
            let expected = format!("[{n_tokens}, {d_in}] or [{n_tokens}, {k}, {d_in}]");
            return Err(bad_operand(Self::NAME, "x", expected, x));
        }
        if let Some(scale) = parts.scale {
            expect_f32(Self::NAME, "scale", scale)?;
            let halves = scale.shape == [2, n_experts] && d_out.is_multiple_of(2);
            if !(scale.shape == [n_experts] || halves) || !is_plain(scale) {
                let expected = format!("[{n_experts}] or [2, {n_experts}], contiguous");
                return Err(bad_operand(Self::NAME, "scale", expected, scale));
            }
        }
        if let Some(bias) = parts.bias {
            expect_f32(Self::NAME, "bias", bias)?;
            expect_shape(Self::NAME, "bias", bias, &[n_experts, d_out])?;
            if !is_plain(bias) {
                return Err(bad_operand(Self::NAME, "bias", "contiguous", bias));
            }
        }
        if self.glu.is_some() && !d_out.is_multiple_of(2) {
            let expected = "of an even number of rows an expert";
            return Err(bad_operand(Self::NAME, "w", expected, w));
        }
        Ok(vec![TensorDesc::f32([n_tokens, k, self.width(d_out)])])
    }

    fn launches(&self, operand_descs: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let parts = self.operands(operand_descs.inputs)?;
        let (x, w) = (*parts.x, *parts.w);
        if w.layout != Layout::Tile8 {
            return Err(bad_operand(Self::NAME, "w", "in tiles of 8 rows", w));
        }
        if self.glu.is_some() && !Self::can_fuse_glu(w) {
            let expected = "of a multiple of 8 rows an expert and in windows of whole experts";
            return Err(bad_operand(Self::NAME, "w", expected, w));
        }
        let [n_experts, d_out] = [w.shape[0], w.shape[1]];
        let [n_tokens, k] = routed(&parts);
        let n_items = n_tokens * k;
        if n_items == 0 || d_out == 0 {
            return Ok(Launches::default());
        }
        let geometry = Geometry::new(self, [n_tokens, k], w, caps);
        let n_slots = geometry.n_slots(n_items, n_experts);
        let per_token = if x.rank() == 2 { k } else { 1 };
        // Rows that a block's quads cover: with a gated unit each quad has a partner in the other half.
        let width = self.width(d_out);
        // An expert whose rows are no whole quads may begin anywhere in one.
        let most_quads = if d_out.is_multiple_of(4) {
            width / 4
        } else {
            (width + 3).div_ceil(4)
        };
        let n_row_blocks = most_quads.div_ceil(geometry.quads);
        let spec = |threads: usize| {
            geometry
                .spec(threads)
                .flag("GLU", self.glu.is_some())
                .with("KIND", self.glu.map_or(0, |kind| kind as u32))
                .import("x", quads_piece(x))
                .import(
                    "v",
                    if geometry.shuffles {
                        "spread_shuffle"
                    } else {
                        "spread_load"
                    },
                )
                .import("w", tile_piece(w.dtype))
        };
        let params = Params::new()
            .rows(Self::NAME, "x", x)?
            .u32("x_per", per_token)
            .u32("n_items", n_items)
            .u32("n_experts", n_experts)
            .u32("n_slots", n_slots)
            .u32("n_parts", n_tokens.div_ceil(geometry.slot))
            .u32("order_at", 3 * n_slots)
            .u32("ids_off", parts.ids.map_or(0, |ids| ids.offset))
            .u32("d_out", d_out)
            .u32("d_y", width)
            .u32("n", w.last())
            .u32("w_group", group_stride(w))
            .u32("n_row_blocks", n_row_blocks)
            .u32("n_scales", parts.scale.map_or(0, |scale| scale.rank()))
            .u32("has_bias", usize::from(self.biased));
        let window_params =
            |row0: usize, n_rows: usize| params.clone().u32("row0", row0).u32("n_rows", n_rows);
        let mut launches = Launches::default();
        if geometry.order == Order::Listed {
            launches.scratch = vec![4 * (3 * n_slots + n_items)];
            launches.list.push(Launch {
                entry: "matmul_by_id_order",
                spec: spec(geometry.order_threads),
                params: window_params(0, 0),
                grid: fold_grid(n_experts + 1, caps)?,
                bindings: vec![Binding::Input(2), Binding::Scratch(0)],
            });
        }
        for (window, (row0, n_rows)) in w.windows().into_iter().enumerate() {
            launches.list.push(Launch {
                entry: if geometry.tiled {
                    "matmul_by_id_tile"
                } else {
                    Self::NAME
                },
                spec: spec(geometry.quads * geometry.ksplit),
                params: window_params(row0, n_rows),
                grid: fold_grid(n_row_blocks * n_slots, caps)?,
                bindings: vec![
                    Binding::Input(0),
                    Binding::InputWindow(1, window),
                    codebook_binding(w.dtype),
                    match geometry.order {
                        Order::None => Binding::Input(2),
                        Order::Listed => Binding::Scratch(0),
                        // Not read, but bound.
                        Order::Batched => Binding::Input(0),
                    },
                    if self.scaled {
                        Binding::Input(self.n_fixed())
                    } else {
                        NO_TABLE
                    },
                    if self.biased {
                        Binding::Input(operand_descs.inputs.len() - 1)
                    } else {
                        NO_TABLE
                    },
                    Binding::Output(0),
                ],
            });
        }
        Ok(launches)
    }

    /// As many experts as there are pairs, as long as there are so many.
    fn cost(&self, operands: Operands<'_>) -> Cost {
        let Ok(parts) = self.operands(operands.inputs) else {
            return Cost::default();
        };
        let (x, w) = (*parts.x, *parts.w);
        let [n_experts, d_out, d_in] = [w.shape[0], w.shape[1], w.shape[2]];
        let n_items = routed(&parts).iter().product::<usize>();
        let weights = (d_out * d_in) as f64 * w.dtype.bits_per_elem() / 8.0;
        Cost {
            bytes: (weights * n_items.min(n_experts) as f64) as u64
                + 4 * (x.n_elems() + n_items * (1 + self.width(d_out))) as u64,
            flops: 2 * (n_items * d_out * d_in) as u64,
        }
    }

    /// Magnitudes carry how a gated unit passes the errors of its halves on.
    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        let product = product_tolerance(operands.inputs[1]);
        match self.glu {
            // As `glu` itself near zero.
            Some(GluKind::Geglu | GluKind::GegluErf) => Tolerance {
                alpha: 1e-6,
                nmse: 1e-9,
                ..product
            },
            Some(GluKind::Swiglu | GluKind::GegluQuick | GluKind::Reglu | GluKind::Sigmoid)
            | None => product,
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Matmul
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::matmul_by_id::matmul_by_id(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl MatmulById {
    /// Elements of a result row.
    fn width(&self, d_out: usize) -> usize {
        if self.glu.is_some() { d_out / 2 } else { d_out }
    }
}

/// Tokens, and matrices that each of them meets.
fn routed(parts: &Parts<'_, &TensorDesc>) -> [usize; 2] {
    let of = parts.ids.unwrap_or(parts.x);
    [of.shape[0], of.shape[1]]
}

/// Contiguous from the start of its binding.
fn is_plain(desc: &TensorDesc) -> bool {
    desc.is_contiguous() && desc.offset == 0
}

/// Refuses what is not a whole stack of matrices of a weight type.
fn expect_stack(w: &TensorDesc) -> Result<(), OpError> {
    let name = MatmulById::NAME;
    if w.rank() != 3 {
        return Err(bad_operand(name, "w", "[n_experts, d_out, d_in]", w));
    }
    if !WEIGHT_TYPES.contains(&w.dtype) || w.dtype.row_bytes(w.last()).is_none() {
        return Err(bad_operand(name, "w", "whole blocks of a weight type", w));
    }
    if !is_plain(w) || w.layout == Layout::Pages {
        return Err(bad_operand(name, "w", "a whole weight", w));
    }
    Ok(())
}

/// How pairs of one expert find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Not at all: each is computed on its own.
    None,
    /// A first launch lists them by expert.
    Listed,
    /// They are every `k`-th, token by token.
    Batched,
}

/// Which threads compute what.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    /// How pairs of one expert find each other.
    order: Order,
    /// Pairs of a slot.
    slot: usize,
    /// Groups of four rows of a block.
    quads: usize,
    /// Threads that share a sum.
    ksplit: usize,
    /// Quads of columns between two turns of a thread.
    step: usize,
    /// Whether blocks share decoded weights.
    tiled: bool,
    /// Whether a block is one warp of eight threads, which can shuffle.
    shuffles: bool,
    /// Threads of a block that orders pairs.
    order_threads: usize,
}

impl Geometry {
    /// Rows and pairs of a block of the tiled kernel.
    const TILE: usize = 64;

    /// What suits the device.
    fn new(op: &MatmulById, [n_tokens, k]: [usize; 2], w: &TensorDesc, caps: &Caps) -> Self {
        let n_items = n_tokens * k;
        let (glu, batched) = (op.glu.is_some(), op.batched);
        let [n_experts, d_in] = [w.shape[0].max(1), w.shape[2]];
        let per_expert = n_items / n_experts;
        // Also few pairs share the reading of weights where there are only a few experts, or where it costs no order.
        let shares = if batched {
            n_tokens > 1
        } else {
            n_items > DIRECT_ITEMS || per_expert >= 4
        };
        let order = match (batched, shares) {
            (true, _) => Order::Batched,
            (false, true) => Order::Listed,
            (false, false) => Order::None,
        };
        let slot = |slot: usize| if shares { slot } else { 1 };
        match caps.class {
            // Eight threads are one vector of the CPU; few loads and no barriers. Each size of a slot is a compilation
            // of seconds; the larger one is for prompts. A gated unit has two sums for each pair.
            DeviceClass::Reference | DeviceClass::Software => {
                let shuffles = caps.warp == Some(8);
                Self {
                    order,
                    slot: slot(match (per_expert < 8, glu) {
                        (true, _) => 4,
                        (false, true) => 8,
                        (false, false) => 16,
                    }),
                    quads: 8,
                    ksplit: 1,
                    step: if shuffles { 8 } else { 4 },
                    tiled: false,
                    shuffles,
                    order_threads: 32,
                }
            }
            DeviceClass::Integrated | DeviceClass::Discrete => {
                let can_tile =
                    caps.max_threads_per_block >= 256 && caps.max_shared_bytes >= 16 * 1024;
                // A slot of 64 pays from a quarter full on: its weights are decoded once.
                let tiled = shares && n_tokens > FEW_TOKENS && per_expert >= 16 && can_tile;
                // Rows of an expert are short: enough turns for each of the threads that share a sum.
                let ksplit = if d_in >= 1024 { 32 } else { 16 };
                Self {
                    order,
                    slot: if tiled {
                        Self::TILE
                    } else {
                        slot(if per_expert < 4 { 4 } else { 8 })
                    },
                    // With a gated unit a thread owns a quad of each half, in the tiled kernel of one.
                    quads: match (tiled, glu) {
                        (true, true) => Self::TILE / 8,
                        (true, false) => Self::TILE / 4,
                        (false, _) => 128 / ksplit,
                    },
                    ksplit: match (tiled, glu) {
                        (true, true) => 32,
                        (true, false) => 16,
                        (false, _) => ksplit,
                    },
                    step: 4,
                    tiled,
                    shuffles: false,
                    order_threads: 256.min(caps.max_threads_per_block as usize),
                }
            }
        }
    }

    /// Slots that there can be at most; batched, those of a matrix side by side. Otherwise slots of expert `e` are numbered from `first / slot + e` on, `first` the number
    /// of pairs of lower experts, so no two experts share a number and none needs to know the others' slots.
    fn n_slots(&self, n_items: usize, n_experts: usize) -> usize {
        match self.order {
            Order::None => n_items,
            Order::Listed => n_items / self.slot + n_experts + 1,
            Order::Batched => n_experts * (n_items / n_experts.max(1)).div_ceil(self.slot),
        }
    }

    /// The specialisation without its pieces.
    fn spec(&self, threads: usize) -> Spec {
        let sums = match (self.tiled, self.ksplit) {
            (true, _) => 16 * Self::TILE,
            (false, 1) => 1,
            (false, _) => self.quads * self.ksplit,
        };
        Spec::threads(threads as u32)
            .with("SUMS", sums as u32)
            .with("SLOT", self.slot as u32)
            .with("QUADS", self.quads as u32)
            .with("KSPLIT", self.ksplit as u32)
            .with("STEP", self.step as u32)
            .flag("GROUPED", self.order == Order::Listed)
            .flag("BATCHED", self.order == Order::Batched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launches(
        op: &MatmulById,
        [n_tokens, k]: [usize; 2],
        w: &TensorDesc,
        class: DeviceClass,
    ) -> Result<Launches, OpError> {
        let caps = Caps {
            class,
            ..crate::device::reference_caps()
        };
        let x = TensorDesc::f32([n_tokens, w.last()]);
        let ids = TensorDesc::i32([n_tokens, k]);
        let inputs = [&x, w, &ids];
        let outputs = op.outputs(&inputs, &[])?;
        let operands = Operands {
            inputs: &inputs,
            inouts: &[],
            outputs: &outputs.iter().collect::<Vec<_>>(),
        };
        op.launches(operands, &caps)
    }

    fn stack(shape: [usize; 3]) -> TensorDesc {
        TensorDesc::weight(DType::Q8_0, shape, Layout::Tile8)
    }

    const SWIGLU: MatmulById = MatmulById {
        glu: Some(GluKind::Swiglu),
        ..MatmulById::PLAIN
    };

    #[test]
    fn few_pairs_are_direct_and_many_are_ordered_first() {
        let w = stack([128, 64, 64]);
        for (n_tokens, entries) in [
            (1, &["matmul_by_id"][..]),
            (8, &["matmul_by_id"]),
            (9, &["matmul_by_id_order", "matmul_by_id"]),
            (512, &["matmul_by_id_order", "matmul_by_id_tile"]),
        ] {
            let made = launches(&SWIGLU, [n_tokens, 8], &w, DeviceClass::Discrete).unwrap();
            let found: Vec<&str> = made.list.iter().map(|launch| launch.entry).collect();
            assert_eq!(found, entries, "{n_tokens} tokens");
        }
        // Few experts: even few pairs share the reading of weights, and up to 16 tokens the order of sums is the same.
        let few = launches(&SWIGLU, [16, 2], &stack([4, 64, 64]), DeviceClass::Discrete).unwrap();
        assert_eq!(few.list[1].entry, "matmul_by_id", "grouped, not tiled");
    }

    #[test]
    fn batched_products_need_no_order() {
        let w = stack([6, 64, 64]);
        let op = MatmulById {
            batched: true,
            ..MatmulById::PLAIN
        };
        for (class, n_tokens, entry, n_slots) in [
            (DeviceClass::Software, 1, "matmul_by_id", 6),
            (DeviceClass::Discrete, 1, "matmul_by_id", 6),
            (DeviceClass::Discrete, 9, "matmul_by_id", 12),
            (DeviceClass::Discrete, 130, "matmul_by_id_tile", 18),
        ] {
            let caps = Caps {
                class,
                ..crate::device::reference_caps()
            };
            let x = TensorDesc::f32([n_tokens, 6, 64]);
            let outputs = op.outputs(&[&x, &w], &[]).unwrap();
            let operands = Operands {
                inputs: &[&x, &w],
                inouts: &[],
                outputs: &[&outputs[0]],
            };
            let made = op.launches(operands, &caps).unwrap();
            assert_eq!(made.list.len(), 1, "{n_tokens} tokens");
            assert_eq!(made.list[0].entry, entry);
            let fields = made.list[0].params.fields();
            let slots = fields.iter().find(|(name, _)| name == "n_slots");
            assert_eq!(slots.map(|(_, value)| value.bits()), Some(n_slots));
        }
        let x = TensorDesc::f32([1, 5, 64]);
        let error = op.outputs(&[&x, &w], &[]).unwrap_err().to_string();
        assert!(error.contains("[n_tokens, 6, 64]"), "{error}");
    }

    #[test]
    fn slots_hold_every_pair_whatever_the_experts() {
        let w = stack([8, 64, 64]);
        for n_tokens in [17, 33, 100] {
            for class in [DeviceClass::Software, DeviceClass::Discrete] {
                let made = launches(&MatmulById::PLAIN, [n_tokens, 4], &w, class).unwrap();
                let launch = &made.list[1];
                let n_slots = (launch.params.fields().iter())
                    .find(|(name, _)| name == "n_slots")
                    .map(|(_, value)| value.bits() as usize)
                    .unwrap();
                let slot = (launch.spec.consts.iter())
                    .find_map(|(name, value)| match value {
                        crate::op::Const::U32(value) if *name == "SLOT" => Some(*value as usize),
                        _ => None,
                    })
                    .unwrap();
                // The worst split: one pair too many for each expert's last slot.
                assert!(n_slots >= n_tokens * 4 / slot + 8, "{n_tokens} tokens");
                assert_eq!(made.scratch, [4 * (3 * n_slots + n_tokens * 4)]);
                let blocks: u32 = launch.grid.iter().product();
                assert!(blocks as usize >= n_slots, "a block for each slot");
            }
        }
    }

    #[test]
    fn a_gated_unit_needs_both_halves_in_one_window() {
        let mut w = stack([6, 48, 64]);
        assert!(MatmulById::can_fuse_glu(&w), "one window");
        w.window_rows = 96;
        assert!(MatmulById::can_fuse_glu(&w), "windows of two experts");
        let made = launches(&SWIGLU, [1, 2], &w, DeviceClass::Software).unwrap();
        assert_eq!(made.list.len(), 3, "a launch a window");
        w.window_rows = 64;
        assert!(!MatmulById::can_fuse_glu(&w), "a window inside an expert");
        let error = launches(&SWIGLU, [1, 2], &w, DeviceClass::Software).unwrap_err();
        assert!(error.to_string().contains("whole experts"), "{error}");
        let plain = launches(&MatmulById::PLAIN, [1, 2], &w, DeviceClass::Software).unwrap();
        assert_eq!(plain.list.len(), 5, "without it any window will do");
        assert!(
            !MatmulById::can_fuse_glu(&stack([6, 36, 64])),
            "half a quad"
        );
    }
}

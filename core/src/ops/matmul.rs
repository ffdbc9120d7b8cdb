//! `matmul`: product of activations with a weight matrix, decoded exactly as stored.
//!
//! `y[t, o] = scale * sum_i w[o, i] * x[t, i] + bias[o]`
//!
//! # Shapes
//! `x`: `[.., d_in]` f32, the last axis contiguous; `w`: `[d_out, d_in]` of any weight type; `bias`, optional:
//! `[d_out]` f32; `y`: `[.., d_out]`, contiguous.
//! # Numerics
//! Products and sums in f32, over at least four independent partial sums, runs of 16 at a time. The bits of a row do not
//! depend on the other rows, up to [`FEW_TOKENS`] rows a step. `d_in = 0` gives the bias.
//! # Source
//! The linear layer. `scale` is the per-tensor factor that NVFP4 weights carry beside their blocks; 1 otherwise.

use std::fmt;

use super::{expect_f32, expect_vector};
use crate::dtype::{DType, WEIGHT_TYPES};
use crate::error::{OpError, bad_operand};
use crate::format;
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Roof, Sharding, Spec,
    Table, Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::{Layout, TensorDesc};

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Matmul {
    /// Multiplies the product, before the bias.
    pub scale: f32,
}

impl Matmul {
    /// The one name.
    pub const NAME: &str = "matmul";
}

/// Rows up to which a step uses the same kernel family, and so the same order of sums, on every device.
pub const FEW_TOKENS: usize = 16;

impl fmt::Display for Matmul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(f, Self::NAME, self.scale)
    }
}

impl Op for Matmul {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let (x, w, bias) = operands(inputs)?;
        expect_f32(Self::NAME, "x", x)?;
        expect_weight(Self::NAME, w, x.last())?;
        if let Some(bias) = bias {
            expect_vector(Self::NAME, "bias", bias, w.shape[0])?;
        }
        let mut shape = x.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = w.shape[0];
        }
        Ok(vec![TensorDesc::f32(shape)])
    }

    fn launches(&self, operand_descs: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let (x, w, bias) = operands(operand_descs.inputs)?;
        let x_params = Params::new().rows(Self::NAME, "x", x)?;
        let geometry = Geometry::new(x.rows(), caps);
        let (step, spread) = if geometry.shuffles {
            (8, "spread_shuffle")
        } else {
            (4, "spread_load")
        };
        let spec = geometry
            .spec()
            .with("STEP", step)
            .import("x", quads_piece(x))
            .import("v", spread);
        let product = Product {
            op: Self::NAME,
            entry: if geometry.tiled {
                "matmul_tile"
            } else {
                Self::NAME
            },
            scale: self.scale,
            n_tokens: x.rows(),
            weight: (w, 1),
            bias: bias.map(|bias| (bias, 2)),
            inputs: &[0],
            table: Some(codebook_binding(w.dtype)),
        };
        product.launches(&geometry, spec, &x_params, caps)
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        product_cost(operands.inputs[0].rows(), operands.inputs[1], 4.0)
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        product_tolerance(operands.inputs[1])
    }

    fn sharding(&self) -> Sharding {
        Sharding::Matmul
    }

    fn roof(&self) -> Roof {
        Roof::Matrix
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::matmul::matmul(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// `x`, `w` and the bias, if there is one.
fn operands<'a>(
    inputs: &[&'a TensorDesc],
) -> Result<(&'a TensorDesc, &'a TensorDesc, Option<&'a TensorDesc>), OpError> {
    match inputs {
        [x, w] => Ok((x, w, None)),
        [x, w, bias] => Ok((x, w, Some(bias))),
        _ => Err(OpError::Count {
            op: Matmul::NAME,
            expected: 2,
            found: inputs.len(),
        }),
    }
}

/// `NAME`, or `NAME[scale=..]` where the scale is not 1.
pub(crate) fn display(f: &mut fmt::Formatter<'_>, name: &str, scale: f32) -> fmt::Result {
    f.write_str(name)?;
    if scale.to_bits() != 1.0_f32.to_bits() {
        write!(f, "[scale={scale}]")?;
    }
    Ok(())
}

/// Refuses a weight that is not a contiguous matrix of a weight type with `d_in` columns.
pub(crate) fn expect_weight(op: &'static str, w: &TensorDesc, d_in: usize) -> Result<(), OpError> {
    if w.rank() != 2 || w.last() != d_in {
        return Err(bad_operand(op, "w", format!("[d_out, {d_in}]"), w));
    }
    if !WEIGHT_TYPES.contains(&w.dtype) || w.dtype.row_bytes(d_in).is_none() {
        return Err(bad_operand(op, "w", "whole blocks of a weight type", w));
    }
    if !w.is_contiguous() || w.offset != 0 || w.layout == Layout::Pages {
        return Err(bad_operand(op, "w", "a whole weight", w));
    }
    Ok(())
}

/// The library piece that reads four activations at a time.
pub(crate) fn quads_piece(x: &TensorDesc) -> &'static str {
    let outer = x.rank().saturating_sub(1);
    let aligned = x.last().is_multiple_of(4)
        && x.offset.is_multiple_of(4)
        && x.strides[..outer].iter().all(|s| s.is_multiple_of(4));
    if aligned {
        "quads_vec4"
    } else {
        "quads_scalar"
    }
}

/// The library piece that reads tiles of this type.
pub(crate) fn tile_piece(dtype: DType) -> String {
    format!("tile_{dtype}")
}

/// A table of one word, bound where a kernel has nothing to read: every launch of an entry has the same bindings.
pub(crate) const NO_TABLE: Binding = Binding::Table(Table {
    name: "none",
    words: &[0; 4],
});

/// The codebook of a type, or [`NO_TABLE`].
pub(crate) fn codebook_binding(dtype: DType) -> Binding {
    match format::codebook(dtype) {
        Some(words) => Binding::Table(Table {
            // One table serves both types.
            name: if dtype == DType::IQ1_M {
                DType::IQ1_S.name()
            } else {
                dtype.name()
            },
            words,
        }),
        None => NO_TABLE,
    }
}

/// Elements of a kernel's weight array (`SELF_Words` of its tile piece) in a group of 8 rows.
pub(crate) fn group_stride(w: &TensorDesc) -> usize {
    let element_bytes = if w.dtype == DType::MXFP4 { 8 } else { 16 };
    w.tiles(8).group_bytes() / element_bytes
}

/// Which threads compute what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// Tokens of a block.
    pub(crate) tokens: usize,
    /// Groups of four rows of a block.
    pub(crate) quads: usize,
    /// Threads that share a sum.
    pub(crate) ksplit: usize,
    /// Whether blocks share decoded weights.
    pub(crate) tiled: bool,
    /// Whether a block is one warp of eight threads, which can shuffle.
    pub(crate) shuffles: bool,
}

impl Geometry {
    /// Rows of `w` and tokens of a block of the tiled kernel.
    const TILE: usize = 64;

    /// What suits the device.
    pub(crate) fn new(n_tokens: usize, caps: &Caps) -> Self {
        let can_tile = caps.max_threads_per_block >= 256 && caps.max_shared_bytes >= 16 * 1024;
        match caps.class {
            // Eight threads are one vector of the CPU; few loads and no barriers.
            DeviceClass::Reference | DeviceClass::Software => Self {
                // Each number is a compilation of seconds; 16 is for prompts.
                tokens: match n_tokens {
                    0 | 1 => 1,
                    2..32 => 4,
                    _ => 16,
                },
                quads: 8,
                ksplit: 1,
                tiled: false,
                shuffles: caps.warp == Some(8),
            },
            DeviceClass::Integrated | DeviceClass::Discrete => {
                if n_tokens > FEW_TOKENS && can_tile {
                    return Self {
                        tokens: Self::TILE,
                        quads: Self::TILE / 4,
                        ksplit: 16,
                        tiled: true,
                        shuffles: false,
                    };
                }
                Self {
                    tokens: n_tokens.next_power_of_two().clamp(1, 8),
                    quads: 4,
                    ksplit: 32,
                    tiled: false,
                    shuffles: false,
                }
            }
        }
    }

    /// The specialisation without its pieces.
    pub(crate) fn spec(&self) -> Spec {
        let threads = self.quads * self.ksplit;
        let shared = match (self.tiled, self.ksplit) {
            (true, _) => 16 * 64,
            (false, 1) => 1,
            (false, _) => threads,
        };
        Spec::threads(threads as u32)
            .with("SHARED", shared as u32)
            .with("TOKENS", self.tokens as u32)
            .with("QUADS", self.quads as u32)
            .with("KSPLIT", self.ksplit as u32)
    }
}

/// What `matmul` and `matmul_q8` have in common: one launch a window.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    pub(crate) op: &'static str,
    pub(crate) entry: &'static str,
    pub(crate) scale: f32,
    pub(crate) n_tokens: usize,
    /// The weight and its place among the inputs.
    pub(crate) weight: (&'a TensorDesc, usize),
    /// The bias and its place among the inputs.
    pub(crate) bias: Option<(&'a TensorDesc, usize)>,
    /// Places of the activations among the inputs.
    pub(crate) inputs: &'a [usize],
    /// The codebook, for entries that take any type.
    pub(crate) table: Option<Binding>,
}

impl Product<'_> {
    /// The launches. `params` says how to find a row of the activations.
    pub(crate) fn launches(
        &self,
        geometry: &Geometry,
        spec: Spec,
        params: &Params,
        caps: &Caps,
    ) -> Result<Launches, OpError> {
        let (w, w_input) = self.weight;
        if w.layout != Layout::Tile8 {
            return Err(bad_operand(self.op, "w", "in tiles of 8 rows", w));
        }
        let spec = spec.import("w", tile_piece(w.dtype));
        let d_out = w.shape[0];
        let n = w.last();
        if self.n_tokens == 0 || d_out == 0 {
            return Ok(Launches::default());
        }
        let mut launches = Launches::default();
        for (window, (row0, n_rows)) in w.windows().into_iter().enumerate() {
            let n_row_blocks = n_rows.div_ceil(4 * geometry.quads);
            let params = params
                .clone()
                .u32("n_tokens", self.n_tokens)
                .u32("n_rows", n_rows)
                .u32("row0", row0)
                .u32("d_out", d_out)
                .u32("n", n)
                .u32("w_group", group_stride(w))
                .u32("n_row_blocks", n_row_blocks)
                .u32("has_bias", usize::from(self.bias.is_some()))
                .f32("scale", self.scale);
            let mut bindings: Vec<Binding> =
                self.inputs.iter().map(|&at| Binding::Input(at)).collect();
            bindings.push(Binding::InputWindow(w_input, window));
            bindings.extend(self.table);
            bindings.extend([
                self.bias.map_or(NO_TABLE, |(_, at)| Binding::Input(at)),
                Binding::Output(0),
            ]);
            launches.list.push(Launch {
                entry: self.entry,
                spec: spec.clone(),
                params,
                grid: fold_grid(n_row_blocks * self.n_tokens.div_ceil(geometry.tokens), caps)?,
                bindings,
            });
        }
        Ok(launches)
    }
}

/// Weights once, activations in and out once; `x_bytes` per element of `x`.
pub(crate) fn product_cost(n_tokens: usize, w: &TensorDesc, x_bytes: f64) -> Cost {
    let (t, d_out, d_in) = (n_tokens as u64, w.shape[0] as u64, w.last() as u64);
    let weight_bytes = w.n_elems() as f64 * w.dtype.bits_per_elem() / 8.0;
    Cost {
        bytes: weight_bytes as u64 + (t as f64 * d_in as f64 * x_bytes) as u64 + 4 * t * d_out,
        flops: 2 * t * d_out * d_in,
    }
}

/// A random walk of rounding errors over `d_in` terms with a factor of 2, and two roundings of a decoded weight.
pub(crate) fn product_tolerance(w: &TensorDesc) -> Tolerance {
    let n = w.last();
    let decode = if w.dtype.is_block() { 2.0 } else { 0.0 };
    Tolerance::units((4.0 + (n as f64).sqrt()) * 2.0 + decode, n, 1e-11)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(class: DeviceClass) -> Caps {
        Caps {
            class,
            ..crate::device::reference_caps()
        }
    }

    fn launch_list(x: &TensorDesc, w: &TensorDesc, caps: &Caps) -> Vec<Launch> {
        let op = Matmul { scale: 1.0 };
        let out = op.outputs(&[x, w], &[]).unwrap();
        let operands = Operands {
            inputs: &[x, w],
            inouts: &[],
            outputs: &[&out[0]],
        };
        op.launches(operands, caps).unwrap().list
    }

    fn blocks(launch: &Launch) -> u32 {
        launch.grid.iter().product()
    }

    #[test]
    fn a_window_is_a_launch() {
        let mut w = TensorDesc::weight(DType::Q8_0, [100, 64], Layout::Tile8);
        w.window_rows = 40;
        let list = launch_list(&TensorDesc::f32([3, 64]), &w, &caps(DeviceClass::Software));
        let rows: Vec<_> = list
            .iter()
            .map(|launch| {
                let get = |name: &str| {
                    let fields = launch.params.fields();
                    fields
                        .iter()
                        .find(|(n, _)| n == name)
                        .map(|(_, v)| v.bits())
                };
                (get("row0"), get("n_rows"), blocks(launch))
            })
            .collect();
        let window = |row0, n_rows, blocks| (Some(row0), Some(n_rows), blocks);
        assert_eq!(
            rows,
            [window(0, 40, 2), window(40, 40, 2), window(80, 20, 1)],
            "windows"
        );
    }

    #[test]
    fn many_tokens_share_decoded_weights_on_a_gpu_only() {
        let w = TensorDesc::weight(DType::Q4_K, [64, 256], Layout::Tile8);
        for (class, tokens, entry) in [
            (DeviceClass::Software, 64, "matmul"),
            (DeviceClass::Discrete, FEW_TOKENS, "matmul"),
            (DeviceClass::Discrete, FEW_TOKENS + 1, "matmul_tile"),
        ] {
            let list = launch_list(&TensorDesc::f32([tokens, 256]), &w, &caps(class));
            assert_eq!(list[0].entry, entry, "{tokens} tokens on {}", class.name());
        }
    }

    #[test]
    fn unaligned_activations_are_read_one_by_one() {
        let whole = TensorDesc::f32([4, 12]);
        assert_eq!(quads_piece(&whole), "quads_vec4", "aligned");
        let view = whole.narrow(1, 2, 8).unwrap();
        assert_eq!(quads_piece(&view), "quads_scalar", "offset of two");
        assert_eq!(
            quads_piece(&TensorDesc::f32([4, 7])),
            "quads_scalar",
            "odd length"
        );
    }

    #[test]
    fn weights_in_file_order_are_refused() {
        let x = TensorDesc::f32([1, 32]);
        let w = TensorDesc::weight(DType::Q8_0, [8, 32], Layout::Rows);
        let operands = Operands {
            inputs: &[&x, &w],
            inouts: &[],
            outputs: &[],
        };
        let error = Matmul { scale: 1.0 }
            .launches(operands, &caps(DeviceClass::Discrete))
            .unwrap_err();
        assert!(error.to_string().contains("tiles of 8 rows"), "{error}");
    }
}

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
//!
//! On tensor cores (`kernels/matmul.cu`) operands have 16 bits. Codes of block formats, f16 and bf16 weights are exact in
//! one, f32 weights in three bf16. An activation in two f16, scaled with its run of 32, is off by at most 2^-22 of itself
//! (4 units of f32 roundoff, of 10 that a sum of one term may have) or 2^-40 of the largest of its run; in three bf16 it
//! is exact. One f16 or bf16 would be off by 2^13 or 2^16 units, and two bf16 by 64: too much for the tolerance below.
//! Tensor cores cut off where they align addends, up to 2 units of the largest of an instruction's 17 for each that
//! is smaller; cut-offs add up, so a run starts from zero and is added to its sum in f32, rounded, and its small parts
//! come first: what is cut meets two additions of 16 columns, not the whole row.
//!
//! With [`Factors::Bf16`] a device may round activations and decoded weights to bf16, to nearest, before it multiplies
//! them; sums stay f32. Tensor cores then multiply once instead of two to six times. Only steps of more than
//! [`FEW_TOKENS`] rows on tensor cores do so: others are bound by the weights' bytes, which do not change.
//! # Source
//! The linear layer. `scale` is the per-tensor factor that NVFP4 weights carry beside their blocks; 1 otherwise.

use std::fmt;

use super::matrix::{Matrix, Operand, RUN};
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
    /// What is multiplied.
    pub factors: Factors,
}

/// What activations and weights are when they are multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Factors {
    /// f32, or numbers of 16 bits that add up to it.
    #[default]
    Exact,
    /// Rounded to bf16 where the device is faster that way.
    Bf16,
}

impl Factors {
    /// Largest relative error of a product of two factors: each has 8 bits, so half a unit of the last is 2^-8.
    fn error(self) -> f64 {
        const ROUNDED: f64 = 1.0 + 1.0 / 256.0;
        match self {
            Self::Exact => 0.0,
            Self::Bf16 => ROUNDED * ROUNDED - 1.0,
        }
    }
}

impl Matmul {
    /// The one name.
    pub const NAME: &str = "matmul";
}

/// Rows up to which a step uses the same kernel family, and so the same order of sums, on every device.
pub const FEW_TOKENS: usize = 16;

impl fmt::Display for Matmul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.factors {
            Factors::Exact => display(f, Self::NAME, self.scale),
            Factors::Bf16 => write!(f, "{}[bf16, scale={}]", Self::NAME, self.scale),
        }
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
        let product = Product {
            op: Self::NAME,
            scale: self.scale,
            n_tokens: x.rows(),
            weight: (w, 1),
            bias: bias.map(|bias| (bias, 2)),
            table: Some(codebook_binding(w.dtype)),
        };
        if caps.tensor_cores {
            return on_tensor_cores(&product, x, &x_params, self.factors, caps);
        }
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
        let blocks = Blocks {
            entry: if geometry.tiled {
                "matmul_tile"
            } else {
                Self::NAME
            },
            spec,
            rows: 4 * geometry.quads,
            tokens: geometry.tokens,
            splits: 1,
            sources: &[Binding::Input(0)],
            target: Binding::Output(0),
        };
        let list = product.launches(&blocks, &x_params, &Params::new(), caps)?;
        Ok(Launches {
            scratch: Vec::new(),
            list,
        })
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        product_cost(operands.inputs[0].rows(), operands.inputs[1], 4.0)
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        let exact = product_tolerance(operands.inputs[1]);
        let error = self.factors.error();
        Tolerance {
            // Products may all be off to one side.
            tau: exact.tau + error,
            // bf16 has the range of f32; what it cuts off below is less than the smallest normal number.
            alpha: 3.0 * exact.alpha,
            // Errors of products are independent, each at most this much of its product.
            nmse: exact.nmse + error * error,
        }
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
            .with("STAGED", shared as u32)
            .with("TOKENS", self.tokens as u32)
            .with("QUADS", self.quads as u32)
            .with("KSPLIT", self.ksplit as u32)
    }
}

/// What `matmul` and `matmul_q8` have in common.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    pub(crate) op: &'static str,
    pub(crate) scale: f32,
    pub(crate) n_tokens: usize,
    /// The weight and its place among the inputs.
    pub(crate) weight: (&'a TensorDesc, usize),
    /// The bias and its place among the inputs.
    pub(crate) bias: Option<(&'a TensorDesc, usize)>,
    /// The codebook, for entries that take any type.
    pub(crate) table: Option<Binding>,
}

/// The blocks that compute a product: one launch a window of the weight.
#[derive(Debug)]
pub(crate) struct Blocks<'a> {
    pub(crate) entry: &'static str,
    /// The specialisation without the weight's piece.
    pub(crate) spec: Spec,
    /// Rows of the weight of a block.
    pub(crate) rows: usize,
    /// Tokens of a block.
    pub(crate) tokens: usize,
    /// Blocks that divide the columns of a sum.
    pub(crate) splits: usize,
    /// Where the activations are.
    pub(crate) sources: &'a [Binding],
    /// Where the sums go.
    pub(crate) target: Binding,
}

impl Product<'_> {
    /// The parameter block of a launch for rows `row0 .. row0 + n_rows`: `params` says how to find a row of the
    /// activations, `rest` what only some entries have.
    pub(crate) fn params(
        &self,
        params: &Params,
        (row0, n_rows, n_row_blocks): (usize, usize, usize),
        rest: &Params,
    ) -> Params {
        let (w, _) = self.weight;
        params
            .clone()
            .u32("n_tokens", self.n_tokens)
            .u32("n_rows", n_rows)
            .u32("row0", row0)
            .u32("d_out", w.shape[0])
            .u32("n", w.last())
            .u32("w_group", group_stride(w))
            .u32("n_row_blocks", n_row_blocks)
            .u32("has_bias", usize::from(self.bias.is_some()))
            .f32("scale", self.scale)
            .and(rest)
    }

    /// What is bound for the bias.
    pub(crate) fn bias_binding(&self) -> Binding {
        self.bias.map_or(NO_TABLE, |(_, at)| Binding::Input(at))
    }

    /// The specialisation with the weight's piece.
    pub(crate) fn spec(&self, spec: &Spec) -> Spec {
        spec.clone().import("w", tile_piece(self.weight.0.dtype))
    }

    /// A launch of an entry that is not divided into rows of the weight: the entry and its threads, what it binds, the
    /// specialisation with the warps of a block, the parameters of the activations and the rest.
    pub(crate) fn whole(
        &self,
        (entry, n_threads): (&'static str, usize),
        bindings: Vec<Binding>,
        (spec, warps): (&Spec, usize),
        (params, rest): (&Params, &Params),
        caps: &Caps,
    ) -> Result<Launch, OpError> {
        Ok(Launch {
            entry,
            spec: self.spec(spec),
            params: self.params(params, (0, self.weight.0.shape[0], 1), rest),
            grid: fold_grid(n_threads.div_ceil(32 * warps), caps)?,
            bindings,
        })
    }

    /// The launches over the weight's windows.
    pub(crate) fn launches(
        &self,
        blocks: &Blocks<'_>,
        params: &Params,
        rest: &Params,
        caps: &Caps,
    ) -> Result<Vec<Launch>, OpError> {
        let (w, w_input) = self.weight;
        if w.layout != Layout::Tile8 {
            return Err(bad_operand(self.op, "w", "in tiles of 8 rows", w));
        }
        if self.n_tokens == 0 || w.shape[0] == 0 {
            return Ok(Vec::new());
        }
        let spec = self.spec(&blocks.spec);
        let mut list = Vec::new();
        for (window, (row0, n_rows)) in w.windows().into_iter().enumerate() {
            let n_row_blocks = n_rows.div_ceil(blocks.rows);
            let n_token_blocks = self.n_tokens.div_ceil(blocks.tokens);
            let mut bindings = blocks.sources.to_vec();
            bindings.push(Binding::InputWindow(w_input, window));
            bindings.extend(self.table);
            bindings.extend([self.bias_binding(), blocks.target]);
            list.push(Launch {
                entry: blocks.entry,
                spec: spec.clone(),
                params: self.params(params, (row0, n_rows, n_row_blocks), rest),
                grid: fold_grid(n_row_blocks * n_token_blocks * blocks.splits, caps)?,
                bindings,
            });
        }
        Ok(list)
    }
}

/// The launches for a device with tensor cores.
fn on_tensor_cores(
    product: &Product<'_>,
    x: &TensorDesc,
    x_params: &Params,
    factors: Factors,
    caps: &Caps,
) -> Result<Launches, OpError> {
    let (w, _) = product.weight;
    let (d_out, d_in) = (w.shape[0], w.last());
    let n_tokens = product.n_tokens;
    let once = factors == Factors::Bf16 && n_tokens > FEW_TOKENS && caps.bf16_tensor_cores;
    let import = |spec: Spec| spec.flag("ONCE", once).import("x", quads_piece(x));
    if n_tokens <= FEW_TOKENS {
        let matrix = Matrix::few(n_tokens, (d_out, d_in), 1, caps);
        let blocks = Blocks {
            entry: "matmul_few",
            spec: import(matrix.spec(true)),
            rows: matrix.rows(true),
            tokens: FEW_TOKENS,
            splits: 1,
            sources: &[Binding::Input(0)],
            target: Binding::Output(0),
        };
        let list = product.launches(&blocks, x_params, &matrix.params(0), caps)?;
        return Ok(Launches {
            scratch: Vec::new(),
            list,
        });
    }
    // As the kernel splits: into bf16 where weights have its range.
    let parts = match w.dtype {
        _ if once => 1,
        DType::F32 | DType::BF16 => 3,
        _ => 2,
    };
    let operand = Operand {
        step: if once { 2 } else { 1 },
        column_bytes: 2 * parts,
        figures: match once {
            true => 0,
            false if has_minimum(w.dtype) => 3,
            false => 1,
        },
        // One part of weights and sums of 128 tokens stay in registers; two such blocks want shared memory.
        tokens: if once && caps.max_shared_bytes >= 200 << 10 {
            128
        } else {
            64
        },
        one_part: once || dtype_has_one_part(w.dtype),
    };
    let matrix = Matrix::many(n_tokens, (w.dtype, d_out, d_in), operand, caps)?;
    let token_stride = n_tokens.next_multiple_of(operand.tokens);
    let rest = matrix.params(token_stride);
    let spec = import(matrix.spec(false));
    // Steps are whole.
    let n_runs = d_in.div_ceil(RUN).next_multiple_of(operand.step);
    let [parts_area, figures_area, sums_area] = [0, 1, 2].map(Binding::Scratch);
    let blocks = Blocks {
        entry: "matmul_many",
        spec: spec.clone(),
        rows: matrix.rows(false),
        tokens: matrix.tokens,
        splits: matrix.splits,
        sources: &[parts_area, figures_area],
        target: if matrix.splits > 1 {
            sums_area
        } else {
            Binding::Output(0)
        },
    };
    let mut list = product.launches(&blocks, x_params, &rest, caps)?;
    if list.is_empty() {
        return Ok(Launches::default());
    }
    let split = product.whole(
        ("matmul_split", 4 * n_tokens * n_runs),
        vec![Binding::Input(0), parts_area, figures_area],
        (&spec, matrix.warps),
        (x_params, &rest),
        caps,
    )?;
    list.insert(0, split);
    let mut scratch = vec![
        // Of bf16, whole blocks of tokens.
        (parts * n_runs * 64 * if once { token_stride } else { n_tokens }).max(16),
        // All three are written, whatever is read.
        (if once {
            0
        } else {
            3 * n_runs * token_stride * 4
        })
        .max(16),
    ];
    if matrix.splits > 1 {
        scratch.push(matrix.splits * n_tokens * d_out * 4);
        list.push(product.whole(
            ("matmul_merge", n_tokens * d_out),
            vec![sums_area, product.bias_binding(), Binding::Output(0)],
            (&spec, matrix.warps),
            (x_params, &rest),
            caps,
        )?);
    }
    Ok(Launches { scratch, list })
}

/// Whether a weight is one number of 16 bits: `SELF_PARTS` of its piece.
fn dtype_has_one_part(dtype: DType) -> bool {
    dtype != DType::F32
}

/// Whether the scales of a type have a minimum: `SELF_MIN` of its piece.
fn has_minimum(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::Q4_1 | DType::Q5_1 | DType::Q2_K | DType::Q4_K | DType::Q5_K
    )
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
        let op = Matmul {
            scale: 1.0,
            factors: Factors::Exact,
        };
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
    fn tensor_cores_have_entries_of_their_own() {
        let caps = Caps {
            tensor_cores: true,
            ..caps(DeviceClass::Discrete)
        };
        let w = TensorDesc::weight(DType::Q4_K, [64, 4096], Layout::Tile8);
        for (tokens, entries) in [
            (1, &["matmul_few"][..]),
            (FEW_TOKENS, &["matmul_few"]),
            (
                FEW_TOKENS + 1,
                &["matmul_split", "matmul_many", "matmul_merge"],
            ),
        ] {
            let list = launch_list(&TensorDesc::f32([tokens, 4096]), &w, &caps);
            let found: Vec<_> = list.iter().map(|launch| launch.entry).collect();
            assert_eq!(found, entries, "{tokens} tokens");
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
        let error = Matmul {
            scale: 1.0,
            factors: Factors::Exact,
        }
        .launches(operands, &caps(DeviceClass::Discrete))
        .unwrap_err();
        assert!(error.to_string().contains("tiles of 8 rows"), "{error}");
    }
}

//! `matmul_q8`: product of activations in blocks of signed bytes with a quantised weight matrix.
//!
//! `y[t, o] = scale * sum_i w[o, i] * x[t, i] + bias[o]`, `x = d * q` as [`quantize_q8`](super::quantize_q8) made it.
//!
//! # Shapes
//! `q`: `[.., d_in / 4]` u32 and `s`: `[.., d_in / 32, 2]` f32, both contiguous; `w`: `[d_out, d_in]` of one of
//! [`TYPES`]; `bias`, optional: `[d_out]` f32; `y`: `[.., d_out]`, contiguous.
//! # Numerics
//! Per block of 32 columns and weight scale `a` and minimum `b`: `d * (a * sum (code * q)) + b * (d * sum q)`, the
//! sums of integers exact, the rest in f32. The minimum meets the sum of the *quantised* activations, so the two parts
//! cancel as they do in exact arithmetic; the magnitude counts them apart. The bits of a row do not depend on the
//! other rows, up to `FEW_TOKENS` rows a step.
//! # Source
//! The integer products of GGUF engines.

use std::fmt;

use super::matmul::{
    Blocks, FEW_TOKENS, Geometry, Product, display, expect_weight, product_cost, product_tolerance,
};
use super::matrix::{Matrix, Operand};
use super::{expect_f32, expect_type, expect_vector};
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launches, Op, Operands, Params, Roof, Sharding, Tolerance,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulQ8 {
    /// Multiplies the product, before the bias.
    pub scale: f32,
}

/// The weight types whose codes are bytes.
pub const TYPES: &[DType] = &[
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

impl MatmulQ8 {
    /// The one name.
    pub const NAME: &str = "matmul_q8";
}

impl fmt::Display for MatmulQ8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(f, Self::NAME, self.scale)
    }
}

/// `q`, `s`, `w` and the bias, if there is one.
type Parts<'a> = (
    &'a TensorDesc,
    &'a TensorDesc,
    &'a TensorDesc,
    Option<&'a TensorDesc>,
);

fn operands<'a>(inputs: &[&'a TensorDesc]) -> Result<Parts<'a>, OpError> {
    match inputs {
        [q, s, w] => Ok((q, s, w, None)),
        [q, s, w, bias] => Ok((q, s, w, Some(bias))),
        _ => Err(OpError::Count {
            op: MatmulQ8::NAME,
            expected: 3,
            found: inputs.len(),
        }),
    }
}

impl Op for MatmulQ8 {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let (q, s, w, bias) = operands(inputs)?;
        let d_in = 4 * q.last();
        expect_type(Self::NAME, "q", q, DType::U32)?;
        expect_f32(Self::NAME, "s", s)?;
        expect_weight(Self::NAME, w, d_in)?;
        if !TYPES.contains(&w.dtype) {
            let expected = "of a type with byte codes (use matmul)";
            return Err(bad_operand(Self::NAME, "w", expected, w));
        }
        if q.rank() == 0 || !q.is_contiguous() || !q.offset.is_multiple_of(4) {
            return Err(bad_operand(Self::NAME, "q", "contiguous", q));
        }
        let outer = &q.shape[..q.rank() - 1];
        super::expect_shape(Self::NAME, "s", s, &[outer, &[d_in / 32, 2]].concat())?;
        if !s.is_contiguous() || !s.offset.is_multiple_of(2) {
            return Err(bad_operand(Self::NAME, "s", "contiguous", s));
        }
        if let Some(bias) = bias {
            expect_vector(Self::NAME, "bias", bias, w.shape[0])?;
        }
        Ok(vec![TensorDesc::f32([outer, &[w.shape[0]]].concat())])
    }

    fn launches(&self, operand_descs: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let (q, s, w, bias) = operands(operand_descs.inputs)?;
        let product = Product {
            op: Self::NAME,
            scale: self.scale,
            n_tokens: q.rows(),
            weight: (w, 2),
            bias: bias.map(|bias| (bias, 3)),
            table: None,
        };
        let params = Params::new()
            .u32("q_off", q.offset / 4)
            .u32("s_off", s.offset / 2);
        if caps.tensor_cores {
            return on_tensor_cores(&product, &params, caps);
        }
        let geometry = Geometry::new(q.rows(), caps);
        // Software drivers unpack bytes for every integer product; as floats they are unpacked once.
        let dot4 = caps.class != DeviceClass::Software;
        let blocks = Blocks {
            entry: if geometry.tiled {
                "matmul_q8_tile"
            } else {
                Self::NAME
            },
            spec: geometry.spec().flag("DOT4", dot4),
            rows: 4 * geometry.quads,
            tokens: geometry.tokens,
            splits: 1,
            sources: &[Binding::Input(0), Binding::Input(1)],
            target: Binding::Output(0),
        };
        let list = product.launches(&blocks, &params, &Params::new(), caps)?;
        Ok(Launches {
            scratch: Vec::new(),
            list,
        })
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let q = operands.inputs[0];
        product_cost(q.rows(), operands.inputs[2], 1.25)
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        product_tolerance(operands.inputs[2])
    }

    fn sharding(&self) -> Sharding {
        Sharding::Matmul
    }

    fn roof(&self) -> Roof {
        Roof::ByteMatrix
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::matmul_q8::matmul_q8(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Tokens up to which products of four bytes are as fast as the tensor cores, which take eight tokens or none.
const DOTS: usize = 3;

/// The launches for a device with tensor cores.
fn on_tensor_cores(
    product: &Product<'_>,
    params: &Params,
    caps: &Caps,
) -> Result<Launches, OpError> {
    let (w, _) = product.weight;
    let (d_out, d_in) = (w.shape[0], w.last());
    let n_tokens = product.n_tokens;
    let few = n_tokens <= FEW_TOKENS;
    let sums = Binding::Scratch(0);
    let matrix = if few {
        let mut matrix = Matrix::few(n_tokens, (d_out, d_in), 4, caps);
        if n_tokens <= DOTS {
            matrix.tokens = n_tokens.max(1);
        }
        matrix
    } else {
        let operand = Operand {
            step: 4,
            column_bytes: 1,
            figures: 2,
            tokens: 64,
            one_part: true,
        };
        Matrix::many(n_tokens, (w.dtype, d_out, d_in), operand, caps)?
    };
    let rest = matrix.params(0);
    let blocks = Blocks {
        entry: match (few, n_tokens <= DOTS) {
            (true, true) => "matmul_q8_dots",
            (true, false) => "matmul_q8_few",
            (false, _) => "matmul_q8_many",
        },
        spec: matrix.spec(few),
        rows: matrix.rows(few),
        tokens: if few { FEW_TOKENS } else { matrix.tokens },
        splits: matrix.splits,
        sources: &[Binding::Input(0), Binding::Input(1)],
        target: if matrix.splits > 1 {
            sums
        } else {
            Binding::Output(0)
        },
    };
    let mut list = product.launches(&blocks, params, &rest, caps)?;
    let mut scratch = Vec::new();
    if matrix.splits > 1 && !list.is_empty() {
        scratch.push(matrix.splits * n_tokens * d_out * 4);
        list.push(product.whole(
            ("matmul_q8_merge", n_tokens * d_out),
            vec![sums, product.bias_binding(), Binding::Output(0)],
            (&blocks.spec, matrix.warps),
            (params, &rest),
            caps,
        )?);
    }
    Ok(Launches { scratch, list })
}

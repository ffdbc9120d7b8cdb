//! `matmul` in f64.

use rayon::prelude::*;

use super::{RefArgs, RefOutput, RefTensor};
use crate::ops::matmul::Matmul;

/// `y = scale * x w^T + bias`, a row of `w` at a time.
pub fn matmul(op: &Matmul, args: &mut RefArgs<'_>) {
    let x = args.inputs[0].to_f32();
    let x: Vec<f64> = x.into_iter().map(f64::from).collect();
    let w = args.inputs[1];
    let bias = args.inputs.get(2).map(|bias| bias.row_vec(0));
    product(op.scale, &x, w, bias.as_deref(), None, &mut args.outputs[0]);
}

/// Magnitudes of the elements of row `o` of a weight, given the decoded row.
pub(super) type RowMagnitudes<'a> = &'a (dyn Fn(usize, &mut [f64]) + Sync);

/// `y = scale * x w^T + bias` for rows of `x` in f64.
///
/// `magnitudes` replaces elements of a decoded row by what they count in magnitudes, where that is not the absolute
/// value.
pub(super) fn product(
    scale: f32,
    x: &[f64],
    w: RefTensor<'_>,
    bias: Option<&[f32]>,
    magnitudes: Option<RowMagnitudes<'_>>,
    y: &mut RefOutput<'_>,
) {
    let scale = f64::from(scale);
    let d_in = w.desc.last();
    let d_out = w.desc.rows();
    let n_tokens = y.desc.rows();
    let wants_magnitudes = y.wants_magnitudes();
    let rows = |t: usize| &x[t * d_in..(t + 1) * d_in];

    // Sum, magnitude, norm for every token.
    let columns: Vec<Vec<[f64; 3]>> = (0..d_out)
        .into_par_iter()
        .map_init(
            || (vec![0.0_f32; d_in], vec![0.0_f64; d_in]),
            |(decoded, row), o| {
                w.row(o, decoded);
                for (wide, &narrow) in row.iter_mut().zip(decoded.iter()) {
                    *wide = f64::from(narrow);
                }
                let b = bias.map_or(0.0, |bias| f64::from(bias[o]));
                let mut column: Vec<[f64; 3]> = (0..n_tokens)
                    .map(|t| [dot(row, rows(t)) * scale + b, 0.0, 0.0])
                    .collect();
                if wants_magnitudes {
                    for w in row.iter_mut() {
                        *w = w.abs();
                    }
                    if let Some(magnitudes) = magnitudes {
                        magnitudes(o, row);
                    }
                    for (t, [_, magnitude, norm]) in column.iter_mut().enumerate() {
                        let terms = row.iter().zip(rows(t)).map(|(w, x)| w * x.abs());
                        let (sum, squares) =
                            terms.fold((0.0, 0.0), |(s, q), term| (s + term, q + term * term));
                        *magnitude = sum * scale.abs() + b.abs();
                        *norm = (squares * scale * scale + b * b).sqrt();
                    }
                }
                column
            },
        )
        .collect();
    for (o, column) in columns.iter().enumerate() {
        for (t, [value, magnitude, norm]) in column.iter().enumerate() {
            y.put_sum(t * d_out + o, *value, *magnitude, *norm);
        }
    }
}

/// The sum of products, over eight partial sums.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    for (a, b) in a8.iter().zip(b8) {
        for k in 0..8 {
            sums[k] += a[k] * b[k];
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::matmul::Factors;
    use crate::tensor::TensorDesc;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn two_tokens_two_outputs() {
        let descs = [
            TensorDesc::f32([2, 3]),
            TensorDesc::f32([2, 3]),
            TensorDesc::f32([2]),
        ];
        let data = [
            bytes(&[1.0, 2.0, 3.0, 0.0, -1.0, 4.0]),
            bytes(&[1.0, 0.0, -1.0, 2.0, 0.5, 1.0]),
            bytes(&[10.0, -1.0]),
        ];
        let op = Matmul {
            scale: 2.0,
            factors: Factors::Exact,
        };
        let refs: Vec<&TensorDesc> = descs.iter().collect();
        let out = op.outputs(&refs, &[]).unwrap();
        assert_eq!(out[0].shape, [2, 2], "tokens by outputs");
        let mut args = RefArgs {
            inputs: descs
                .iter()
                .zip(&data)
                .map(|(desc, bytes)| RefTensor { desc, bytes })
                .collect(),
            inouts: Vec::new(),
            outputs: vec![RefOutput::new(&out[0])],
        };
        op.reference(&mut args);
        let y = &args.outputs[0];
        // 2 * (1 - 3) + 10, 2 * (2 + 1 + 3) - 1, 2 * (0 - 4) + 10, 2 * (-0.5 + 4) - 1.
        assert_eq!(y.values, [6.0, 11.0, 2.0, 6.0], "products");
        assert_eq!(y.magnitudes, [18.0, 13.0, 18.0, 10.0], "absolute terms");
        assert_eq!(
            y.norms[..1],
            [(4.0_f64 + 36.0 + 100.0).sqrt()],
            "root sum of squares"
        );

        let inputs = std::mem::take(&mut args.inputs);
        let mut args = RefArgs {
            inputs,
            inouts: Vec::new(),
            outputs: vec![RefOutput::values_only(&out[0])],
        };
        op.reference(&mut args);
        assert_eq!(
            args.outputs[0].values,
            [6.0, 11.0, 2.0, 6.0],
            "without magnitudes"
        );
    }

    #[test]
    fn sums_of_every_length_are_complete() {
        for n in 0..20 {
            let a: Vec<f64> = (0..n).map(f64::from).collect();
            let expected: f64 = a.iter().sum();
            let sum = dot(&a, &vec![1.0; a.len()]);
            assert!((sum - expected).abs() < 1e-12, "{n} terms: {sum}");
        }
    }
}

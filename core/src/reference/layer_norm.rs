//! `layer_norm` in f64.

use super::RefArgs;
use crate::ops::layer_norm::LayerNorm;

/// `y = (x - mean) / sqrt(var + eps) * w + b`, row by row.
///
/// The magnitude of an element counts the mean's terms beside its own: where they nearly cancel, what is left is as
/// wrong as they are.
pub fn layer_norm(op: &LayerNorm, args: &mut RefArgs<'_>) {
    let x = args.inputs[0];
    let (w, b) = (args.inputs[1].row_vec(0), args.inputs[2].row_vec(0));
    let y = &mut args.outputs[0];
    let n = x.desc.last();
    for t in 0..x.desc.rows() {
        let row: Vec<f64> = x.row_vec(t).into_iter().map(f64::from).collect();
        let mean = row.iter().sum::<f64>() / n as f64;
        let absolute = row.iter().map(|v| v.abs()).sum::<f64>() / n as f64;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        let deviation = (variance + f64::from(op.eps)).sqrt();
        let scale = if deviation > 0.0 {
            1.0 / deviation
        } else {
            0.0
        };
        for (i, (v, (&w, &b))) in row.iter().zip(w.iter().zip(&b)).enumerate() {
            let (w, b) = (f64::from(w), f64::from(b));
            let value = (v - mean) * scale * w + b;
            // An error of the mean moves each difference, and the deviation by its share of the squares.
            let magnitude = (v.abs() + absolute) * scale * w.abs()
                + (v - mean).abs() * scale * w.abs() * (1.0 + absolute * scale)
                + b.abs();
            y.put_sum(t * n + i, value, magnitude, value.hypot(b));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LayerNorm;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn shifts_and_scales_rows_of_a_view() {
        let x = TensorDesc::f32([2, 3]).narrow(1, 0, 2).unwrap();
        let out = run(
            &LayerNorm { eps: 0.0 },
            &[
                (x, &f32s(&[101.0, 105.0, 9.0, -3.0, -3.0, 9.0])),
                (TensorDesc::f32([2]), &f32s(&[1.0, -2.0])),
                (TensorDesc::f32([2]), &f32s(&[0.5, 7.0])),
            ],
        );
        // Mean 103, deviation 2; then a constant row.
        close(&out[0].values, &[-0.5, 5.0, 0.5, 7.0], 1e-12);
        let out = run(
            &LayerNorm { eps: 12.0 },
            &[
                (TensorDesc::f32([1, 2]), &f32s(&[101.0, 105.0])),
                (TensorDesc::f32([2]), &f32s(&[1.0, 1.0])),
                (TensorDesc::f32([2]), &f32s(&[0.0, 0.0])),
            ],
        );
        close(&out[0].values, &[-0.5, 0.5], 1e-12);
    }
}

//! `add_rms_norm` in f64.

use super::RefArgs;
use crate::ops::add_rms_norm::AddRmsNorm;

/// `sum = a + b`, rounded to f32 as it is stored, and `y = sum / sqrt(mean(sum^2) + eps) * w`, row by row.
pub fn add_rms_norm(op: &AddRmsNorm, args: &mut RefArgs<'_>) {
    let (a, b) = (args.inputs[0], args.inputs[1]);
    let w = args.inputs[2].row_vec(0);
    let n = a.desc.last();
    for t in 0..a.desc.rows() {
        let (a, b) = (a.row_vec(t), b.row_vec(t));
        let mut row = Vec::with_capacity(n);
        for (i, (&a, &b)) in a.iter().zip(&b).enumerate() {
            let (a, b) = (f64::from(a), f64::from(b));
            row.push(f64::from((a + b) as f32));
            args.outputs[0].put_sum(t * n + i, a + b, a.abs() + b.abs(), a.hypot(b));
        }
        let sum: f64 = row.iter().map(|v| v * v).sum();
        let rms = (sum / n as f64 + f64::from(op.eps)).sqrt();
        for (i, (&v, &w)) in row.iter().zip(&w).enumerate() {
            let value = if rms == 0.0 {
                0.0
            } else {
                v / rms * f64::from(w)
            };
            args.outputs[1].put(t * n + i, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AddRmsNorm;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn writes_the_sum_and_its_norm() {
        let desc = TensorDesc::f32([2, 2]);
        let out = run(
            &AddRmsNorm { eps: 0.0 },
            &[
                (desc.clone(), &f32s(&[1.0, 5.0, 1.0, -2.0])),
                (desc, &f32s(&[2.0, -1.0, -1.0, 2.0])),
                (TensorDesc::f32([2]), &f32s(&[1.0, 0.5])),
            ],
        );
        assert_eq!(out[0].values, [3.0, 4.0, 0.0, 0.0], "sum");
        assert_eq!(out[0].magnitudes, [3.0, 6.0, 2.0, 4.0], "magnitudes");
        // Mean square 12.5; a row of zeros stays zero even with eps = 0.
        let rms = 12.5_f64.sqrt();
        close(&out[1].values, &[3.0 / rms, 2.0 / rms, 0.0, 0.0], 1e-15);
    }
}

//! `rms_norm` in f64.

use super::RefArgs;
use crate::ops::rms_norm::RmsNorm;

/// `y = x / sqrt(mean(x^2) + eps) * w`, row by row; the rows of `w` take turns.
pub fn rms_norm(op: &RmsNorm, args: &mut RefArgs<'_>) {
    let [x, w] = [args.inputs[0], args.inputs[1]];
    let y = &mut args.outputs[0];
    let n = x.desc.last();
    for t in 0..x.desc.rows() {
        let row = x.row_vec(t);
        let w = w.row_vec(t % w.desc.rows());
        let sum: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let rms = (sum / n as f64 + f64::from(op.eps)).sqrt();
        for (i, (&v, &w)) in row.iter().zip(&w).enumerate() {
            let value = if rms == 0.0 {
                0.0
            } else {
                f64::from(v) / rms * f64::from(w)
            };
            y.put(t * n + i, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RmsNorm;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn normalises_rows_of_a_view() {
        let x = TensorDesc::f32([3, 3]).narrow(1, 0, 2).unwrap();
        let out = run(
            &RmsNorm { eps: 0.5 },
            &[
                (
                    x,
                    &f32s(&[3.0, 4.0, 99.0, 0.0, 0.0, 99.0, -1e-3, 1e-3, 99.0]),
                ),
                (TensorDesc::f32([2]), &f32s(&[1.0, -2.0])),
            ],
        );
        let (large, small) = (13.0_f64.sqrt(), 0.500_001_f64.sqrt());
        close(
            &out[0].values,
            &[
                3.0 / large,
                -8.0 / large,
                0.0,
                0.0,
                -1e-3 / small,
                -2e-3 / small,
            ],
            1e-9,
        );
    }

    #[test]
    fn rows_of_weights_take_turns() {
        let x = f32s(&[1.0, -1.0, 2.0, 2.0, 3.0, -3.0, 4.0, 4.0]);
        let w = f32s(&[1.0, 2.0, 3.0, 4.0]);
        let out = run(
            &RmsNorm { eps: 0.0 },
            &[
                (TensorDesc::f32([2, 2, 2]), &x),
                (TensorDesc::f32([2, 2]), &w),
            ],
        );
        let expected = [1.0, -2.0, 3.0, 4.0, 1.0, -2.0, 3.0, 4.0];
        close(&out[0].values, &expected, 1e-12);
    }

    #[test]
    fn a_row_of_zeros_without_eps_stays_zero() {
        let out = run(
            &RmsNorm { eps: 0.0 },
            &[
                (TensorDesc::f32([1, 2]), &f32s(&[0.0, -0.0])),
                (TensorDesc::f32([2]), &f32s(&[1.0, 1.0])),
            ],
        );
        assert_eq!(out[0].values, [0.0, 0.0], "no division by zero");
    }
}

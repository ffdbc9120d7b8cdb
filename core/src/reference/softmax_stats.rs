//! `softmax_stats` in f64.

use super::RefArgs;

/// `(max, sum exp(x - max))` of each row; `(-inf, 0)` where nothing is above -inf.
pub fn softmax_stats(args: &mut RefArgs<'_>) {
    let x = args.inputs[0];
    for r in 0..x.desc.rows() {
        let row = x.row_vec(r);
        let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let (mut sum, mut magnitude, mut squares) = (0.0, 0.0, 0.0);
        if max > f64::NEG_INFINITY {
            for &value in &row {
                let range = max - f64::from(value);
                let term = (-range).exp();
                sum += term;
                // The exponential of a device has a relative error that grows with its argument.
                magnitude += term * (1.0 + range.min(104.0) / 2.0);
                squares += term * term;
            }
        }
        args.outputs[0].put_sum(2 * r, max, 0.0, max.abs());
        args.outputs[0].put_sum(2 * r + 1, sum, magnitude, f64::sqrt(squares));
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::softmax_stats::SoftmaxStats;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn maximum_and_sum() {
        const INF: f32 = f32::INFINITY;
        let x = f32s(&[
            1.0, 3.0, 3.0, -INF, // two ones and e^-2
            -INF, -INF, -INF, -INF, // nothing
            -1e30, 1e30, 0.0, 0.0, // far apart
        ]);
        let out = run(&SoftmaxStats, &[(TensorDesc::f32([3, 4]), &x)]);
        assert_eq!(out[0].desc, TensorDesc::f32([3, 2]), "shape");
        let values = &out[0].values;
        close(
            &[values[0], values[1], values[3], values[4], values[5]],
            &[3.0, 2.135_335_283_236_613, 0.0, f64::from(1e30_f32), 1.0],
            1e-15,
        );
        assert!(values[2] < f64::MIN, "no maximum");
        assert!(
            out[0].magnitudes[0].abs() < f64::MIN_POSITIVE,
            "the maximum is exact"
        );
    }
}

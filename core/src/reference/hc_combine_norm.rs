//! `hc_combine_norm` in f64.

use super::RefArgs;
use super::hc_combine::{Terms, terms};
use crate::ops::hc_combine_norm::HcCombineNorm;

/// `sum = r + 2 sigmoid(scale * inject) x`, rounded to f32 as it is stored, and `y = sum / rms(sum) * w`, row by row of
/// the streams.
pub fn hc_combine_norm(op: &HcCombineNorm, args: &mut RefArgs<'_>) {
    let [r, x, inject, w] = &args.inputs[..] else {
        unreachable!("the shape rule takes four operands");
    };
    let (n, n_streams) = (r.desc.last(), r.desc.shape[1]);
    let rms = |squares: f64| (squares / n as f64 + f64::from(op.eps)).sqrt();
    for row in 0..r.desc.rows() {
        let w = w.row_vec(row % n_streams);
        let terms: Vec<Terms> = terms([r, x, inject], op.scale, row).collect();
        let bound = |term: &Terms| term.r.abs() + term.magnitude;
        let stored = |term: &Terms| f64::from((term.r + term.x) as f32);
        let scale = rms(terms.iter().map(|term| stored(term).powi(2)).sum());
        // How much the error of the sums can move the factor that all elements of the row share.
        let largest = rms(terms.iter().map(|term| bound(term).powi(2)).sum());
        for (i, (term, w)) in terms.iter().zip(w).enumerate() {
            let (sum, magnitude, w) = (term.r + term.x, bound(term), f64::from(w));
            args.outputs[0].put_sum(row * n + i, sum, magnitude, term.r.hypot(term.x));
            let sum = stored(term);
            // A row of zeros with eps = 0 stays zero.
            let (value, bound) = if scale == 0.0 {
                (0.0, 0.0)
            } else {
                let spread = (largest / scale).max(1.0);
                (sum / scale * w, magnitude * spread / scale * w.abs())
            };
            args.outputs[1].put_sum(row * n + i, value, bound, bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::HcCombineNorm;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn keeps_the_sum_and_its_norm() {
        let r = (TensorDesc::f32([1, 2, 2]), &f32s(&[2.0, 3.0, -5.0, 0.0]));
        let x = (TensorDesc::f32([1, 2]), &f32s(&[1.0, 1.0]));
        let inject = (TensorDesc::f32([1, 2]), &f32s(&[0.0, 0.0]));
        let w = (TensorDesc::f32([2, 2]), &f32s(&[1.0, 2.0, 3.0, 4.0]));
        let out = run(
            &HcCombineNorm {
                scale: 0.5,
                eps: 0.0,
            },
            &[r, x, inject, w],
        );
        close(&out[0].values, &[3.0, 4.0, -4.0, 1.0], 1e-14);
        let (first, second) = (12.5_f64.sqrt(), 8.5_f64.sqrt());
        close(
            &out[1].values,
            &[3.0 / first, 8.0 / first, -12.0 / second, 4.0 / second],
            1e-14,
        );
    }
}

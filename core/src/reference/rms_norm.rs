//! `rms_norm` in f64.

use super::RefArgs;
use crate::ops::rms_norm::RmsNorm;

/// `y = x / sqrt(mean(x^2) + eps) * w`, row by row.
pub fn rms_norm(op: &RmsNorm, args: &mut RefArgs<'_>) {
    let x = args.inputs[0];
    let w = args.inputs[1].row_vec(0);
    let y = &mut args.outputs[0];
    let n = x.desc.last();
    for t in 0..x.desc.rows() {
        let row = x.row_vec(t);
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

//! `gated_rms_norm` in f64.

use super::RefArgs;
use crate::ops::gated_rms_norm::{GateKind, GatedRmsNorm};

/// `y = x / sqrt(mean(x^2) + eps) * w * act(z)`, row by row.
pub fn gated_rms_norm(op: &GatedRmsNorm, args: &mut RefArgs<'_>) {
    let (x, z) = (args.inputs[0], args.inputs[1]);
    let w = args.inputs[2].row_vec(0);
    let y = &mut args.outputs[0];
    let n = x.desc.last();
    for t in 0..x.desc.rows() {
        let row = x.row_vec(t);
        let sum: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let rms = (sum / n as f64 + f64::from(op.eps)).sqrt();
        for (i, ((&v, &w), z)) in row.iter().zip(&w).zip(z.row_vec(t)).enumerate() {
            let z = f64::from(z);
            let sigmoid = 1.0 / (1.0 + (-z).exp());
            let (act, whole) = match op.gate {
                GateKind::Silu => (z * sigmoid, z),
                GateKind::Sigmoid => (sigmoid, 1.0),
            };
            let normed = if rms == 0.0 {
                0.0
            } else {
                f64::from(v) / rms * f64::from(w)
            };
            let value = normed * act;
            // The exponential of a device is off by (3 + 2 |z|) units, and 0 below the normal range.
            let growth = 1.0 + z.abs().min(104.0) / 2.0;
            let magnitude = value.abs() * growth + (normed * whole).abs() * 1e-30;
            y.put_sum(t * n + i, value, magnitude, value.abs());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{GateKind, GatedRmsNorm};
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn the_gate_multiplies_the_normed_row() {
        // The gate is the second half of each row of four.
        let z = TensorDesc::f32([1, 4]).narrow(1, 2, 2).unwrap();
        let norm = |gate| {
            run(
                &GatedRmsNorm { eps: 0.5, gate },
                &[
                    (TensorDesc::f32([1, 2]), &f32s(&[3.0, 4.0])),
                    (z.clone(), &f32s(&[9.0, 9.0, 0.0, 2.0])),
                    (TensorDesc::f32([2]), &f32s(&[1.0, -2.0])),
                ],
            )
            .remove(0)
            .values
        };
        let rms = 13.0_f64.sqrt();
        let sigmoid = 1.0 / (1.0 + (-2.0_f64).exp());
        close(&norm(GateKind::Silu), &[0.0, -16.0 / rms * sigmoid], 1e-9);
        close(
            &norm(GateKind::Sigmoid),
            &[1.5 / rms, -8.0 / rms * sigmoid],
            1e-9,
        );
    }
}

//! `delta_gates` in f64.

use super::RefArgs;
use crate::ops::delta_gates::DeltaGates;

/// `g = a * softplus(alpha + dt)` and `sigmoid(beta)`, head by head.
pub fn delta_gates(_: &DeltaGates, args: &mut RefArgs<'_>) {
    let (alpha, beta) = (args.inputs[0].to_f32(), args.inputs[1].to_f32());
    let (a, dt) = (args.inputs[2].row_vec(0), args.inputs[3].row_vec(0));
    let n_heads = a.len();
    let gates = &mut args.outputs[0];
    for (i, (alpha, beta)) in alpha.into_iter().zip(beta).enumerate() {
        let (t, h) = (i / n_heads, i % n_heads);
        let (x, a) = (f64::from(alpha) + f64::from(dt[h]), f64::from(a[h]));
        let e = (-x.abs()).exp();
        let softplus = x.max(0.0) + e.ln_1p();
        // What the slopes make of a unit in the argument, and of (3 + 2 |x|) units in the exponential.
        let slope = if x < 0.0 { e } else { 1.0 } / (1.0 + e);
        let terms = f64::from(alpha).abs() + f64::from(dt[h]).abs();
        let magnitude = softplus + slope * terms + e * (1.0 + x.abs().min(104.0) / 2.0) + 1e-30;
        let g = a * softplus;
        gates.put_sum(t * 2 * n_heads + h, g, a.abs() * magnitude, g.abs());
        let b = f64::from(beta);
        let strength = 1.0 / (1.0 + (-b).exp());
        let growth = 1.0 + b.abs().min(104.0) / 2.0;
        let at = (t * 2 + 1) * n_heads + h;
        gates.put_sum(at, strength, strength * growth + 1e-30, strength);
    }
}

#[cfg(test)]
mod tests {
    use super::DeltaGates;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn grouped_heads_by_hand() {
        // One token, two groups of (beta, beta, alpha, alpha).
        let all = f32s(&[0.0, 1.0, 2.0, -2.0, -1.0, 30.0, 100.0, -100.0]);
        let whole = TensorDesc::f32([1, 2, 4]);
        let out = run(
            &DeltaGates,
            &[
                (whole.narrow(2, 2, 2).unwrap(), &all),
                (whole.narrow(2, 0, 2).unwrap(), &all),
                (TensorDesc::f32([4]), &f32s(&[-1.0, -2.0, -0.5, -3.0])),
                (TensorDesc::f32([4]), &f32s(&[0.0, 2.0, 0.0, 0.0])),
            ],
        );
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        close(
            &out[0].values,
            &[
                -(1.0 + 2.0_f64.exp()).ln(),
                -2.0 * 2.0_f64.ln(),
                -50.0,
                0.0,
                0.5,
                sigmoid(1.0),
                sigmoid(-1.0),
                sigmoid(30.0),
            ],
            1e-12,
        );
        assert_eq!(out[0].desc.shape, [1, 2, 4], "decays, then strengths");
    }
}

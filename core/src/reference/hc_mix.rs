//! `hc_mix` in f64.

use super::RefArgs;
use crate::ops::hc_mix::HcMix;

/// The logistic function.
pub(super) fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 {
        e / (1.0 + e)
    } else {
        1.0 / (1.0 + e)
    }
}

/// `y = mean over streams of x * sigmoid(gate)`. Magnitudes grow with `|gate|` as those of `glu`.
pub fn hc_mix(_: &HcMix, args: &mut RefArgs<'_>) {
    let (x, gate) = (args.inputs[0].to_f32(), args.inputs[1].to_f32());
    let [n_tokens, n_streams, n] = args.inputs[0].desc.shape[..] else {
        unreachable!("the shape rule takes three axes");
    };
    for t in 0..n_tokens {
        for i in 0..n {
            let (mut sum, mut magnitude, mut squares) = (0.0, 0.0, 0.0);
            for c in 0..n_streams {
                let at = (t * n_streams + c) * n + i;
                let (x, gate) = (f64::from(x[at]), f64::from(gate[at]));
                let term = x * sigmoid(gate) / n_streams as f64;
                sum += term;
                magnitude += term.abs() * (1.0 + gate.abs().min(104.0) / 2.0) + x.abs() * 1e-30;
                squares += term * term;
            }
            args.outputs[0].put_sum(t * n + i, sum, magnitude, squares.sqrt());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::HcMix;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn a_gate_of_zero_halves_the_mean() {
        let x = f32s(&[1.0, 2.0, 3.0, 6.0]);
        let gate = f32s(&[0.0, 0.0, 0.0, 200.0]);
        let streams = TensorDesc::f32([1, 2, 2]);
        let out = run(&HcMix, &[(streams.clone(), &x), (streams, &gate)]);
        close(&out[0].values, &[1.0, 3.5], 1e-15);
    }
}

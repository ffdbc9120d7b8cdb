//! `glu` in f64.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use super::RefArgs;
use crate::ops::glu::{Glu, GluKind};

/// `y = act(gate) * up`.
///
/// Exponentials of a device have a relative error of `(3 + 2 |x|)` units, so the magnitude of the kinds made of one
/// grows with `|gate|`; a tail below the normal range of f32 may come out as 0.
pub fn glu(op: &Glu, args: &mut RefArgs<'_>) {
    let (gate, up) = (args.inputs[0].to_f32(), args.inputs[1].to_f32());
    for (i, (gate, up)) in gate.into_iter().zip(up).enumerate() {
        let (x, up) = (f64::from(gate), f64::from(up));
        let value = activation(op.kind, x) * up;
        let whole = (x * up).abs();
        let magnitude = match op.kind {
            GluKind::Reglu => value.abs(),
            GluKind::Swiglu => value.abs() * growth(x) + whole * 1e-30,
            GluKind::Sigmoid => value.abs() * growth(x) + up.abs() * 1e-30,
            GluKind::GegluQuick => value.abs() * growth(1.702 * x) + whole * 1e-30,
            GluKind::Geglu | GluKind::GegluErf => value.abs() + whole / 2.0 * tail(op.kind, x),
        };
        args.outputs[0].put_sum(i, value, magnitude, value.abs());
    }
}

/// `(8 + 4 |x|)` units in terms of the 8 of the tolerance, for an exponential of `-|x|`.
pub(super) fn growth(x: f64) -> f64 {
    1.0 + x.abs().min(104.0) / 2.0
}

/// Absolute value of the second term of GELU, 1 for `|x|` of 10 and more.
pub(super) fn tail(kind: GluKind, x: f64) -> f64 {
    match kind {
        GluKind::Geglu => gelu_argument(x).tanh().abs(),
        _ => erf(x * FRAC_1_SQRT_2).abs(),
    }
}

pub(super) fn activation(kind: GluKind, x: f64) -> f64 {
    match kind {
        GluKind::Swiglu => x * sigmoid(x),
        // 1 + tanh(z) = 2 sigmoid(2 z), without the cancellation.
        GluKind::Geglu => x * sigmoid(2.0 * gelu_argument(x)),
        GluKind::GegluErf => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
        GluKind::GegluQuick => x * sigmoid(1.702 * x),
        GluKind::Reglu => x.max(0.0),
        GluKind::Sigmoid => sigmoid(x),
    }
}

fn gelu_argument(x: f64) -> f64 {
    (2.0 / PI).sqrt() * (x + 0.044_715 * x * x * x)
}

fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 {
        e / (1.0 + e)
    } else {
        1.0 / (1.0 + e)
    }
}

/// The error function by the series `2 / sqrt(pi) exp(-x^2) sum 2^n x^(2n+1) / (2n+1)!!`, whose terms are all
/// positive. Abramowitz and Stegun 7.1.6.
fn erf(x: f64) -> f64 {
    if x.abs() >= 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-18 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn error_function() {
        close(
            &[erf(0.0), erf(0.5), erf(-1.0), erf(2.0), erf(4.0), erf(7.0)],
            &[
                0.0,
                0.520_499_877_813_046_5,
                -0.842_700_792_949_714_9,
                0.995_322_265_018_952_7,
                0.999_999_984_582_742_1,
                1.0,
            ],
            1e-15,
        );
    }

    #[test]
    fn kinds_at_one_and_at_the_limits() {
        let gate = f32s(&[1.0, -1.0, 0.0, 1e30, -1e30]);
        let up = f32s(&[2.0, 1.0, 5.0, 1.0, 1.0]);
        // sigmoid(1), tanh form, Phi(1), sigmoid(1.702) of GELU.
        let at_one = [
            0.731_058_578_630_004_9,
            0.841_191_990_608_276_8,
            0.841_344_746_068_542_9,
            0.845_795_765_932_821_2,
            1.0,
        ];
        for (kind, p) in GluKind::ALL.into_iter().zip(at_one) {
            let desc = TensorDesc::f32([5]);
            let out = run(&Glu { kind }, &[(desc.clone(), &gate), (desc, &up)]);
            let huge = f64::from(1e30_f32);
            close(&out[0].values, &[2.0 * p, p - 1.0, 0.0, huge, 0.0], 1e-12);
        }
    }

    #[test]
    fn both_halves_of_one_tensor() {
        let both = f32s(&[3.0, -1.0, 10.0, 20.0, 0.5, 2.0, 30.0, 40.0]);
        let desc = TensorDesc::f32([2, 4]);
        let gate = desc.narrow(1, 0, 2).unwrap();
        let up = desc.narrow(1, 2, 2).unwrap();
        let op = Glu {
            kind: GluKind::Reglu,
        };
        let out = run(&op, &[(gate, &both), (up, &both)]);
        assert_eq!(out[0].values, [30.0, 0.0, 15.0, 80.0], "gate times up");
    }
}

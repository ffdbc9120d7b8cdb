//! `unary` in f64.

use super::RefArgs;
use crate::ops::unary::{Unary, UnaryKind};

/// `y = f(x)`.
///
/// Exponentials of a device have a relative error of `(3 + 2 |x|)` units, so magnitudes grow with `|x|`; a tail below
/// the normal range of f32 may come out as 0.
pub fn unary(op: &Unary, args: &mut RefArgs<'_>) {
    for (i, x) in args.inputs[0].to_f32().into_iter().enumerate() {
        let x = f64::from(x);
        let e = (-x.abs()).exp();
        let sigmoid = if x < 0.0 { e } else { 1.0 } / (1.0 + e);
        let growth = 1.0 + x.abs().min(104.0) / 2.0;
        let (value, tail) = match op.kind {
            UnaryKind::Silu => (x * sigmoid, x.abs() * 1e-30),
            UnaryKind::Sigmoid => (sigmoid, 1e-30),
        };
        args.outputs[0].put_sum(i, value, value.abs() * growth + tail, value.abs());
    }
}

#[cfg(test)]
mod tests {
    use super::{Unary, UnaryKind};
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn limits_come_out_exactly() {
        let x = f32s(&[0.0, 1.0, -1.0, 200.0, -200.0]);
        let of = |kind| {
            run(&Unary { kind }, &[(TensorDesc::f32([5]), &x)])[0]
                .values
                .clone()
        };
        // sigmoid(1) = 0.7310585786300049
        close(
            &of(UnaryKind::Sigmoid),
            &[
                0.5,
                0.731_058_578_630_004_9,
                0.268_941_421_369_995_1,
                1.0,
                0.0,
            ],
            1e-15,
        );
        close(
            &of(UnaryKind::Silu),
            &[
                0.0,
                0.731_058_578_630_004_9,
                -0.268_941_421_369_995_1,
                200.0,
                0.0,
            ],
            1e-15,
        );
    }
}

//! `softcap` in f64.

use super::RefArgs;
use crate::ops::softcap::Softcap;

/// `y = cap * tanh(x / cap)`.
pub fn softcap(op: &Softcap, args: &mut RefArgs<'_>) {
    let cap = f64::from(op.cap);
    for (i, x) in args.inputs[0].to_f32().into_iter().enumerate() {
        args.outputs[0].put(i, cap * (f64::from(x) / cap).tanh());
    }
}

#[cfg(test)]
mod tests {
    use super::Softcap;
    use crate::op::Op;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn bounds_large_values_and_keeps_small_ones() {
        let op = Softcap { cap: 30.0 };
        let x = f32s(&[0.0, 30.0, -60.0, 1e30, 1e-20]);
        let out = run(&op, &[(TensorDesc::f32([5]), &x)]);
        // tanh(1) = 0.76159415595576488, tanh(2) = 0.96402758007581688.
        close(
            &out[0].values,
            &[
                0.0,
                22.847_824_678_672_946,
                -28.920_827_402_274_508,
                30.0,
                f64::from(1e-20_f32),
            ],
            1e-14,
        );
    }

    #[test]
    fn a_cap_must_be_positive() {
        let x = TensorDesc::f32([5]);
        for cap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let error = Softcap { cap }.outputs(&[&x], &[]).unwrap_err();
            assert!(error.to_string().contains("positive"), "{error}");
        }
    }
}

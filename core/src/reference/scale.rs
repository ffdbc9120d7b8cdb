//! `scale` in f64.

use super::RefArgs;
use crate::ops::scale::Scale;

/// `y = scale * x + bias`.
pub fn scale(op: &Scale, args: &mut RefArgs<'_>) {
    let (s, c) = (f64::from(op.scale), f64::from(op.bias));
    for (i, x) in args.inputs[0].to_f32().into_iter().enumerate() {
        let product = s * f64::from(x);
        args.outputs[0].put_sum(i, product + c, product.abs() + c.abs(), product.hypot(c));
    }
}

#[cfg(test)]
mod tests {
    use super::Scale;
    use crate::reference::testing::{f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn scales_a_view() {
        let op = Scale {
            scale: -2.0,
            bias: 0.5,
        };
        let x = TensorDesc::f32([2, 3]).narrow(1, 1, 2).unwrap();
        let out = run(&op, &[(x, &f32s(&[9.0, 1.0, 2.0, 9.0, -3.0, 0.0]))]);
        assert_eq!(out[0].values, [-1.5, -3.5, 6.5, 0.5], "values");
        assert_eq!(out[0].magnitudes, [2.5, 4.5, 6.5, 0.5], "magnitudes");
    }
}

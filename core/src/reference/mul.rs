//! `mul` in f64.

use super::RefArgs;
use super::add::binary;

/// `y = a * b`, `b` repeated.
pub fn mul(args: &mut RefArgs<'_>) {
    binary(args, |a, b| (a * b, (a * b).abs(), (a * b).abs()));
}

#[cfg(test)]
mod tests {
    use crate::ops::mul::Mul;
    use crate::reference::testing::{f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn multiplies_rows_by_one_value_each() {
        let out = run(
            &Mul,
            &[
                (TensorDesc::f32([2, 2]), &f32s(&[1.0, -2.0, 3.0, 4.0])),
                (TensorDesc::f32([2, 1]), &f32s(&[0.5, -3.0])),
            ],
        );
        assert_eq!(out[0].values, [0.5, -1.0, -9.0, -12.0], "products");
        assert_eq!(out[0].magnitudes, [0.5, 1.0, 9.0, 12.0], "magnitudes");
    }
}

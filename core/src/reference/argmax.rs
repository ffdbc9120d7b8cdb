//! `argmax`, exact.

use super::RefArgs;

/// The first index of the largest element of each row; 0 where nothing is above -inf.
pub fn argmax(args: &mut RefArgs<'_>) {
    let x = args.inputs[0];
    for r in 0..x.desc.rows() {
        let (mut best, mut best_value) = (0, f32::NEG_INFINITY);
        for (i, value) in x.row_vec(r).into_iter().enumerate() {
            // False for NaN, and for equals after the first.
            if value > best_value {
                (best, best_value) = (i, value);
            }
        }
        args.outputs[0].put(r, best as f64);
    }
}

#[cfg(test)]
mod tests {
    use crate::error::OpError;
    use crate::op::Op;
    use crate::ops::argmax::Argmax;
    use crate::reference::testing::{f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn first_of_equals_and_never_nan() {
        const INF: f32 = f32::INFINITY;
        let x = f32s(&[
            1.0,
            7.0,
            7.0,
            -3.0, // ties
            -0.0,
            0.0,
            -1.0,
            -2.0, // signed zeros are equal
            f32::NAN,
            -5.0,
            f32::NAN,
            -6.0, // NaN is last
            f32::NAN,
            -INF,
            f32::NAN,
            -INF, // nothing above -inf
            -INF,
            1.0,
            INF,
            2.0, // infinity is largest
        ]);
        let out = run(&Argmax, &[(TensorDesc::f32([5, 4]), &x)]);
        assert_eq!(out[0].values, [1.0, 0.0, 1.0, 0.0, 2.0], "indices");
        assert_eq!(out[0].desc, TensorDesc::i32([5]), "shape");
    }

    #[test]
    fn empty_rows_are_refused() {
        let error: OpError = Argmax
            .outputs(&[&TensorDesc::f32([3, 0])], &[])
            .unwrap_err();
        assert!(error.to_string().contains("at least one"), "{error}");
    }
}

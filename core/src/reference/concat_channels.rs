//! `concat_channels`: copies, so results are exact.

use super::RefArgs;

/// `y = [a | b]`, row by row.
pub fn concat_channels(args: &mut RefArgs<'_>) {
    let y = &mut args.outputs[0];
    let width = y.desc.last();
    let mut first = 0;
    for x in &args.inputs {
        let n = x.desc.last();
        // Nothing has no storage to look into.
        if n == 0 {
            continue;
        }
        for row in 0..x.desc.rows() {
            for (i, value) in x.row_vec(row).into_iter().enumerate() {
                y.put(row * width + first + i, f64::from(value));
            }
        }
        first += n;
    }
}

#[cfg(test)]
mod tests {
    use crate::op::Op;
    use crate::ops::concat_channels::ConcatChannels;
    use crate::reference::testing::{f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn rows_stand_side_by_side() {
        // Two of three heads with one channel of two, beside a row that all heads of a token share.
        let a = f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
        let first = TensorDesc::f32([2, 3, 2]).narrow(1, 1, 2).unwrap();
        let first = first.narrow(2, 1, 1).unwrap();
        let b = f32s(&[20.0, 21.0, 30.0, 31.0]);
        let second = TensorDesc::f32([2, 2]).repeat(1, 2).unwrap();
        let out = run(&ConcatChannels, &[(first, &a), (second, &b)]);
        assert_eq!(out[0].desc.shape, [2, 2, 3]);
        assert_eq!(
            out[0].values,
            [
                3.0, 20.0, 21.0, 5.0, 20.0, 21.0, 9.0, 30.0, 31.0, 11.0, 30.0, 31.0
            ]
        );
    }

    #[test]
    fn outer_axes_must_agree() {
        let (a, b) = (TensorDesc::f32([2, 3, 4]), TensorDesc::f32([2, 2, 4]));
        let error = ConcatChannels
            .outputs(&[&a, &b], &[])
            .unwrap_err()
            .to_string();
        assert!(error.contains("[2, 3]"), "{error}");
    }
}

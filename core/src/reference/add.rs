//! `add` in f64.

use super::RefArgs;

/// `y = a + b`, `b` repeated.
pub fn add(args: &mut RefArgs<'_>) {
    binary(args, |a, b| (a + b, a.abs() + b.abs(), a.hypot(b)));
}

/// Applies `f(a, b) = (value, magnitude, norm)` to every element of `a` and its partner in the repeated `b`.
pub(super) fn binary(args: &mut RefArgs<'_>, f: impl Fn(f64, f64) -> (f64, f64, f64)) {
    let (a, b) = (args.inputs[0], args.inputs[1]);
    let n = a.desc.last();
    let b_n = b.desc.last();
    let b_rows = b.to_f32();
    for row in 0..a.desc.rows() {
        let b_row = repeated_row(row, &a.desc.shape, &b.desc.shape);
        let b_row = &b_rows[b_row * b_n..(b_row + 1) * b_n];
        for (i, &a) in a.row_vec(row).iter().enumerate() {
            let (value, magnitude, norm) = f(f64::from(a), f64::from(b_row[i % b_n]));
            args.outputs[0].put_sum(row * n + i, value, magnitude, norm);
        }
    }
}

/// The row of the repeated operand that belongs to a row of the whole one.
fn repeated_row(row: usize, shape: &[usize], repeated: &[usize]) -> usize {
    let (mut rest, mut found, mut stride) = (row, 0, 1);
    for back in 2..=shape.len() {
        let size = shape[shape.len() - back];
        let index = rest % size;
        rest /= size;
        if back <= repeated.len() {
            let size = repeated[repeated.len() - back];
            found += index % size * stride;
            stride *= size;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::ops::add::Add;
    use crate::reference::testing::{f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn adds_and_repeats() {
        let a = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let check = |a_desc: TensorDesc, b_shape: &[usize], b: &[f32], expected: &[f64]| {
            let b_desc = TensorDesc::f32(b_shape);
            let out = run(&Add, &[(a_desc, &a), (b_desc, &f32s(b))]);
            assert_eq!(out[0].values, expected, "b {b_shape:?}");
        };
        let a_desc = TensorDesc::f32([2, 2, 2]);
        check(
            a_desc.clone(),
            &[2],
            &[10.0, 20.0],
            &[11.0, 22.0, 13.0, 24.0, 15.0, 26.0, 17.0, 28.0],
        );
        check(
            a_desc.clone(),
            &[2, 1, 1],
            &[10.0, 20.0],
            &[11.0, 12.0, 13.0, 14.0, 25.0, 26.0, 27.0, 28.0],
        );
        check(
            a_desc.clone(),
            &[2, 1],
            &[10.0, 20.0],
            &[11.0, 12.0, 23.0, 24.0, 15.0, 16.0, 27.0, 28.0],
        );
        check(
            a_desc.clone(),
            &[1],
            &[-1.0],
            &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
        );
        // Repeats twice inside a row of four; a is a view of columns 0..1 of rows of four.
        check(
            TensorDesc::f32([2, 4]),
            &[2],
            &[10.0, 20.0],
            &[11.0, 22.0, 13.0, 24.0, 15.0, 26.0, 17.0, 28.0],
        );
        check(
            TensorDesc::f32([2, 4]).narrow(1, 1, 2).unwrap(),
            &[2, 2],
            &[0.5, 0.25, -0.5, -0.25],
            &[2.5, 3.25, 5.5, 6.75],
        );
    }

    #[test]
    fn magnitudes_do_not_cancel() {
        let out = run(
            &Add,
            &[
                (TensorDesc::f32([1]), &f32s(&[3.0])),
                (TensorDesc::f32([1]), &f32s(&[-4.0])),
            ],
        );
        assert_eq!(out[0].values, [-1.0], "sum");
        assert_eq!(out[0].magnitudes, [7.0], "sum of absolute values");
        assert_eq!(out[0].norms, [5.0], "root sum of squares");
    }
}

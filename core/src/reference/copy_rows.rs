//! `copy_rows` by copying bytes.

use super::RefArgs;
use crate::ops::copy_rows::CopyRows;

/// `y[moves[i, 1], ..] = y[moves[i, 0], ..]`
pub fn copy_rows(_: &CopyRows, args: &mut RefArgs<'_>) {
    let moves = args.inputs[0].to_i32();
    let y = &mut args.inouts[0];
    let (n_rows, n_bytes) = (y.desc.shape[0], y.desc.last() * 4);
    for pair in moves.chunks_exact(2) {
        let row = |i: usize| usize::try_from(pair[i]).ok().filter(|&row| row < n_rows);
        let (Some(from), Some(to)) = (row(0), row(1)) else {
            continue;
        };
        let from = y.desc.row_offset(from) * 4;
        let to = y.desc.row_offset(to) * 4;
        y.bytes.copy_within(from..from + n_bytes, to);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RefTensor, RefTensorMut};
    use super::*;
    use crate::op::Op;
    use crate::reference::testing::i32s;
    use crate::tensor::TensorDesc;

    #[test]
    fn listed_rows_are_copied_and_the_rest_stays() {
        let moves = TensorDesc::i32([4, 2]);
        // Columns 1 and 2 of three.
        let y = TensorDesc::i32([4, 3]).narrow(1, 1, 2).unwrap();
        CopyRows.outputs(&[&moves], &[&y]).unwrap();
        let move_bytes = i32s(&[0, 2, -1, 1, 3, 4, 3, 1]);
        let mut bytes = i32s(&(0..12).collect::<Vec<_>>());
        let mut args = RefArgs {
            inputs: vec![RefTensor {
                desc: &moves,
                bytes: &move_bytes,
            }],
            inouts: vec![RefTensorMut::new(&y, &mut bytes)],
            outputs: Vec::new(),
        };
        copy_rows(&CopyRows, &mut args);
        assert_eq!(
            bytes,
            i32s(&[0, 1, 2, 3, 10, 11, 6, 1, 2, 9, 10, 11]),
            "row 0 to 2, row 3 to 1"
        );
    }
}

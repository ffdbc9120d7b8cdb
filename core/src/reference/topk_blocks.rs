//! `topk_blocks` by sorting.

use std::cmp::Ordering;

use super::RefArgs;
use crate::ops::topk_blocks::TopkBlocks;

/// The `k` best candidates of each row, in ascending order, then -1.
pub fn topk_blocks(op: &TopkBlocks, args: &mut RefArgs<'_>) {
    let scores = args.inputs[0];
    let positions = args.inputs[1].to_i32();
    let n_groups = scores.desc.shape[1];
    for row in 0..scores.desc.rows() {
        let visible = usize::try_from(positions[row / n_groups])
            .map_or(0, |position| (position + 1) / op.ratio);
        let values = scores.row_vec(row);
        let mut best: Vec<usize> = (0..values.len().min(visible))
            .filter(|&e| values[e] > f32::NEG_INFINITY)
            .collect();
        // A stable sort: of equal scores the lower index stays first. Candidates are not NaN.
        best.sort_by(|&a, &b| values[b].partial_cmp(&values[a]).unwrap_or(Ordering::Equal));
        best.truncate(op.k);
        best.sort_unstable();
        let entries = best.iter().map(|&e| e as i32).chain(std::iter::repeat(-1));
        for (i, e) in entries.take(op.k).enumerate() {
            if let Some(selection) = args.inouts.first_mut() {
                let at = 4 * (selection.desc.row_offset(row) + i);
                selection.bytes[at..at + 4].copy_from_slice(&e.to_le_bytes());
            } else {
                args.outputs[0].put(row * op.k + i, f64::from(e));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::testing::{f32s, i32s, run};
    use crate::tensor::TensorDesc;

    fn select(k: usize, ratio: usize, position: i32, scores: &[f32]) -> Vec<f64> {
        let out = run(
            &TopkBlocks { k, ratio },
            &[
                (TensorDesc::f32([1, 1, scores.len()]), &f32s(scores)),
                (TensorDesc::i32([1]), &i32s(&[position])),
            ],
        );
        out[0].values.clone()
    }

    #[test]
    fn the_best_in_ascending_order() {
        let scores = [1.0, -2.0, 5.0, 0.0, -0.0, 3.0];
        assert_eq!(select(3, 1, 9, &scores), [0.0, 2.0, 5.0], "1, 5 and 3");
        assert_eq!(
            select(4, 1, 9, &scores),
            [0.0, 2.0, 3.0, 5.0],
            "the first zero"
        );
        assert_eq!(select(2, 1, 4, &scores), [0.0, 2.0], "5 is not visible yet");
        assert_eq!(select(2, 4, 10, &scores), [0.0, 1.0], "two complete blocks");
    }

    #[test]
    fn what_is_no_candidate_is_padding() {
        let scores = [f32::NAN, f32::NEG_INFINITY, -1e30, f32::INFINITY];
        assert_eq!(select(4, 1, 7, &scores), [2.0, 3.0, -1.0, -1.0], "two");
        assert_eq!(select(2, 4, 2, &scores), [-1.0, -1.0], "no complete block");
        assert_eq!(select(2, 1, -1, &scores), [-1.0, -1.0], "padding");
    }

    #[test]
    fn a_given_selection_is_overwritten() {
        use crate::reference::{RefTensor, RefTensorMut};
        let op = TopkBlocks { k: 2, ratio: 1 };
        let scores = TensorDesc::f32([1, 1, 3]);
        let positions = TensorDesc::i32([1]);
        // The second of two rows.
        let selection = TensorDesc::i32([2, 1, 2]).narrow(0, 1, 1).unwrap();
        assert!(
            crate::op::Op::outputs(&op, &[&scores, &positions], &[&selection])
                .unwrap()
                .is_empty(),
            "no output"
        );
        let (score_bytes, position_bytes) = (f32s(&[1.0, 0.0, 2.0]), i32s(&[2]));
        let mut bytes = i32s(&[7, 7, 7, 7]);
        let mut args = RefArgs {
            inputs: vec![
                RefTensor {
                    desc: &scores,
                    bytes: &score_bytes,
                },
                RefTensor {
                    desc: &positions,
                    bytes: &position_bytes,
                },
            ],
            inouts: vec![RefTensorMut::new(&selection, &mut bytes)],
            outputs: Vec::new(),
        };
        topk_blocks(&op, &mut args);
        assert_eq!(bytes, i32s(&[7, 7, 0, 2]), "its row only");
    }
}

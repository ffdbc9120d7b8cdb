//! Cases of `copy_rows`.

use gemel_core::ops::copy_rows::CopyRows;
use gemel_core::{DType, TensorDesc};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, n) in [1, 2, 31, 64, 257, 1000, 4097].into_iter().enumerate() {
        for (j, n_rows) in [2, 3, 8, 70].into_iter().enumerate() {
            for dtype in [DType::F32, DType::I32] {
                let n_moves = [1, 2, 4][(i + j) % 3];
                // Sources from the first half, distinct targets from the second; none and beyond among them.
                let mut rng = Rng::new(&format!("moves {i} {j}"), 0, 94);
                let targets = rng.permutation(n_rows - n_rows / 2);
                let moves: Vec<i32> = (0..n_moves)
                    .flat_map(|m| {
                        let from = rng.below(n_rows / 2) as i32;
                        let to = targets.get(m).map_or(-1, |&to| (n_rows / 2 + to) as i32);
                        match m {
                            1 => [-1, to],
                            3 => [from, n_rows as i32],
                            _ => [from, to],
                        }
                    })
                    .collect();
                let y = TensorDesc::new(dtype, [n_rows, n + 2])
                    .narrow(1, 1, n)
                    .expect("the columns exist");
                let fill = match dtype {
                    DType::F32 => Fill::Floats(Class::N),
                    _ => Fill::Bits,
                };
                cases.push(
                    Builder::new(CopyRows::NAME)
                        .param("type", dtype)
                        .param("n_rows", n_rows)
                        .param("n", n)
                        .param("moves", n_moves)
                        .variant(dtype.name())
                        .input(
                            "moves",
                            TensorDesc::i32([n_moves, 2]),
                            Fill::Ints(moves.into()),
                        )
                        .inout("y", y, fill)
                        .tag_if(n == 31 && n_rows == 8, Tag::Quick)
                        .build(CopyRows),
                );
            }
        }
    }
    let mut cases = thin(cases, 3, 10);
    cases.push(
        Builder::new(CopyRows::NAME)
            .param("bench", "3mib")
            .variant(DType::F32.name())
            .input(
                "moves",
                TensorDesc::i32([1, 2]),
                Fill::Ints([0, 1].to_vec().into()),
            )
            .inout("y", TensorDesc::f32([2, 786_432]), Fill::Floats(Class::N))
            .tag(Tag::Bench)
            .build(CopyRows),
    );
    cases
}

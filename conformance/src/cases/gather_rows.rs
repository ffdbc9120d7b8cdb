//! Cases of `gather_rows`.

use gemel_core::dtype::WEIGHT_TYPES;
use gemel_core::ops::gather_rows::GatherRows;
use gemel_core::{DType, TensorDesc};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// Ids with repetitions, -1 and others outside the table.
fn ids(key: &str, n: usize, n_rows: usize) -> Vec<i32> {
    let mut rng = Rng::new(key, 0, 98);
    (0..n)
        .map(|i| match i % 6 {
            3 => -1,
            5 => [n_rows as i32, -7, i32::MAX, i32::MIN][(i / 6) % 4],
            _ => rng.below(n_rows) as i32,
        })
        .collect()
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &dtype in WEIGHT_TYPES {
        let block = dtype.block_elems();
        for (i, (n_rows, blocks, n_ids)) in [
            (1, 1, 1),
            (7, 2, 4),
            (8, 3, 13),
            (33, 1, 64),
            (100, 2, 7),
            (9, 7, 6),
            (250, 1, 32),
            (16, 5, 2),
            (17, 4, 17),
        ]
        .into_iter()
        .enumerate()
        {
            // Float rows of any length, odd ones included.
            let n = if block == 1 {
                [1, 7, 33, 64, 100, 257, 32, 5, 4][i]
            } else {
                blocks * block
            };
            let scale = if i % 3 == 2 { 25.298_221 } else { 1.0 };
            let ids = ids(&format!("{dtype} {n_rows} {n_ids}"), n_ids, n_rows);
            let mut w = TensorDesc::new(dtype, [n_rows, n]);
            // The larger tables in windows, as if they exceeded a binding.
            w.window_rows = if i % 4 == 3 { 16 } else { 0 };
            let windows = if w.window_rows > 0 { ",windows" } else { "" };
            cases.push(
                Builder::new(GatherRows::NAME)
                    .param("type", dtype)
                    .param("n_rows", n_rows)
                    .param("n", n)
                    .param("n_ids", format!("{n_ids}{windows}"))
                    .param("scale", scale)
                    .variant(dtype.name())
                    .weight("w", w, Class::N)
                    .input("ids", TensorDesc::i32([n_ids]), Fill::Ints(ids.into()))
                    .tag_if(i == 3, Tag::Reduced)
                    .tag_if(
                        i == 2
                            && matches!(
                                dtype,
                                DType::F32 | DType::Q8_0 | DType::Q4_K | DType::IQ2_XS
                            ),
                        Tag::Quick,
                    )
                    .build(GatherRows { scale }),
            );
        }
    }
    // Activations: rows of a tensor that lies in plain rows, possibly strided.
    for (i, (n_rows, n, wide, n_ids)) in [
        (5, 3, 3, 4),
        (8, 64, 64, 12),
        (17, 33, 40, 9),
        (3, 576, 576, 1),
        (64, 100, 128, 32),
    ]
    .into_iter()
    .enumerate()
    {
        let ids = ids(&format!("plain {n_rows} {n_ids}"), n_ids, n_rows);
        let x = TensorDesc::f32([n_rows, wide])
            .narrow(1, wide - n, n)
            .expect("the columns exist");
        cases.push(
            Builder::new(GatherRows::NAME)
                .param("type", "rows")
                .param("n_rows", n_rows)
                .param("n", format!("{n}of{wide}"))
                .param("n_ids", n_ids)
                .variant("f32 activations")
                .input("w", x, Fill::Floats(Class::H))
                .input("ids", TensorDesc::i32([n_ids]), Fill::Ints(ids.into()))
                .tag_if(i == 2, Tag::Quick)
                .build(GatherRows { scale: 1.0 }),
        );
    }
    thin(cases, 8, 80)
}

//! Cases of `scatter_rows`.

use gemel_core::ops::scatter_rows::ScatterRows;
use gemel_core::{DType, TensorDesc};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// Distinct rows of a table of `n_rows`, some of them -1 or outside.
pub(super) fn slots(key: &str, n: usize, n_rows: usize, holes: usize) -> Vec<i32> {
    let mut rng = Rng::new(key, 0, 99);
    let order = rng.permutation(n_rows);
    (0..n)
        .map(|t| {
            if holes > 0 && t % holes == holes - 1 {
                [-1, n_rows as i32, -5, i32::MAX][(t / holes) % 4]
            } else {
                order.get(t).map_or(-1, |&row| row as i32)
            }
        })
        .collect()
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::I32] {
        for (i, n) in [1, 2, 7, 32, 33, 64, 100, 128, 257, 640]
            .into_iter()
            .enumerate()
        {
            for (j, n_tokens) in [1, 2, 5, 8, 17, 64].into_iter().enumerate() {
                for holes in [0, 3] {
                    let n_rows =
                        [n_tokens, n_tokens + 1, 2 * n_tokens + 3, 100][(i + j) % 4].max(n_tokens);
                    let key = format!("{dtype} {n} {n_tokens} {holes}");
                    let strided = (i + j) % 3 == 1;
                    let wide = if strided { n + 5 } else { n };
                    let view = |rows: usize| {
                        TensorDesc::new(dtype, [rows, wide])
                            .narrow(1, wide - n, n)
                            .expect("the columns exist")
                    };
                    let fill = || match dtype {
                        DType::I32 => Fill::Range(i32::MIN, i32::MAX),
                        _ => Fill::Floats(Class::H),
                    };
                    let slots: Vec<i32> = slots(&key, n_tokens, n_rows, holes);
                    cases.push(
                        Builder::new(ScatterRows::NAME)
                            .param("type", dtype)
                            .param("n_tokens", n_tokens)
                            .param("n", n)
                            .param("n_rows", n_rows)
                            .param("holes", holes)
                            .param("strided", strided)
                            .variant(dtype.name())
                            .input("x", view(n_tokens), fill())
                            .input("idx", TensorDesc::i32([n_tokens]), Fill::Ints(slots.into()))
                            .inout("y", view(n_rows), fill())
                            .tag_if(n == 33 && holes == 3, Tag::Quick)
                            .build(ScatterRows),
                    );
                }
            }
        }
    }
    thin(cases, 6, 40)
}

//! Cases of `top_k_logits`.

use gemel_core::TensorDesc;
use gemel_core::ops::top_k_logits::TopKLogits;

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, n) in [1, 2, 5, 31, 64, 100, 257, 1000, 4096, 4099, 49_152, 151_936]
        .into_iter()
        .enumerate()
    {
        for (j, k) in [1, 2, 5, 8, 40, 64, 100, 1000, 1024]
            .into_iter()
            .enumerate()
        {
            let k = if k > n && j < 4 { n } else { k };
            if k > n || (n > 10_000 && k > 100 && i % 2 == 0) {
                continue;
            }
            for class in [Class::N, Class::C] {
                // Ties everywhere, so that the lower id must win, every second time.
                let rows = if n > 10_000 {
                    1
                } else {
                    [1, 3, 2, 5][(i + j) % 4]
                };
                let wide = if (i + j) % 3 == 0 { n + 3 } else { n };
                let x = TensorDesc::f32([rows, wide])
                    .narrow(1, wide - n, n)
                    .expect("the columns exist");
                let id = format!("{n}of{wide}");
                cases.push(
                    Builder::new(TopKLogits::NAME)
                        .param("rows", rows)
                        .param("n", id)
                        .param("k", k)
                        .param("j", j)
                        .param("class", class)
                        .input("x", x, Fill::Floats(class))
                        .tag_if(n == 257 && k == 40, Tag::Quick)
                        .build(TopKLogits { k }),
                );
            }
        }
    }
    for class in [Class::Z, Class::V, Class::D, Class::H] {
        cases.push(
            Builder::new(TopKLogits::NAME)
                .param("rows", 3)
                .param("n", 500)
                .param("k", 64)
                .param("class", class)
                .input("x", TensorDesc::f32([3, 500]), Fill::Floats(class))
                .build(TopKLogits { k: 64 }),
        );
    }
    let mut cases = thin(cases, 5, 30);
    cases.push(
        Builder::new(TopKLogits::NAME)
            .param("bench", "1x262144")
            .param("k", 64)
            .input("x", TensorDesc::f32([1, 262_144]), Fill::Floats(Class::N))
            .tag(Tag::Bench)
            .build(TopKLogits { k: 64 }),
    );
    cases
}

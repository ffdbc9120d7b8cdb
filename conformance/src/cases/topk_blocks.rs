//! Cases of `topk_blocks`: ties everywhere, fewer candidates than places, scores that are no candidates.

use gemel_core::TensorDesc;
use gemel_core::ops::topk_blocks::TopkBlocks;

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// What the scores are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scores {
    /// Of a class.
    Of(Class),
    /// All equal.
    Equal,
    /// Rectified sums: half of them exact zeros, of either sign.
    Rectified,
    /// A few values, many times each; NaN and infinities between.
    Odd,
    /// Ever larger: all of the best lie in the last groups.
    Rising,
}

impl Scores {
    fn name(self) -> String {
        match self {
            Self::Of(class) => class.to_string(),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    fn fill(self, key: &str, n: usize) -> Fill {
        let mut rng = Rng::new(key, 0, 91);
        let values: Vec<f32> = match self {
            Self::Of(class) => return Fill::Floats(class),
            Self::Equal => vec![-1.5; n],
            Self::Rectified => (0..n)
                .map(|_| match rng.below(4) {
                    0 => 0.0,
                    1 => -0.0,
                    _ => rng.normal() as f32,
                })
                .collect(),
            Self::Odd => (0..n)
                .map(|_| {
                    let odd = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -f32::NAN];
                    match rng.below(3) {
                        0 => odd[rng.below(4)],
                        1 => [1.0, -1.0, 1e-39, -1e-39, f32::MAX, f32::MIN][rng.below(6)],
                        _ => rng.normal() as f32,
                    }
                })
                .collect(),
            Self::Rising => (0..n).map(|i| i as f32 / 1000.0 - 1.0).collect(),
        };
        Fill::Values(values.into())
    }
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let kinds = [
        Scores::Of(Class::N),
        Scores::Equal,
        Scores::Rectified,
        Scores::Odd,
        Scores::Of(Class::C),
        Scores::Of(Class::H),
        Scores::Rising,
    ];
    let mut cases = Vec::new();
    for (i, n) in [
        1, 2, 7, 31, 64, 100, 257, 512, 513, 1000, 2048, 4099, 16_384, 49_157,
    ]
    .into_iter()
    .enumerate()
    {
        for (j, k) in [1, 2, 5, 31, 64, 512, 600, 4096].into_iter().enumerate() {
            for (l, scores) in kinds.into_iter().enumerate() {
                if (i + j + l) % 3 == 0 || (n > 10_000 && l % 2 == 0) {
                    continue;
                }
                let key = format!("topk_blocks {i} {j} {l}");
                let mut rng = Rng::new(&key, 0, 90);
                let ratio = [1, 4, 64][(i + j + l) % 3];
                let n_tokens = if n > 10_000 {
                    1
                } else {
                    [1, 3, 5][(i + l) % 3]
                };
                let n_groups = 1 + usize::from((i + j + l) % 5 == 1);
                // Everything visible, less than that, next to nothing, padding.
                let positions: Vec<i32> = (0..n_tokens)
                    .map(|t| match (t + j + l) % 5 {
                        0 | 1 => (n * ratio) as i32 + [0, 1, 1000][t % 3] - 1,
                        2 => (rng.below(n + 1) * ratio) as i32 - 1,
                        3 => rng.below(n * ratio) as i32,
                        _ => [-1, 0, 3, i32::MAX][(i + t) % 4],
                    })
                    .collect();
                let wide = n + [0, 3][(i + j) % 2];
                let x = TensorDesc::f32([n_tokens, n_groups, wide])
                    .narrow(2, wide - n, n)
                    .expect("the columns exist");
                let builder = Builder::new(TopkBlocks::NAME)
                    .param("n_tokens", n_tokens)
                    .param("n_groups", n_groups)
                    .param("n", n)
                    .param("k", k)
                    .param("ratio", ratio)
                    .param("scores", scores.name())
                    .input("scores", x, scores.fill(&key, n_tokens * n_groups * n))
                    .input(
                        "positions",
                        TensorDesc::i32([n_tokens]),
                        Fill::Ints(positions.into()),
                    );
                // Into rows of a larger selection, every fourth time.
                let builder = if (i + 2 * j + l) % 4 == 1 {
                    let selection = TensorDesc::i32([n_tokens + 2, n_groups, k])
                        .narrow(0, 1, n_tokens)
                        .expect("the rows exist");
                    builder.param("given", 1).variant("given selection").inout(
                        "selection",
                        selection,
                        Fill::Range(-9, 9),
                    )
                } else {
                    builder
                };
                cases.push(
                    builder
                        .tag_if(n == 257 && k == 31, Tag::Quick)
                        .build(TopkBlocks { k, ratio }),
                );
            }
        }
    }
    for (n_tokens, n, k) in [(70, 1024, 512), (300, 130, 40), (2, 131_072, 512)] {
        cases.push(
            rows(n_tokens, n, k, "many")
                .tag_if(n_tokens == 70, Tag::Reduced)
                .build(TopkBlocks { k, ratio: 4 }),
        );
    }
    cases.push(rows(1, 1_048_576, 4096, "huge").build(TopkBlocks { k: 4096, ratio: 4 }));
    let mut cases = thin(cases, 5, 60);
    for (n_tokens, n) in [(1, 16_384), (1, 131_072), (1, 1_048_576), (64, 16_384)] {
        cases.push(
            rows(n_tokens, n, 512, "bench")
                .tag(Tag::Bench)
                .build(TopkBlocks { k: 512, ratio: 4 }),
        );
    }
    cases
}

/// Rows of normal scores, all visible.
fn rows(n_tokens: usize, n: usize, k: usize, name: &str) -> Builder {
    Builder::new(TopkBlocks::NAME)
        .param(name, format!("{n_tokens}x{n}"))
        .param("k", k)
        .input(
            "scores",
            TensorDesc::f32([n_tokens, 1, n]),
            Fill::Floats(Class::N),
        )
        .input(
            "positions",
            TensorDesc::i32([n_tokens]),
            Fill::Range(4 * n as i32, 4 * n as i32),
        )
}

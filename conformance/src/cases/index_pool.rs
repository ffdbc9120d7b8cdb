//! Cases of `index_pool`: steps that complete none, one or many blocks of ragged sequences. Only the raw keys of tokens
//! up to the step hold values.

use gemel_core::ops::index_pool::IndexPool;
use gemel_core::ops::rope::{FINE, RopeMode};
use gemel_core::{DType, PAGE, TensorDesc};

use super::{Builder, Case, Tag, rope, thin};
use crate::fill::{Class, Fill, Rng};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let types = [
        (DType::F16, DType::F16),
        (DType::F32, DType::F32),
        (DType::F32, DType::F16),
        (DType::BF16, DType::BF16),
        (DType::Q8_0, DType::F16),
    ];
    for (a, (raw, pooled)) in types.into_iter().enumerate() {
        for i in 0..40 {
            let turn = i + 3 * a;
            let key = format!("index_pool {a} {i}");
            let mut rng = Rng::new(&key, 0, 88);
            let ratio = [4, 1, 4, 16, 64, 2, 4, 8][turn % 8];
            let dim = [128, 64, 128, 32, 40, 512][turn % 6];
            let n_rot = [64, 32, 128, 2, 40, 20][turn % 6].min(dim);
            let mode = [RopeMode::Neox, RopeMode::Norm][(turn / 2) % 2];
            let n_tokens = [1, 4, 1, 7, 33, 2, 130, 16][i % 8];
            let n_seqs = [1, 2, 1, 3][(i + a) % 4].min(n_tokens);
            // Just before the end of a block, so that even a step of one token completes one.
            let past = [ratio - 1, 63, 0, 255, 300, 511][(i / 3 + a) % 6];
            let mut lens: Vec<usize> = (0..n_seqs).map(|s| past + 41 * s).collect();
            let (mut seq_rows, mut positions) = (Vec::new(), Vec::new());
            for t in 0..n_tokens {
                if n_tokens > 2 && t == n_tokens - 1 {
                    seq_rows.push([-1, n_seqs as i32, 0][i % 3]);
                    positions.push([ratio as i32 - 1, 63, -1][i % 3]);
                    continue;
                }
                let s = t * n_seqs / n_tokens;
                seq_rows.push(s as i32);
                positions.push(lens[s] as i32);
                lens[s] += 1;
            }
            let max_pages = lens.iter().map(|len| len.div_ceil(PAGE)).max().unwrap_or(0) + 1;
            let n_pages = lens.iter().map(|len| len.div_ceil(PAGE)).sum::<usize>() + 1;
            let mut order = rng.permutation(n_pages).into_iter();
            let mut table = Vec::new();
            let mut live = vec![false; n_pages * PAGE];
            for &len in &lens {
                for p in 0..max_pages {
                    if p * PAGE >= len {
                        table.push([-1, 1 << 20, -77, n_pages as i32][rng.below(4)]);
                        continue;
                    }
                    let page = order.next().expect("there are enough pages");
                    table.push(page as i32);
                    for c in 0..PAGE.min(len - p * PAGE) {
                        live[page * PAGE + c] = true;
                    }
                }
            }
            let old: Vec<bool> = (0..n_pages * PAGE / ratio)
                .map(|_| rng.below(2) == 0)
                .collect();
            // Sometimes the table ends early: rotated channels are zeros then.
            let n_coarse = if i % 9 == 8 { 1 } else { 3 };
            let class = [Class::N, Class::U, Class::H, Class::Z, Class::S][turn % 5];
            cases.push(
                Builder::new(IndexPool::NAME)
                    .param("raw", raw)
                    .param("pooled", pooled)
                    .param("ratio", ratio)
                    .param("dim", dim)
                    .param("n_rot", n_rot)
                    .param("mode", mode.name())
                    .param("n_tokens", n_tokens)
                    .param("n_seqs", n_seqs)
                    .param("past", past)
                    .param("class", class)
                    .param("n", i)
                    .variant(format!("{raw} -> {pooled}"))
                    .input(
                        "raw",
                        TensorDesc::pages(raw, n_pages, 1, dim),
                        Fill::Pages(class, live.into()),
                    )
                    .input("w", TensorDesc::f32([dim]), Fill::Floats(Class::N))
                    .input(
                        "rope_table",
                        TensorDesc::f32([FINE + n_coarse, n_rot / 2, 2]),
                        Fill::Table(rope::table),
                    )
                    .input(
                        "page_table",
                        TensorDesc::i32([n_seqs, max_pages]),
                        Fill::Ints(table.into()),
                    )
                    .input(
                        "seq_rows",
                        TensorDesc::i32([n_tokens]),
                        Fill::Ints(seq_rows.into()),
                    )
                    .input(
                        "positions",
                        TensorDesc::i32([n_tokens]),
                        Fill::Ints(positions.into()),
                    )
                    .inout(
                        "pooled",
                        TensorDesc::block_pages(pooled, n_pages, 1, ratio, dim),
                        Fill::Pages(Class::N, old.into()),
                    )
                    .tag_if(i == 17 && a < 3, Tag::Quick)
                    .build(IndexPool {
                        ratio,
                        eps: if class == Class::S { 0.0 } else { 1e-6 },
                        mode,
                        n_rot,
                    }),
            );
        }
    }
    thin(cases, 5, 40)
}

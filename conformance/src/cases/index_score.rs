//! Cases of `index_score`: pooled keys and token keys, with and without weights, of ragged sequences. Only keys of
//! blocks that some token sees hold values.

use std::sync::Arc;

use gemel_core::ops::index_score::IndexScore;
use gemel_core::{DType, PAGE, TensorDesc};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// A step over a paged cache of keys.
#[derive(Clone, Copy, Debug)]
struct Step {
    dtype: DType,
    n_heads: usize,
    dim: usize,
    ratio: usize,
    n_tokens: usize,
    n_seqs: usize,
    past: usize,
    weighted: bool,
    class: Class,
    n: usize,
}

impl Step {
    fn builder(self, builder: Builder) -> (Builder, IndexScore) {
        let mut rng = Rng::new(&format!("index_score {self:?}"), 0, 89);
        let mut lens: Vec<usize> = (0..self.n_seqs)
            .map(|s| (self.past + 53 * s) % self.past.max(300))
            .collect();
        let (mut seq_rows, mut positions) = (Vec::new(), Vec::new());
        for t in 0..self.n_tokens {
            if self.n_tokens > 2 && t == self.n_tokens - 1 {
                seq_rows.push([-1, self.n_seqs as i32][self.n % 2]);
                positions.push([0, 100, -1][self.n % 3]);
                continue;
            }
            // In runs, or in turns: then no two neighbours share a sequence.
            let s = if self.n.is_multiple_of(3) {
                t % self.n_seqs
            } else {
                t * self.n_seqs / self.n_tokens
            };
            seq_rows.push(s as i32);
            positions.push(lens[s] as i32);
            lens[s] += 1;
        }
        let page_blocks = PAGE / self.ratio;
        let max_pages = lens.iter().map(|len| len.div_ceil(PAGE)).max().unwrap_or(0) + 1;
        let n_pages = lens.iter().map(|len| len.div_ceil(PAGE)).sum::<usize>() + 2;
        let mut order = rng.permutation(n_pages).into_iter();
        let mut table = Vec::new();
        let mut live = vec![false; n_pages * page_blocks];
        for &len in &lens {
            for p in 0..max_pages {
                // Beyond the end garbage; now and then a page within is gone.
                if p * PAGE >= len || (self.n % 7 == 5 && p == 1) {
                    table.push([-1, 1 << 20, -77, n_pages as i32][rng.below(4)]);
                    continue;
                }
                let page = order.next().expect("there are enough pages");
                table.push(page as i32);
                for b in (0..page_blocks).filter(|b| p * PAGE + (b + 1) * self.ratio <= len) {
                    live[page * page_blocks + b] = true;
                }
            }
        }
        let longest = lens.iter().copied().max().unwrap_or(0).max(1);
        let heads = self.n_heads + usize::from(self.n % 4 == 1);
        let q = TensorDesc::f32([self.n_tokens, heads, self.dim])
            .narrow(1, heads - self.n_heads, self.n_heads)
            .expect("the heads exist");
        let mut builder = builder
            .param("type", self.dtype)
            .param("n_heads", self.n_heads)
            .param("dim", self.dim)
            .param("ratio", self.ratio)
            .param("n_tokens", self.n_tokens)
            .param("n_seqs", self.n_seqs)
            .param("past", self.past)
            .param("weighted", self.weighted)
            .param("class", self.class)
            .param("n", self.n)
            .variant(format!(
                "{}{}",
                self.dtype,
                if self.weighted { ", weights" } else { "" }
            ))
            .input("q", q, Fill::Floats(self.class))
            .input(
                "keys",
                TensorDesc::block_pages(self.dtype, n_pages, 1, self.ratio, self.dim),
                Fill::Pages(Class::N, live.into()),
            )
            .input(
                "page_table",
                TensorDesc::i32([self.n_seqs, max_pages]),
                Fill::Ints(table.into()),
            )
            .input(
                "seq_rows",
                TensorDesc::i32([self.n_tokens]),
                Fill::Ints(seq_rows.into()),
            )
            .input(
                "positions",
                TensorDesc::i32([self.n_tokens]),
                Fill::Ints(positions.into()),
            );
        if self.weighted {
            let w = TensorDesc::f32([self.n_tokens, heads])
                .narrow(1, heads - self.n_heads, self.n_heads)
                .expect("the heads exist");
            builder = builder.input("w", w, Fill::Floats(Class::N));
        }
        let op = IndexScore {
            scale: (self.dim as f32).sqrt().recip(),
            ratio: self.ratio,
            // Buckets are larger than what is there; some are not a whole number of blocks.
            max_len: longest.next_power_of_two().max(64) - self.n % 3,
        };
        (builder, op)
    }
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let types = [
        DType::F16,
        DType::F32,
        DType::Q8_0,
        DType::BF16,
        DType::Q4_0,
        DType::Q5_1,
    ];
    for (a, dtype) in types.into_iter().enumerate() {
        for i in 0..50 {
            let turn = i + 3 * a;
            let n_tokens = [1, 2, 1, 5, 16, 3, 33, 1, 19, 8][i % 10];
            let step = Step {
                dtype,
                n_heads: [4, 1, 4, 32, 3, 64, 8][turn % 7],
                dim: [128, 64, 128, 32, 40][turn % 5],
                ratio: [4, 1, 4, 16, 64, 2][(i / 10 + turn) % 6],
                n_tokens,
                n_seqs: [1, 2, 1, 3][(i + a) % 4].min(n_tokens),
                past: [0, 3, 60, 63, 64, 200, 500][(2 * i + a) % 7],
                weighted: turn % 3 == 1,
                class: [Class::N, Class::U, Class::H, Class::Z][turn % 4],
                n: i,
            };
            let (builder, op) = step.builder(Builder::new(IndexScore::NAME));
            cases.push(
                builder
                    .tag_if(i == 4 && a < 3, Tag::Quick)
                    .tag_if([6, 8].contains(&i), Tag::Reduced)
                    .build(op),
            );
        }
    }
    let mut cases = thin(cases, 6, 60);
    for (dtype, n_heads, ratio, n_tokens, n_ctx) in [
        (DType::F16, 4, 4, 1, 32_768),
        (DType::F16, 4, 4, 1, 131_072),
        (DType::F16, 4, 4, 16, 32_768),
        (DType::Q8_0, 64, 1, 1, 8192),
    ] {
        cases.push(bench(dtype, n_heads, ratio, n_tokens, n_ctx));
    }
    cases
}

/// Tokens at the end of a sequence of `n_ctx`.
fn bench(dtype: DType, n_heads: usize, ratio: usize, n_tokens: usize, n_ctx: usize) -> Case {
    let n_pages = n_ctx / PAGE;
    let table: Vec<i32> = (0..n_pages as i32).rev().collect();
    let positions: Vec<i32> = (n_ctx - n_tokens..n_ctx).map(|p| p as i32).collect();
    let live: Arc<[bool]> = vec![true; n_ctx / ratio].into();
    Builder::new(IndexScore::NAME)
        .param("bench", n_ctx)
        .param("type", dtype)
        .param("n_heads", n_heads)
        .param("ratio", ratio)
        .param("n_tokens", n_tokens)
        .variant(dtype.name())
        .input(
            "q",
            TensorDesc::f32([n_tokens, n_heads, 128]),
            Fill::Floats(Class::N),
        )
        .input(
            "keys",
            TensorDesc::block_pages(dtype, n_pages, 1, ratio, 128),
            Fill::Pages(Class::U, live),
        )
        .input(
            "page_table",
            TensorDesc::i32([1, n_pages]),
            Fill::Ints(table.into()),
        )
        .input("seq_rows", TensorDesc::i32([n_tokens]), Fill::Range(0, 0))
        .input(
            "positions",
            TensorDesc::i32([n_tokens]),
            Fill::Ints(positions.into()),
        )
        .tag(Tag::Bench)
        .build(IndexScore {
            scale: 128_f32.sqrt().recip(),
            ratio,
            max_len: n_ctx,
        })
}

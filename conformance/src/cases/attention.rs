//! Cases of `attention`: every pair of cache types with decode, verify and prefill steps over ragged sequences.

use std::sync::Arc;

use gemel_core::dtype::CACHE_TYPES;
use gemel_core::ops::attention::Attention;
use gemel_core::{DType, PAGE, TensorDesc};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// Query heads per KV head.
const GROUPS: [usize; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 64, 128];

/// Lengths of a sequence before the step: page borders and their neighbours.
const PASTS: [usize; 9] = [0, 1, 5, 31, 62, 63, 64, 100, 130];

/// A step over a paged cache.
#[derive(Clone, Copy, Debug)]
struct Step {
    k: DType,
    v: DType,
    dk: usize,
    dv: usize,
    /// Values are the first `dv` channels of the keys.
    shared: bool,
    group: usize,
    n_kv_heads: usize,
    /// Tokens of the step.
    n_tokens: usize,
    n_seqs: usize,
    past: usize,
    window: usize,
    softcap: f32,
    class: Class,
    /// Number that only makes the id and the page order unique.
    n: usize,
}

impl Step {
    fn case(self) -> Draft {
        let key = format!("attention {self:?}");
        let mut rng = Rng::new(&key, 0, 95);
        // Tokens are dealt to sequences in runs; lengths differ by sequence.
        let pasts: Vec<usize> = (0..self.n_seqs)
            .map(|s| (self.past + 37 * s) % 180)
            .collect();
        let mut lens = pasts.clone();
        let (mut seq_rows, mut positions) = (Vec::new(), Vec::new());
        for t in 0..self.n_tokens {
            // The last token of a larger step is padding, one is out of range.
            if self.n_tokens > 2 && t == self.n_tokens - 1 {
                seq_rows.push([-1, self.n_seqs as i32][self.n % 2]);
                positions.push([0, 3, -1][self.n % 3]);
                continue;
            }
            let s = t * self.n_seqs / self.n_tokens;
            seq_rows.push(s as i32);
            positions.push(lens[s] as i32);
            lens[s] += 1;
        }
        // A token that sees nothing.
        if self.n_tokens > 3 && self.n.is_multiple_of(5) {
            positions[1] = -1;
        }
        let max_pages = lens
            .iter()
            .map(|len| len.div_ceil(PAGE))
            .max()
            .unwrap_or(0)
            .max(1)
            + 1;
        let needed: usize = lens.iter().map(|len| len.div_ceil(PAGE)).sum();
        let n_pages = needed + 2;
        // Pages in random physical order; the unused tail of the table is garbage.
        let order = rng.permutation(n_pages);
        let mut order = order.into_iter();
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
                for i in 0..PAGE.min(len - p * PAGE) {
                    live[page * PAGE + i] = true;
                }
            }
        }
        let live: Arc<[bool]> = live.into();
        let n_heads = self.n_kv_heads * self.group;
        let strided = self.n % 4 == 1;
        let heads = if strided { n_heads + 1 } else { n_heads };
        let q = TensorDesc::f32([self.n_tokens, heads, self.dk])
            .narrow(1, heads - n_heads, n_heads)
            .expect("the heads exist");
        let longest = lens.iter().copied().max().unwrap_or(0).max(1);
        let op = Attention {
            scale: (self.dk as f32).sqrt().recip(),
            softcap: self.softcap,
            window: self.window,
            max_len: longest.next_power_of_two().max(64),
            shared_kv: self.shared.then_some(self.dv),
        };
        let mut builder = Builder::new(Attention::NAME)
            .param("k", self.k)
            .param("v", self.v)
            .param("dk", self.dk)
            .param("dv", self.dv)
            .param("n_kv_heads", self.n_kv_heads)
            .param("group", self.group)
            .param("n_tokens", self.n_tokens)
            .param("n_seqs", self.n_seqs)
            .param("past", self.past)
            .param("window", self.window)
            .param("softcap", self.softcap)
            .param("class", self.class)
            .param("n", self.n)
            .variant(format!("k {} v {}", self.k, self.v))
            .input("q", q, Fill::Floats(self.class))
            .input(
                "k",
                TensorDesc::pages(self.k, n_pages, self.n_kv_heads, self.dk),
                Fill::Pages(Class::N, live.clone()),
            );
        if self.shared {
            builder = builder.param("shared", 1);
        } else {
            builder = builder.input(
                "v",
                TensorDesc::pages(self.v, n_pages, self.n_kv_heads, self.dv),
                Fill::Pages(self.class, live),
            );
        }
        let builder = builder
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
        Draft { builder, op }
    }
}

/// A case that may still get tags.
struct Draft {
    builder: Builder,
    op: Attention,
}

impl Draft {
    fn build(self, tag: impl FnOnce(Builder) -> Builder) -> Case {
        tag(self.builder).build(self.op)
    }
}

/// The tokens of the `i`-th step of a pair of types: a third decodes, all verify sizes, then prefill.
fn n_tokens(i: usize) -> usize {
    match i {
        0..30 => 1,
        30..65 => 2 + (i - 30) % 7,
        _ => [9, 16, 17, 33][(i - 65) % 4],
    }
}

/// Steps of each pair of cache types.
const STEPS: usize = 84;

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (a, &k) in CACHE_TYPES.iter().enumerate() {
        for (b, &v) in CACHE_TYPES.iter().enumerate() {
            let turn = 8 * a + b;
            for i in 0..STEPS {
                let n_tokens = n_tokens(i);
                let group = GROUPS[(i + turn) % GROUPS.len()];
                // Few heads with many tokens, so that a case stays cheap. All groups occur with every number of tokens.
                let group = if n_tokens > 8 {
                    group.min(8)
                } else if n_tokens > 1 {
                    group.min(24)
                } else {
                    group
                };
                let step = Step {
                    k,
                    v,
                    dk: [64, 40, 48, 64][(i + turn) % 4],
                    dv: [64, 64, 40, 80, 48, 128][(i + b) % 6],
                    shared: false,
                    group,
                    n_kv_heads: if n_tokens * group > 16 {
                        1
                    } else {
                        1 + (i + turn) % 3
                    },
                    n_tokens,
                    n_seqs: [1, 1, 2, 3][(i + a) % 4].min(n_tokens),
                    past: PASTS[(i * 2 + turn) % PASTS.len()],
                    window: [0, 0, 1, 7, 64, 100][(i + turn / 3) % 6],
                    softcap: if (i + turn) % 5 == 3 { 30.0 } else { 0.0 },
                    class: [Class::N, Class::U, Class::N, Class::H, Class::Z][(i + turn) % 5],
                    n: i,
                };
                cases.push(step.case().build(|builder| {
                    builder
                        .tag_if([3, 40, 70].contains(&i), Tag::Reduced)
                        .tag_if(
                            k == v
                                && [44, 71].contains(&i)
                                && [DType::F32, DType::F16, DType::Q8_0, DType::Q4_0].contains(&k),
                            Tag::Quick,
                        )
                }));
            }
        }
    }
    // All head sizes, with the types that models use most.
    let sizes = [
        (72, 72),
        (80, 80),
        (96, 96),
        (112, 112),
        (128, 128),
        (160, 160),
        (192, 128),
        (192, 192),
        (256, 256),
        (320, 320),
        (512, 512),
        (576, 512),
    ];
    for (i, (dk, dv)) in sizes.into_iter().enumerate() {
        for (j, (k, v)) in [
            (DType::F16, DType::F16),
            (DType::Q8_0, DType::Q8_0),
            (DType::F32, DType::F32),
            (DType::Q8_0, DType::Q4_0),
        ]
        .into_iter()
        .enumerate()
        {
            if j > 1 && i % 3 != 0 {
                // Other types compile the same loops: every third size is enough.
                continue;
            }
            for (l, n_tokens) in [1, 4, 17].into_iter().enumerate() {
                let step = Step {
                    k,
                    v,
                    dk,
                    dv,
                    shared: false,
                    group: [1, 4, 8, 2][(i + l) % 4],
                    n_kv_heads: 1,
                    n_tokens,
                    n_seqs: 1 + usize::from(n_tokens > 3),
                    past: 90,
                    window: [0, 33][(j + l) % 2],
                    softcap: 0.0,
                    class: Class::N,
                    n: 1000 + 3 * j + l,
                };
                cases.push(
                    step.case()
                        .build(|builder| builder.tag_if(dk == 128 && j == 0, Tag::Reduced)),
                );
            }
        }
    }
    // Latent attention: the values are the first channels of the keys.
    for (i, &k) in CACHE_TYPES.iter().enumerate() {
        for (j, (dk, dv, group)) in [(576, 512, 128), (64, 32, 4), (96, 60, 3)]
            .into_iter()
            .enumerate()
        {
            for (l, n_tokens) in [1, 4, 17].into_iter().enumerate() {
                if dk > 512 && l > 0 && ![DType::F16, DType::Q8_0].contains(&k) {
                    // Other types compile the same loops.
                    continue;
                }
                let step = Step {
                    k,
                    v: k,
                    dk,
                    dv,
                    shared: true,
                    group: if l == 0 { group } else { group.min(8) },
                    n_kv_heads: 1,
                    n_tokens,
                    n_seqs: 1 + usize::from(n_tokens > 3),
                    past: [90, 63, 130][(i + j + l) % 3],
                    window: 0,
                    softcap: 0.0,
                    class: Class::N,
                    n: 2000 + 9 * j + l,
                };
                cases.push(step.case().build(|builder| {
                    builder
                        .tag_if(dk == 64 && k == DType::Q8_0, Tag::Reduced)
                        .tag_if(dk == 96 && k == DType::F16 && l == 1, Tag::Quick)
                }));
            }
        }
    }
    // Long enough that a token's cells are split over blocks.
    for (i, (k, v)) in [
        (DType::F16, DType::F16),
        (DType::F32, DType::F32),
        (DType::Q8_0, DType::Q8_0),
        (DType::Q8_0, DType::Q5_1),
        (DType::Q4_0, DType::BF16),
    ]
    .into_iter()
    .enumerate()
    {
        for (j, (past, window)) in [(1000, 0), (700, 0), (1500, 600), (2047, 0)]
            .into_iter()
            .enumerate()
        {
            for n_tokens in [1, 3, 8] {
                let step = Long {
                    k,
                    v,
                    past,
                    window,
                    n_tokens,
                    group: [1, 4, 6][(i + j) % 3],
                };
                cases.push(step.case(i == 0 && j == 0));
            }
        }
    }
    // So many cells a part that the order of sums shows, and a larger step that is split.
    for (past, n_tokens, group) in [(9_000, 1, 1), (1_000, 20, 1)] {
        let step = Long {
            k: DType::F16,
            v: DType::F16,
            past,
            window: 0,
            n_tokens,
            group,
        };
        cases.push(step.case(n_tokens > 1));
    }
    let mut cases = thin(cases, 24, 800);
    for (k, v) in [(DType::F16, DType::F16), (DType::Q8_0, DType::Q8_0)] {
        for n_tokens in [1, 4] {
            for len in [1024, 4096] {
                let step = Long {
                    k,
                    v,
                    past: len - n_tokens,
                    window: 0,
                    n_tokens,
                    group: 4,
                };
                cases.push(step.bench(len));
            }
        }
    }
    cases
}

/// One sequence, one or two thousand cells.
#[derive(Clone, Copy, Debug)]
struct Long {
    k: DType,
    v: DType,
    past: usize,
    window: usize,
    n_tokens: usize,
    group: usize,
}

impl Long {
    fn builder(self, builder: Builder, dim: usize, n_kv_heads: usize) -> (Builder, Attention) {
        let len = self.past + self.n_tokens;
        let n_pages = len.div_ceil(PAGE);
        let mut rng = Rng::new(&format!("{self:?}"), 0, 94);
        let order = rng.permutation(n_pages + 1);
        let mut live = vec![false; (n_pages + 1) * PAGE];
        for cell in 0..len {
            live[order[cell / PAGE] * PAGE + cell % PAGE] = true;
        }
        let live: Arc<[bool]> = live.into();
        let table: Vec<i32> = order[..n_pages].iter().map(|&page| page as i32).collect();
        let positions: Vec<i32> = (self.past..len).map(|p| p as i32).collect();
        let builder = builder
            .param("k", self.k)
            .param("v", self.v)
            .param("past", self.past)
            .param("window", self.window)
            .param("n_tokens", self.n_tokens)
            .param("group", self.group)
            .variant(format!("k {} v {}", self.k, self.v))
            .input(
                "q",
                TensorDesc::f32([self.n_tokens, n_kv_heads * self.group, dim]),
                Fill::Floats(Class::N),
            )
            .input(
                "k",
                TensorDesc::pages(self.k, n_pages + 1, n_kv_heads, dim),
                Fill::Pages(Class::N, live.clone()),
            )
            .input(
                "v",
                TensorDesc::pages(self.v, n_pages + 1, n_kv_heads, dim),
                Fill::Pages(Class::N, live),
            )
            .input(
                "page_table",
                TensorDesc::i32([1, n_pages]),
                Fill::Ints(table.into()),
            )
            .input(
                "seq_rows",
                TensorDesc::i32([self.n_tokens]),
                Fill::Range(0, 0),
            )
            .input(
                "positions",
                TensorDesc::i32([self.n_tokens]),
                Fill::Ints(positions.into()),
            );
        let op = Attention {
            scale: (dim as f32).sqrt().recip(),
            softcap: 0.0,
            window: self.window,
            max_len: len.next_power_of_two(),
            shared_kv: None,
        };
        (builder, op)
    }

    fn case(self, reduced: bool) -> Case {
        let (builder, op) = self.builder(Builder::new(Attention::NAME).param("long", 1), 64, 1);
        builder.tag_if(reduced, Tag::Reduced).build(op)
    }

    fn bench(self, len: usize) -> Case {
        let (builder, op) = self.builder(Builder::new(Attention::NAME).param("bench", len), 128, 2);
        builder.tag(Tag::Bench).build(op)
    }
}

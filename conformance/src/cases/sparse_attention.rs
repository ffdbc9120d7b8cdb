//! Cases of `sparse_attention`: every pair of cache types with decode, verify and prefill steps over ragged sequences.
//! Only cells that a token selects hold values; whatever else a kernel reads is poison.

use std::sync::Arc;

use gemel_core::dtype::CACHE_TYPES;
use gemel_core::ops::sparse_attention::SparseAttention;
use gemel_core::{DType, PAGE, TensorDesc};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// Query heads per KV head.
const GROUPS: [usize; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 24, 64, 128];

/// The types that models use most.
const COMMON: [DType; 4] = [DType::F32, DType::F16, DType::Q8_0, DType::Q4_0];

/// What the lists of a step look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lists {
    /// Some visible blocks in ascending order, then -1.
    Canonical,
    /// Any order, with repetitions, -1 between, and entries that name nothing.
    Wild,
    /// All visible blocks, as far as the list reaches.
    All,
    /// Nothing.
    Empty,
}

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
    n_tokens: usize,
    n_seqs: usize,
    past: usize,
    ratio: usize,
    tail: bool,
    n_entries: usize,
    lists: Lists,
    softcap: f32,
    class: Class,
    /// Number that only makes the id and the page order unique.
    n: usize,
}

impl Step {
    /// The entries of one token's list.
    fn list(&self, rng: &mut Rng, position: i32) -> Vec<i32> {
        let len = (position + 1).max(0) as usize;
        let visible = if self.tail {
            len / self.ratio
        } else {
            len.div_ceil(self.ratio)
        };
        let mut entries: Vec<i32> = match self.lists {
            Lists::Empty => Vec::new(),
            Lists::All => (0..visible.min(self.n_entries) as i32).collect(),
            Lists::Canonical => {
                let n = (self.n_entries - rng.below(2)).min(visible);
                let mut some = rng.permutation(visible);
                some.truncate(n);
                some.sort_unstable();
                some.into_iter().map(|e| e as i32).collect()
            }
            Lists::Wild => (0..self.n_entries)
                .map(|_| match rng.below(8) {
                    0 => -1,
                    1 => [-7, i32::MIN, i32::MAX, 1 << 26][rng.below(4)],
                    // The incomplete block, or one further on.
                    2 => (visible + rng.below(3)) as i32,
                    _ => rng.below(visible.max(1)) as i32,
                })
                .collect(),
        };
        entries.resize(self.n_entries, -1);
        entries
    }

    fn builder(self, builder: Builder) -> (Builder, SparseAttention) {
        let key = format!("sparse_attention {self:?}");
        let mut rng = Rng::new(&key, 0, 93);
        // Tokens are dealt to sequences in runs; lengths differ by sequence.
        let mut lens: Vec<usize> = (0..self.n_seqs)
            .map(|s| (self.past + 37 * s) % self.past.max(180))
            .collect();
        let (mut seq_rows, mut positions) = (Vec::new(), Vec::new());
        for t in 0..self.n_tokens {
            // The last token of a larger step is padding, one is out of range.
            if self.n_tokens > 2 && t == self.n_tokens - 1 && !self.n.is_multiple_of(4) {
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
        let n_groups = if self.n.is_multiple_of(3) {
            self.n_kv_heads
        } else {
            1
        };
        let lists: Vec<Vec<i32>> = positions
            .iter()
            .flat_map(|&position| vec![position; n_groups])
            .map(|position| self.list(&mut rng, position))
            .collect();
        let max_pages = lens
            .iter()
            .map(|len| len.div_ceil(PAGE))
            .max()
            .unwrap_or(0)
            .max(1)
            + 1;
        let n_pages = lens.iter().map(|len| len.div_ceil(PAGE)).sum::<usize>() + 2;
        // Pages in random physical order; the unused tail of the table is garbage.
        let mut order = rng.permutation(n_pages).into_iter();
        let mut table = Vec::new();
        for &len in &lens {
            for p in 0..max_pages {
                table.push(if p * PAGE < len {
                    order.next().expect("there are enough pages") as i32
                } else {
                    [-1, 1 << 20, -77, n_pages as i32][rng.below(4)]
                });
            }
        }
        // Only what some token selects holds values.
        let mut live = vec![false; n_pages * PAGE];
        for (i, list) in lists.iter().enumerate() {
            let (seq, position) = (seq_rows[i / n_groups], positions[i / n_groups]);
            if seq < 0 || seq as usize >= self.n_seqs || position < 0 {
                continue;
            }
            let len = position as usize + 1;
            let tail = self.tail.then_some((len / self.ratio) as i32);
            for e in list.iter().copied().chain(tail) {
                let Ok(e) = usize::try_from(e) else {
                    continue;
                };
                for j in (e * self.ratio..(e + 1) * self.ratio).filter(|&j| j < len) {
                    let page = table[seq as usize * max_pages + j / PAGE] as usize;
                    live[page * PAGE + j % PAGE] = true;
                }
            }
        }
        let live: Arc<[bool]> = live.into();
        let n_heads = self.n_kv_heads * self.group;
        let heads = n_heads + usize::from(self.n % 4 == 1);
        let q = TensorDesc::f32([self.n_tokens, heads, self.dk])
            .narrow(1, heads - n_heads, n_heads)
            .expect("the heads exist");
        let wide = self.n_entries + self.n % 2;
        let selection = TensorDesc::i32([self.n_tokens, n_groups, wide])
            .narrow(2, wide - self.n_entries, self.n_entries)
            .expect("the entries exist");
        let mut builder = builder
            .param("k", self.k)
            .param("v", self.v)
            .param("dk", self.dk)
            .param("dv", self.dv)
            .param("n_kv_heads", self.n_kv_heads)
            .param("group", self.group)
            .param("n_tokens", self.n_tokens)
            .param("n_seqs", self.n_seqs)
            .param("past", self.past)
            .param("ratio", self.ratio)
            .param("tail", self.tail)
            .param("k_entries", self.n_entries)
            .param("lists", format!("{:?}", self.lists).to_lowercase())
            .param("softcap", self.softcap)
            .param("class", self.class)
            .param("n", self.n)
            .variant(if self.shared {
                format!("k {}, v of k", self.k)
            } else {
                format!("k {} v {}", self.k, self.v)
            })
            .input("q", q, Fill::Floats(self.class))
            .input(
                "k",
                TensorDesc::pages(self.k, n_pages, self.n_kv_heads, self.dk),
                Fill::Pages(Class::N, live.clone()),
            );
        if !self.shared {
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
            )
            .input("selection", selection, Fill::Ints(lists.concat().into()));
        let op = SparseAttention {
            scale: (self.dk as f32).sqrt().recip(),
            softcap: self.softcap,
            ratio: self.ratio,
            tail: self.tail,
            shared_kv: self.shared.then_some(self.dv),
        };
        (builder, op)
    }

    fn case(self, tag: impl FnOnce(Builder) -> Builder) -> Case {
        let (builder, op) = self.builder(Builder::new(SparseAttention::NAME));
        tag(builder).build(op)
    }
}

/// Steps of each pair of cache types.
const STEPS: usize = 14;

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (a, &k) in CACHE_TYPES.iter().enumerate() {
        for (b, &v) in CACHE_TYPES.iter().enumerate() {
            for i in 0..STEPS {
                let turn = i + 5 * a + 3 * b;
                // A third decodes, all sizes of a verify step occur, two chunks of a prompt.
                let n_tokens = match i {
                    0..5 => 1,
                    5..12 => 2 + (turn + b) % 15,
                    _ => [17, 33][i % 2],
                };
                // Many heads a block of threads are another kernel for each pair: the common types are enough.
                let is_common = k == v && COMMON.contains(&k);
                let group = if is_common {
                    GROUPS[turn % GROUPS.len()]
                } else {
                    1 + turn % 8
                };
                let group = match n_tokens {
                    1 => group,
                    2..=8 => group.min(24),
                    _ => group.min(13),
                };
                let step = Step {
                    k,
                    v,
                    dk: [64, 40, 64, 48][turn % 4],
                    dv: [64, 64, 40, 128][(i + b) % 4],
                    shared: false,
                    group,
                    n_kv_heads: if n_tokens * group > 24 {
                        1
                    } else {
                        1 + turn % 3
                    },
                    n_tokens,
                    n_seqs: [1, 1, 2, 3][(i + a) % 4].min(n_tokens),
                    past: [0, 1, 6, 62, 63, 64, 100, 300][(turn + b) % 8],
                    ratio: [4, 1, 4, 2, 8, 4, 64][(i + a + b) % 7],
                    tail: turn % 3 != 2,
                    n_entries: [1, 3, 8, 17, 40][(turn + a) % 5],
                    lists: [
                        Lists::Canonical,
                        Lists::Wild,
                        Lists::All,
                        Lists::Canonical,
                        Lists::Wild,
                        Lists::Empty,
                    ][turn % 6],
                    softcap: if turn % 5 == 3 { 30.0 } else { 0.0 },
                    class: [Class::N, Class::U, Class::N, Class::H, Class::Z][turn % 5],
                    n: i,
                };
                let quick = is_common && i == 9;
                cases.push(step.case(|builder| {
                    builder
                        .tag_if(i == 7 && (a + b) % 2 == 0, Tag::Reduced)
                        .tag_if(quick, Tag::Quick)
                }));
            }
        }
    }
    // The shapes of models: head sizes, groups of 12 and of latent attention, where values are part of the keys.
    let shapes = [
        (128, 128, false, 2, 4),
        (128, 128, false, 1, 7),
        (256, 256, false, 2, 12),
        (192, 128, false, 1, 16),
        (320, 256, false, 1, 8),
        (512, 512, false, 1, 2),
        (576, 512, true, 1, 16),
        (576, 512, true, 1, 128),
        (72, 64, true, 2, 3),
    ];
    for (i, (dk, dv, shared, n_kv_heads, group)) in shapes.into_iter().enumerate() {
        for (j, (k, v)) in [
            (DType::F16, DType::F16),
            (DType::Q8_0, DType::Q8_0),
            (DType::F32, DType::F32),
            (DType::Q8_0, DType::Q4_0),
        ]
        .into_iter()
        .enumerate()
        {
            if (j > 1 && i % 3 != 0) || (shared && k != v) {
                continue;
            }
            for (l, n_tokens) in [1, 4, 17].into_iter().enumerate() {
                let step = Step {
                    k,
                    v,
                    dk,
                    dv,
                    shared,
                    group: if n_tokens > 4 { group.min(16) } else { group },
                    n_kv_heads,
                    n_tokens,
                    n_seqs: 1 + usize::from(n_tokens > 3),
                    past: 150,
                    ratio: if shared { 1 } else { 4 },
                    tail: !shared,
                    n_entries: if shared { 50 } else { 12 },
                    lists: [Lists::Canonical, Lists::Wild, Lists::All][(i + l) % 3],
                    softcap: 0.0,
                    class: Class::N,
                    n: 1000 + 3 * j + l,
                };
                cases.push(step.case(|builder| builder.tag_if(dk == 256 && j == 1, Tag::Reduced)));
            }
        }
    }
    // Large batches, and lists long enough to be split over blocks of threads.
    for (i, (k, v)) in [
        (DType::F16, DType::F16),
        (DType::Q8_0, DType::Q8_0),
        (DType::F32, DType::F32),
        (DType::Q8_0, DType::Q5_1),
        (DType::Q4_0, DType::BF16),
    ]
    .into_iter()
    .enumerate()
    {
        for (j, (n_tokens, n_seqs, past, n_entries)) in [
            (64, 64, 90, 6),
            (67, 16, 120, 9),
            (1, 1, 2500, 512),
            (5, 2, 1300, 160),
            (16, 1, 700, 130),
        ]
        .into_iter()
        .enumerate()
        {
            let step = Step {
                k,
                v,
                dk: 64,
                dv: 64,
                shared: false,
                group: [1, 4, 12, 6, 3][(i + j) % 5],
                n_kv_heads: 1,
                n_tokens,
                n_seqs,
                past,
                ratio: 4,
                tail: true,
                n_entries,
                lists: if j == 3 {
                    Lists::Wild
                } else {
                    Lists::Canonical
                },
                softcap: 0.0,
                class: Class::N,
                n: 2000,
            };
            cases.push(step.case(|builder| builder.tag_if(i < 2 && j < 4, Tag::Reduced)));
        }
    }
    let mut cases = thin(cases, 40, 800);
    // Every number of query heads per KV head up to 16.
    for group in 1..=16 {
        let (k, v) = [(DType::F16, DType::F16), (DType::Q8_0, DType::Q8_0)][group % 2];
        let step = Step {
            k,
            v,
            dk: 64,
            dv: 64,
            shared: false,
            group,
            n_kv_heads: 2,
            n_tokens: 1,
            n_seqs: 1,
            past: 150,
            ratio: 4,
            tail: true,
            n_entries: 20,
            lists: Lists::Canonical,
            softcap: 0.0,
            class: Class::N,
            n: 3000,
        };
        cases.push(step.case(|builder| builder));
    }
    // 2,048 selected tokens of a model with 24 heads of 256 channels over 2, out of ever more.
    for (k, v) in [(DType::F16, DType::F16), (DType::Q8_0, DType::Q8_0)] {
        for n_tokens in [1, 4] {
            for n_ctx in [8192, 524_288] {
                cases.push(bench(k, v, n_tokens, n_ctx));
            }
        }
    }
    cases
}

/// A step at the end of a sequence of `n_ctx` tokens, with 512 blocks of 4 spread over it. Only pages that hold
/// selected blocks exist: the table is as long as it would be, and so are the distances between cells.
fn bench(k: DType, v: DType, n_tokens: usize, n_ctx: usize) -> Case {
    const RATIO: usize = 4;
    const ENTRIES: usize = 512;
    let mut rng = Rng::new("sparse_attention bench", n_ctx as u64, 92);
    let positions: Vec<i32> = (n_ctx - n_tokens..n_ctx).map(|p| p as i32).collect();
    let visible = (n_ctx - n_tokens + 1) / RATIO;
    // Tokens of a step select nearly the same.
    let lists: Vec<Vec<i32>> = (0..n_tokens)
        .map(|_| {
            let mut list: Vec<i32> = (0..ENTRIES)
                .map(|i| (i * visible / ENTRIES + rng.below(2)) as i32)
                .collect();
            list.sort_unstable();
            list
        })
        .collect();
    let max_pages = n_ctx / PAGE;
    let mut table = vec![-1; max_pages];
    let mut n_pages = 0;
    let ordinals = lists.iter().flatten().map(|&e| e as usize * RATIO);
    for j in ordinals.chain(positions.iter().map(|&p| p as usize)) {
        if table[j / PAGE] < 0 {
            table[j / PAGE] = n_pages;
            n_pages += 1;
        }
    }
    let n_pages = n_pages as usize;
    let live: Arc<[bool]> = vec![true; n_pages * PAGE].into();
    Builder::new(SparseAttention::NAME)
        .param("bench", n_ctx)
        .param("k", k)
        .param("v", v)
        .param("n_tokens", n_tokens)
        .variant(format!("k {k} v {v}"))
        .input(
            "q",
            TensorDesc::f32([n_tokens, 24, 256]),
            Fill::Floats(Class::N),
        )
        .input(
            "k",
            TensorDesc::pages(k, n_pages, 2, 256),
            Fill::Pages(Class::U, live.clone()),
        )
        .input(
            "v",
            TensorDesc::pages(v, n_pages, 2, 256),
            Fill::Pages(Class::U, live),
        )
        .input(
            "page_table",
            TensorDesc::i32([1, max_pages]),
            Fill::Ints(table.into()),
        )
        .input("seq_rows", TensorDesc::i32([n_tokens]), Fill::Range(0, 0))
        .input(
            "positions",
            TensorDesc::i32([n_tokens]),
            Fill::Ints(positions.into()),
        )
        .input(
            "selection",
            TensorDesc::i32([n_tokens, 1, ENTRIES]),
            Fill::Ints(lists.concat().into()),
        )
        .tag(Tag::Bench)
        .build(SparseAttention {
            scale: 1.0 / 16.0,
            softcap: 0.0,
            ratio: RATIO,
            tail: true,
            shared_kv: None,
        })
}

//! Cases of `moe_route`.
//!
//! Chosen experts are compared exactly. Where scores are computed (a bias, groups), rows are drawn until neighbouring
//! scores that decide anything are further apart than any device's rounding; a choice between closer ones would be
//! right either way. Without bias and groups logits decide, and ties are part of the cases.

use std::sync::Arc;

use gemel_core::TensorDesc;
use gemel_core::ops::moe_route::{Gate, MoeRoute};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// Experts and experts used, as models have them and around the limits.
const SIZES: [(usize, usize); 20] = [
    (1, 1),
    (2, 1),
    (3, 3),
    (4, 2),
    (6, 2),
    (8, 2),
    (8, 8),
    (16, 4),
    (31, 5),
    (33, 32),
    (60, 4),
    (64, 6),
    (127, 7),
    (128, 8),
    (160, 6),
    (256, 8),
    (384, 8),
    (512, 10),
    (1000, 31),
    (1024, 32),
];

/// Experts, groups, groups used, experts used.
const GROUPS: [(usize, usize, usize, usize); 9] = [
    (4, 2, 1, 2),
    (6, 3, 2, 3),
    (8, 8, 3, 3),
    (12, 4, 1, 3),
    (64, 8, 4, 6),
    (160, 8, 3, 6),
    (256, 8, 4, 8),
    (512, 64, 5, 10),
    (1000, 5, 2, 32),
];

/// Scores that decide something are at least this far apart, relative to numbers above 1.
const GAP: f64 = 2e-5;

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (g, gate) in Gate::ALL.into_iter().enumerate() {
        for (i, (n_experts, k)) in SIZES.into_iter().enumerate() {
            let op = MoeRoute {
                k,
                gate,
                groups: 1,
                groups_used: 1,
                normalize: (i + g) % 2 == 0,
                scale: [1.0, 2.5, 0.37][(i + g) % 3],
            };
            for (j, class) in [Class::N, Class::C, Class::H, Class::L, Class::X, Class::Z]
                .into_iter()
                .enumerate()
            {
                let n_tokens = [1, 3, 5, 2, 9, 17][(i + j + g) % 6];
                // Every third row is a view of a wider one.
                let wide = n_experts + [0, 5, 0][(i + j) % 3];
                let logits = TensorDesc::f32([n_tokens, wide])
                    .narrow(1, wide - n_experts, n_experts)
                    .expect("the columns exist");
                cases.push(
                    base(&op, n_experts, n_tokens)
                        .param("class", class)
                        .input("logits", logits, Fill::Floats(class))
                        .tag_if(i == 13 && j == 1, Tag::Quick)
                        .build(op.clone()),
                );
            }
            for n_tokens in [1, 4 + i % 5] {
                cases.push(clear_case(&op, n_experts, n_tokens, true, i == 15));
            }
        }
        for (i, (n_experts, groups, groups_used, k)) in GROUPS.into_iter().enumerate() {
            let op = MoeRoute {
                k,
                gate,
                groups,
                groups_used,
                normalize: i % 2 == 0,
                scale: [2.5, 1.0][(i + g) % 2],
            };
            for (j, n_tokens) in [1, 2, 7, 16].into_iter().enumerate() {
                for has_bias in [false, true] {
                    let quick = i == 6 && j == 2 && has_bias;
                    cases.push(clear_case(&op, n_experts, n_tokens, has_bias, quick));
                }
            }
        }
        cases.extend(unwanted(gate));
    }
    let mut cases = thin(cases, 6, 60);
    for (n_experts, k) in [(128, 8), (512, 10)] {
        for n_tokens in [1, 512] {
            let op = MoeRoute {
                k,
                gate: Gate::Softmax,
                groups: 1,
                groups_used: 1,
                normalize: true,
                scale: 1.0,
            };
            cases.push(
                base(&op, n_experts, n_tokens)
                    .param("bench", format!("{n_tokens}x{n_experts}"))
                    .input(
                        "logits",
                        TensorDesc::f32([n_tokens, n_experts]),
                        Fill::Floats(Class::N),
                    )
                    .tag(Tag::Bench)
                    .build(op),
            );
        }
    }
    cases
}

fn base(op: &MoeRoute, n_experts: usize, n_tokens: usize) -> Builder {
    let mut builder = Builder::new(MoeRoute::NAME)
        .param("gate", op.gate.name())
        .param("n_tokens", n_tokens)
        .param("experts", n_experts)
        .param("k", op.k)
        .variant(op.gate.name());
    if op.groups > 1 {
        builder = builder.param("groups", format!("{}of{}", op.groups_used, op.groups));
    }
    builder
}

/// Logits and a bias whose choice does not hang on rounding.
fn clear_case(
    op: &MoeRoute,
    n_experts: usize,
    n_tokens: usize,
    has_bias: bool,
    quick: bool,
) -> Case {
    let builder = base(op, n_experts, n_tokens).param("bias", u8::from(has_bias));
    let key = format!("{op} {n_experts} {n_tokens} {has_bias}");
    let mut rng = Rng::new(&key, 0, 77);
    // As wide as the scores themselves, of both signs.
    let bias: Vec<f32> = (0..n_experts)
        .map(|_| {
            if has_bias {
                rng.normal() as f32 * 0.5
            } else {
                0.0
            }
        })
        .collect();
    let mut logits = Vec::with_capacity(n_tokens * n_experts);
    for _ in 0..n_tokens {
        let row = loop {
            let row: Vec<f32> = (0..n_experts).map(|_| 2.0 * rng.normal() as f32).collect();
            if is_clear(op, &row, &bias) {
                break row;
            }
        };
        logits.extend(row);
    }
    let mut builder = builder.input(
        "logits",
        TensorDesc::f32([n_tokens, n_experts]),
        Fill::Values(logits.into()),
    );
    if has_bias {
        builder = builder.input(
            "bias",
            TensorDesc::f32([n_experts]),
            Fill::Values(bias.into()),
        );
    }
    builder.tag_if(quick, Tag::Quick).build(op.clone())
}

/// Whether the scores that decide keep their distance: those of the best groups, and of the best experts in them.
fn is_clear(op: &MoeRoute, row: &[f32], bias: &[f32]) -> bool {
    let sum: f64 = row.iter().map(|&l| f64::from(l).exp()).sum();
    let scores: Vec<f64> = (row.iter().zip(bias))
        .map(|(&l, &bias)| {
            let l = f64::from(l);
            let p = match op.gate {
                Gate::Softmax => l.exp() / sum,
                Gate::Sigmoid => 1.0 / (1.0 + (-l).exp()),
                Gate::SqrtSoftplus => l.exp().ln_1p().sqrt(),
                Gate::SoftmaxAfter => l,
            };
            p + f64::from(bias)
        })
        .collect();
    // The first `n` and the one behind them; returned in order.
    let apart = |mut scores: Vec<(f64, usize)>, n: usize| {
        scores.sort_by(|a, b| b.0.total_cmp(&a.0));
        let clear = (scores.windows(2).take(n))
            .all(|pair| pair[0].0 - pair[1].0 > GAP * pair[0].0.abs().max(1e-2));
        (clear, scores)
    };
    let size = row.len() / op.groups;
    let groups = (scores.chunks(size).enumerate())
        .map(|(g, group)| {
            let mut group = group.to_vec();
            group.sort_by(|a, b| b.total_cmp(a));
            (group.iter().take(2).sum(), g)
        })
        .collect();
    let (groups_clear, groups) = apart(groups, op.groups_used);
    let eligible = groups[..op.groups_used]
        .iter()
        .flat_map(|&(_, g)| g * size..(g + 1) * size)
        .map(|e| (scores[e], e))
        .collect();
    groups_clear && apart(eligible, op.k).0
}

/// Rows with experts that nobody wants: NaN and -inf here and there, and nothing else.
fn unwanted(gate: Gate) -> Vec<Case> {
    let (nan, inf) = (f32::NAN, f32::NEG_INFINITY);
    let mut cases = Vec::new();
    for (i, (n_experts, k)) in [(8, 2), (8, 8), (40, 5), (513, 10)].into_iter().enumerate() {
        let op = MoeRoute {
            k,
            gate,
            groups: 1,
            groups_used: 1,
            normalize: i % 2 == 0,
            scale: 1.0,
        };
        let mut rng = Rng::new(&format!("unwanted {op} {n_experts}"), 0, 78);
        let rows: Arc<[f32]> = (0..6 * n_experts)
            .map(|at| match (at / n_experts, at % n_experts) {
                (0, _) => nan,
                (1, e) => [inf, nan][e % 2],
                (2, e) if e != 3 => inf,
                (3, e) if e % 3 == 0 => nan,
                (4, e) if e % 2 == 0 => f32::MIN,
                _ => rng.normal() as f32,
            })
            .collect();
        cases.push(
            base(&op, n_experts, 6)
                .param("unwanted", i)
                .input(
                    "logits",
                    TensorDesc::f32([6, n_experts]),
                    Fill::Values(rows),
                )
                .tag_if(i == 2, Tag::Quick)
                .build(op),
        );
    }
    cases
}

//! Cases of `delta_rule_step`.

use std::sync::Arc;

use gemel_core::TensorDesc;
use gemel_core::ops::delta_rule_step::{DeltaRuleStep, HeadMap};

use super::runs::{N_SLOTS, Run, Step, steps};
use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// Heads and sizes of a layer: key heads, value heads, channels of a key, channels of a value.
pub(super) type Layer = (usize, usize, usize, usize);

/// How fast the states of a layer decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decays {
    /// From none to a reset.
    Mixed,
    /// Not at all.
    None,
    /// By e^-20 or so a token.
    Strong,
    /// As those of models: sums over a chunk of some units.
    Slow,
}

impl Decays {
    /// All of them.
    pub(super) const ALL: [Self; 4] = [Self::Mixed, Self::None, Self::Strong, Self::Slow];

    /// The word in ids.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::None => "none",
            Self::Strong => "strong",
            Self::Slow => "slow",
        }
    }
}

/// Logarithms of decays, and strengths.
fn gates(key: &str, n_tokens: usize, n_heads: usize, decays: Decays) -> Fill {
    let mut rng = Rng::new(key, 0, 92);
    let values: Vec<f32> = (0..n_tokens * 2 * n_heads)
        .map(|i| {
            let is_decay = (i / n_heads).is_multiple_of(2);
            match (is_decay, decays, rng.below(8)) {
                (_, Decays::Mixed, 0) | (true, Decays::None, _) => 0.0,
                (true, Decays::Mixed, 1) => -80.0,
                (true, Decays::Mixed, 2) => -1000.0,
                (true, Decays::Mixed, 3) => -5.0 * rng.unit() as f32,
                (true, Decays::Mixed, _) => -0.1 * rng.unit() as f32,
                (true, Decays::Strong, _) => -19.0 - 2.0 * rng.unit() as f32,
                (true, Decays::Slow, _) => -0.2 * rng.unit() as f32,
                (false, _, 1) => 1.0,
                (false, _, _) => rng.unit() as f32,
            }
        })
        .collect();
    Fill::Values(values.into())
}

/// A layer on a step: the operands that the forms of the rule share.
pub(super) fn layer(
    name: &'static str,
    step: &Step,
    (n_k_heads, n_v_heads, k_dim, v_dim): Layer,
    n_recorded: usize,
    class: Option<Class>,
    decays: Decays,
) -> Builder {
    let n_tokens = step.n_tokens();
    let record_len = n_k_heads * k_dim + n_v_heads * v_dim + n_v_heads;
    // Only what a run may read is a number; the rest of the memory must not matter.
    let mut states = vec![false; N_SLOTS * n_v_heads * v_dim];
    let mut records = vec![false; N_SLOTS * 2 * n_recorded];
    for run in &step.runs {
        let slot = run.slot as usize;
        if run.position == 0 || slot >= N_SLOTS {
            continue;
        }
        states[slot * n_v_heads * v_dim..][..n_v_heads * v_dim].fill(true);
        let n_commit = (run.commit[0] as usize).min(n_recorded);
        records[(slot * 2 + run.commit[1] as usize) * n_recorded..][..n_commit].fill(true);
    }
    let (states, records): (Arc<[bool]>, Arc<[bool]>) = (states.into(), records.into());
    let width = 2 * n_k_heads * k_dim + n_v_heads * v_dim;
    let key = format!("{name} {} {n_v_heads} {k_dim} {v_dim}", step.name);
    let values = if let Some(class) = class {
        Fill::Floats(class)
    } else {
        // Keys of a length near 1, as a normalisation before the op leaves them.
        let mut rng = Rng::new(&key, 0, 93);
        let unit = 0.8 / (k_dim as f64).sqrt();
        let values = (0..n_tokens * width).map(|_| (unit * rng.normal()) as f32);
        Fill::Values(values.collect())
    };
    let (runs, runs_fill) = step.table();
    let (commits, commits_fill) = step.commits();
    Builder::new(name)
        .input("qkv", TensorDesc::f32([n_tokens, width]), values)
        .input(
            "gates",
            TensorDesc::f32([n_tokens, 2, n_v_heads]),
            gates(&key, n_tokens, n_v_heads, decays),
        )
        .input("runs", runs, runs_fill)
        .input("commits", commits, commits_fill)
        .inout(
            "state",
            TensorDesc::f32([N_SLOTS, n_v_heads, v_dim, k_dim]),
            Fill::Rows(Class::N, states),
        )
        .inout(
            "record",
            TensorDesc::f32([N_SLOTS, 2, n_recorded, record_len]),
            Fill::Rows(Class::U, records),
        )
}

/// Makes the recorded decays ones: at most 0.
pub(super) fn with_decays(mut case: Case, n_v_heads: usize) -> Case {
    let record_len = case.inouts[1].desc.last();
    case.finish = Some(Arc::new(move |storages: &mut [Vec<u8>]| {
        let record = storages.last_mut().expect("the record is the last operand");
        for row in record.chunks_exact_mut(record_len * 4) {
            for word in row[(record_len - n_v_heads) * 4..].chunks_exact_mut(4) {
                // The sign bit of a little-endian float.
                word[3] |= 0x80;
            }
        }
    }));
    case
}

/// Layers: small and odd ones, ratios of 1, 2 and 3, and those of models.
pub(super) const LAYERS: [Layer; 11] = [
    (1, 1, 1, 1),
    (1, 3, 2, 5),
    (2, 6, 16, 16),
    (2, 4, 16, 24),
    (3, 3, 33, 31),
    (1, 1, 64, 7),
    (4, 12, 8, 9),
    (1, 2, 100, 33),
    (1, 3, 128, 128),
    (2, 4, 128, 32),
    (1, 1, 256, 17),
];

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, step) in steps().iter().enumerate() {
        for (j, sizes) in LAYERS.into_iter().enumerate() {
            for k in 0..2 {
                let (n_k_heads, n_v_heads, k_dim, v_dim) = sizes;
                let map = [HeadMap::Tiled, HeadMap::Grouped][(i + j + k) % 2];
                let class = [
                    Some(Class::N),
                    None,
                    Some(Class::H),
                    Some(Class::Z),
                    Some(Class::X),
                    Some(Class::L),
                    Some(Class::C),
                ][(i + 2 * j + 3 * k) % 7];
                let n_recorded = [16, 4, 1][(i + j + 2 * k) % 3];
                let case = layer(
                    DeltaRuleStep::NAME,
                    step,
                    sizes,
                    n_recorded,
                    class,
                    Decays::Mixed,
                )
                .param("step", step.name.replace(' ', "_"))
                .param("heads", format!("{n_k_heads}:{n_v_heads}"))
                .param("k_dim", k_dim)
                .param("v_dim", v_dim)
                .param("map", map.name())
                .param("recorded", n_recorded)
                .param(
                    "class",
                    class.map_or("unit".to_owned(), |class| class.to_string()),
                )
                .variant(map.name())
                .tag_if(k_dim == 16 && k == 0, Tag::Reduced)
                .tag_if(step.name == "mixed" && k_dim == 16 && k == 0, Tag::Quick)
                .build(DeltaRuleStep {
                    n_k_heads,
                    map,
                    scale: 1.0 / (k_dim as f32).sqrt(),
                    l2_eps: class.map(|_| 1e-6),
                });
                cases.push(with_decays(case, n_v_heads));
            }
        }
    }
    let mut cases = thin(cases, 6, 20);
    for (n_tokens, position) in [(1, 100), (16, 100), (512, 0)] {
        let step = Step {
            name: "bench",
            runs: vec![Run {
                slot: 0,
                n_rows: n_tokens,
                position,
                commit: [1, 0],
            }],
            padding: 0,
        };
        let sizes = (16, 48, 128, 128);
        let case = layer(
            DeltaRuleStep::NAME,
            &step,
            sizes,
            16,
            Some(Class::N),
            Decays::Mixed,
        )
        .param("bench", format!("{n_tokens}x16:48x128"))
        .variant(HeadMap::Tiled.name())
        .tag(Tag::Bench)
        .build(DeltaRuleStep {
            n_k_heads: 16,
            map: HeadMap::Tiled,
            scale: 1.0 / 128_f32.sqrt(),
            l2_eps: Some(1e-6),
        });
        cases.push(with_decays(case, 48));
    }
    cases
}

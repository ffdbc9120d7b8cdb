//! Cases of `delta_rule_chunk`.

use gemel_core::ops::delta_rule_chunk::DeltaRuleChunk;
use gemel_core::ops::delta_rule_step::{DeltaRuleStep, HeadMap};

use super::delta_rule_step::{Decays, LAYERS, Layer, layer, with_decays};
use super::runs::{Run, Step, steps};
use super::{Case, Tag, thin};
use crate::fill::Class;

fn chunk(n_k_heads: usize, map: HeadMap, k_dim: usize, class: Option<Class>) -> DeltaRuleChunk {
    DeltaRuleChunk {
        rule: DeltaRuleStep {
            n_k_heads,
            map,
            scale: 1.0 / (k_dim as f32).sqrt(),
            l2_eps: class.map(|_| 1e-6),
        },
    }
}

fn class_name(class: Option<Class>) -> String {
    class.map_or("unit".to_owned(), |class| class.to_string())
}

/// A step of one run, at its sequence's start or behind recorded tokens.
fn one_run(n_rows: usize, continued: bool) -> Step {
    let run = if continued {
        Run {
            slot: 2,
            n_rows,
            position: 90,
            commit: [n_rows as i32 % 17, (n_rows % 2) as i32],
        }
    } else {
        Run {
            slot: 1,
            n_rows,
            position: 0,
            commit: [3, 1],
        }
    };
    Step {
        name: if continued { "later" } else { "prompt" },
        runs: vec![run],
        padding: n_rows % 3,
    }
}

/// Long and short runs together.
fn mixed() -> Vec<Step> {
    let run = |slot, n_rows, position, n_commit, half| Run {
        slot,
        n_rows,
        position,
        commit: [n_commit, half],
    };
    let step = |name, runs: &[Run], padding| Step {
        name,
        runs: runs.to_vec(),
        padding,
    };
    vec![
        step(
            "two prompts",
            &[run(3, 70, 0, 0, 0), run(0, 49, 33, 16, 1)],
            9,
        ),
        step(
            "shared",
            &[
                run(1, 1, 50, 1, 0),
                run(3, 100, 7, 2, 1),
                run(2, 16, 3, 0, 0),
                run(0, 17, 0, 0, 0),
            ],
            2,
        ),
        // The first one's slot does not exist.
        step("no slot", &[run(4, 40, 6, 1, 0), run(1, 40, 6, 9, 1)], 0),
        step(
            "empty",
            &[
                run(0, 0, 4, 1, 1),
                run(1, 65, 64, 16, 0),
                run(2, 0, 0, 0, 0),
            ],
            3,
        ),
    ]
}

/// Lengths around the record, the chunk and sums of both, and primes.
const LENGTHS: [usize; 22] = [
    1, 2, 16, 17, 18, 31, 32, 33, 47, 48, 49, 63, 64, 65, 79, 80, 81, 97, 112, 113, 128, 200,
];

/// Layers of one case a length; the sizes of models are among them.
const SIZES: [Layer; 5] = [
    (2, 6, 16, 16),
    (1, 2, 64, 64),
    (1, 1, 128, 128),
    (2, 4, 24, 20),
    (1, 3, 128, 33),
];

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let maps = [HeadMap::Tiled, HeadMap::Grouped];
    let mut add = |step: &Step, sizes: Layer, decays: Decays, map, n_recorded, class, quick| {
        let (n_k_heads, n_v_heads, k_dim, v_dim) = sizes;
        let case = layer(DeltaRuleChunk::NAME, step, sizes, n_recorded, class, decays)
            .param("step", step.name.replace(' ', "_"))
            .param("n_tokens", step.n_tokens())
            .param("heads", format!("{n_k_heads}:{n_v_heads}"))
            .param("k_dim", k_dim)
            .param("v_dim", v_dim)
            .param("map", HeadMap::name(map))
            .param("recorded", n_recorded)
            .param("decays", decays.name())
            .param("class", class_name(class))
            .variant(HeadMap::name(map))
            .tag_if(quick, Tag::Quick)
            .build(chunk(n_k_heads, map, k_dim, class));
        cases.push(with_decays(case, n_v_heads));
    };
    // Every length, with each kind of decay.
    for (i, n) in LENGTHS.into_iter().enumerate() {
        for (j, decays) in Decays::ALL.into_iter().enumerate() {
            let sizes = SIZES[(i + j) % SIZES.len()];
            let class = [Some(Class::N), None, Some(Class::U)][(i + 2 * j) % 3];
            let step = one_run(n, (i + j) % 2 == 1);
            add(
                &step,
                sizes,
                decays,
                maps[i % 2],
                16,
                class,
                n == 49 && sizes.2 == 16,
            );
        }
    }
    // Layers of all sizes, records of all lengths, values of all kinds.
    for (i, &sizes) in LAYERS.iter().enumerate() {
        for (j, n) in [34, 67].into_iter().enumerate() {
            let class = [
                Some(Class::N),
                None,
                Some(Class::H),
                Some(Class::Z),
                Some(Class::X),
                Some(Class::L),
                Some(Class::C),
            ][(i + 3 * j) % 7];
            let n_recorded = [16, 4, 1, 33][(i + j) % 4];
            let step = one_run(n, j == 1);
            add(
                &step,
                sizes,
                Decays::Mixed,
                maps[(i + j) % 2],
                n_recorded,
                class,
                false,
            );
        }
    }
    // Too long a key for the tiles.
    let step = one_run(50, true);
    add(
        &step,
        (1, 2, 640, 5),
        Decays::Mixed,
        maps[0],
        16,
        Some(Class::N),
        false,
    );
    // Several runs.
    for (i, step) in mixed().iter().chain(&steps()).enumerate() {
        for (j, map) in maps.into_iter().enumerate() {
            let sizes = SIZES[(i + 2 * j) % SIZES.len()];
            let decays = Decays::ALL[(i + j) % Decays::ALL.len()];
            let quick = step.name == "shared";
            add(step, sizes, decays, map, 16, Some(Class::N), quick);
        }
    }
    let mut cases = thin(cases, 6, 24);
    for n_tokens in [512, 2048] {
        let step = Step {
            name: "bench",
            runs: vec![Run {
                slot: 0,
                n_rows: n_tokens,
                position: 0,
                commit: [1, 0],
            }],
            padding: 0,
        };
        let sizes = (16, 48, 128, 128);
        let class = Some(Class::N);
        let case = layer(DeltaRuleChunk::NAME, &step, sizes, 16, class, Decays::Mixed)
            .param("bench", format!("{n_tokens}x16:48x128"))
            .variant(HeadMap::Tiled.name())
            .tag(Tag::Bench)
            .build(chunk(16, HeadMap::Tiled, 128, class));
        cases.push(with_decays(case, 48));
    }
    cases
}

//! Cases of `causal_conv`.

use std::sync::Arc;

use gemel_core::TensorDesc;
use gemel_core::ops::causal_conv::CausalConv;

use super::runs::{N_SLOTS, Run, Step, steps};
use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

fn case(
    step: &Step,
    op: &CausalConv,
    n_channels: usize,
    n_taps: usize,
    extra: usize,
    class: Class,
) -> Builder {
    let history = op.history(n_taps);
    let depth = (history + extra).max(1);
    // Only what a run may read is a number; the rest of the ring must not matter.
    let mut live = vec![false; N_SLOTS * depth];
    for run in step.runs.iter().filter(|run| (run.slot as usize) < N_SLOTS) {
        for position in run.position.saturating_sub(history)..run.position {
            live[run.slot as usize * depth + position % depth] = true;
        }
    }
    let live: Arc<[bool]> = live.into();
    let n_tokens = step.n_tokens();
    // The channels are the middle of wider rows, as where a projection makes more than the convolution takes.
    let x = TensorDesc::f32([n_tokens, n_channels + 3])
        .narrow(1, 2, n_channels)
        .expect("the channels exist");
    let (runs, table) = step.table();
    Builder::new(CausalConv::NAME)
        .input("x", x, Fill::Floats(class))
        .input(
            "w",
            TensorDesc::f32([n_channels, n_taps]),
            Fill::Floats(Class::N),
        )
        .input("runs", runs, table)
        .inout(
            "ring",
            TensorDesc::f32([N_SLOTS, depth, n_channels]),
            Fill::Rows(class, live),
        )
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let classes = [Class::N, Class::H, Class::Z, Class::S, Class::X, Class::L];
    for (i, step) in steps().iter().enumerate() {
        for (j, n_channels) in [1, 7, 32, 65, 257].into_iter().enumerate() {
            for (k, (n_taps, dilation)) in [(4, 1), (2, 1), (5, 1), (3, 3), (1, 1), (4, 2)]
                .into_iter()
                .enumerate()
            {
                let class = classes[(i + j + k) % classes.len()];
                // Room to go back by none, a few and the usual number of tokens.
                let extra = [16, 1, 3, 0][(i + j + k) % 4];
                let op = CausalConv {
                    dilation,
                    silu: (i + k) % 3 != 0,
                };
                cases.push(
                    case(step, &op, n_channels, n_taps, extra, class)
                        .param("step", step.name.replace(' ', "_"))
                        .param("n_channels", n_channels)
                        .param("n_taps", n_taps)
                        .param("dilation", dilation)
                        .param("extra", extra)
                        .param("class", class)
                        .tag_if(n_channels == 65 && n_taps == 4, Tag::Reduced)
                        .tag_if(step.name == "mixed" && n_channels == 7, Tag::Quick)
                        .build(op),
                );
            }
        }
    }
    let mut cases = thin(cases, 4, 12);
    for (n_tokens, position) in [(1, 100), (512, 0)] {
        let step = Step {
            name: "bench",
            runs: vec![Run {
                slot: 0,
                n_rows: n_tokens,
                position,
                commit: [0, 0],
            }],
            padding: 0,
        };
        let op = CausalConv {
            dilation: 1,
            silu: true,
        };
        cases.push(
            case(&step, &op, 10_240, 4, 16, Class::N)
                .param("bench", format!("{n_tokens}x10240"))
                .tag(Tag::Bench)
                .build(op),
        );
    }
    cases
}

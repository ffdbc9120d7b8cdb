//! Steps of several sequences, for the ops that work along them.

use gemel_core::TensorDesc;

use crate::fill::Fill;

/// The rows of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Slot of the sequence.
    pub(super) slot: i32,
    /// Rows in the step.
    pub(super) n_rows: usize,
    /// Position of the first.
    pub(super) position: usize,
    /// Tokens of the record that were accepted, and the half in which they lie.
    pub(super) commit: [i32; 2],
}

/// A step: runs one after the other, then padding.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) runs: Vec<Run>,
    /// Rows behind the last run, and entries behind it in the table.
    pub(super) padding: usize,
}

impl Step {
    pub(super) fn n_tokens(&self) -> usize {
        self.runs.iter().map(|run| run.n_rows).sum::<usize>() + self.padding
    }

    pub(super) fn n_runs(&self) -> usize {
        self.runs.len() + self.padding
    }

    /// The table of runs as an operand.
    pub(super) fn table(&self) -> (TensorDesc, Fill) {
        let mut first = 0;
        let mut words = Vec::new();
        for run in &self.runs {
            words.extend([run.slot, first, run.n_rows as i32, run.position as i32]);
            first += run.n_rows as i32;
        }
        words.resize(self.n_runs() * 4, -1);
        (
            TensorDesc::i32([self.n_runs(), 4]),
            Fill::Ints(words.into()),
        )
    }

    /// The table of commits as an operand.
    pub(super) fn commits(&self) -> (TensorDesc, Fill) {
        let mut words: Vec<i32> = self.runs.iter().flat_map(|run| run.commit).collect();
        words.resize(self.n_runs() * 2, -1);
        (
            TensorDesc::i32([self.n_runs(), 2]),
            Fill::Ints(words.into()),
        )
    }
}

/// Slots of every step.
pub(super) const N_SLOTS: usize = 4;

/// Steps with new and old, short and long, existing and missing sequences.
pub(super) fn steps() -> Vec<Step> {
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
        step("first", &[run(1, 1, 0, 5, 1)], 0),
        step("decode", &[run(2, 1, 7, 1, 0)], 0),
        step("rejected", &[run(0, 1, 2, 0, 1)], 1),
        step("verify", &[run(3, 4, 30, 3, 1)], 0),
        step(
            "four",
            &[
                run(2, 1, 3, 1, 1),
                run(0, 1, 0, 0, 0),
                run(3, 2, 100, 2, 0),
                run(1, 1, 1, 1, 0),
            ],
            0,
        ),
        step("prompt", &[run(0, 33, 0, 0, 0)], 3),
        step("later", &[run(1, 17, 5, 16, 1)], 0),
        step(
            "mixed",
            &[
                run(3, 21, 40, 2, 0),
                run(1, 1, 9, 1, 1),
                run(0, 0, 4, 1, 1),
                run(2, 5, 0, 9, 0),
            ],
            2,
        ),
        // The middle one's slot does not exist.
        step(
            "no slot",
            &[run(0, 2, 0, 0, 0), run(4, 3, 6, 1, 0), run(1, 1, 6, 1, 0)],
            1,
        ),
        step("padding", &[], 3),
    ]
}

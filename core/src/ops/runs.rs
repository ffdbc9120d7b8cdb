//! What the ops share that work along sequences: how a step's rows belong to sequences.

use super::expect_type;
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::reference::RefTensor;
use crate::tensor::TensorDesc;

/// Refuses an operand that is not the runs of a step, i32 `[n_runs, 4]`.
pub(crate) fn expect_runs(op: &'static str, runs: &TensorDesc) -> Result<(), OpError> {
    expect_table(op, "runs", runs, 4)
}

/// Refuses an operand that is not a contiguous i32 `[n_runs, n]`.
pub(crate) fn expect_table(
    op: &'static str,
    name: &'static str,
    desc: &TensorDesc,
    n: usize,
) -> Result<(), OpError> {
    expect_type(op, name, desc, DType::I32)?;
    if desc.rank() != 2 || desc.last() != n || !desc.is_contiguous() {
        return Err(bad_operand(
            op,
            name,
            format!("contiguous i32[n_runs, {n}]"),
            desc,
        ));
    }
    Ok(())
}

/// Refuses a state that is not whole and contiguous, or has more elements than kernels count in 32 bits.
pub(crate) fn expect_state(
    op: &'static str,
    name: &'static str,
    desc: &TensorDesc,
    rank: usize,
) -> Result<(), OpError> {
    super::expect_f32(op, name, desc)?;
    if desc.rank() != rank || !desc.is_contiguous() || desc.offset != 0 {
        return Err(bad_operand(
            op,
            name,
            format!("a whole state of {rank} axes"),
            desc,
        ));
    }
    if desc.n_elems() as u64 > u64::from(u32::MAX) {
        return Err(OpError::Limit {
            what: "elements of a state",
            needed: desc.n_elems() as u64,
            limit: u64::from(u32::MAX),
        });
    }
    Ok(())
}

/// A run: the neighbouring rows of one sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Its place in the table.
    pub(crate) index: usize,
    /// Slot of the sequence.
    pub(crate) slot: usize,
    /// First row in the step.
    pub(crate) first: usize,
    /// Number of rows.
    pub(crate) n_rows: usize,
    /// Position of the first row in the sequence.
    pub(crate) position: usize,
}

/// The runs that exist: a slot below `n_slots`, rows below `n_tokens`, no negative number.
pub(crate) fn live_runs(runs: &RefTensor<'_>, n_slots: usize, n_tokens: usize) -> Vec<Run> {
    let live = |(index, words): (usize, &[i32])| {
        let at = |i: usize| words.get(i).and_then(|&word| usize::try_from(word).ok());
        let run = Run {
            index,
            slot: at(0)?,
            first: at(1)?,
            n_rows: at(2)?,
            position: at(3)?,
        };
        (run.slot < n_slots && run.first + run.n_rows <= n_tokens).then_some(run)
    };
    runs.to_i32()
        .chunks(4)
        .enumerate()
        .filter_map(live)
        .collect()
}

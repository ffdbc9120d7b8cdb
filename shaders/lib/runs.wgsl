// The runs of a step: (slot, first row, rows, position) each, in the order of their rows, negative where there are
// fewer. For files with a binding `runs` and the parameters n_runs, n_slots, n_tokens and runs_off.
struct Run {
    slot: u32,
    first: u32,
    n_rows: u32,
    position: u32,
}

// A run; one without rows where there is none, or its slot or rows do not exist.
fn run_at(index: u32) -> Run {
    let at = p.runs_off + 4u * index;
    let slot = runs[at];
    let first = runs[at + 1u];
    let n_rows = runs[at + 2u];
    let position = runs[at + 3u];
    let fits = slot >= 0 && u32(slot) < p.n_slots && first >= 0 && n_rows >= 0 && position >= 0
        && u32(first) <= p.n_tokens && u32(n_rows) <= p.n_tokens - u32(first);
    if (!fits) {
        return Run(0u, 0u, 0u, 0u);
    }
    return Run(u32(slot), u32(first), u32(n_rows), u32(position));
}

// The run that has a row, one without rows if none has.
fn run_of(row: u32) -> Run {
    // The last run that begins at the row or before.
    var low = 0u;
    var high = p.n_runs;
    while (low < high) {
        let middle = (low + high) / 2u;
        let first = runs[p.runs_off + 4u * middle + 1u];
        if (first >= 0 && u32(first) <= row) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    if (low == 0u) {
        return Run(0u, 0u, 0u, 0u);
    }
    var run = run_at(low - 1u);
    if (row - run.first >= run.n_rows) {
        run.n_rows = 0u;
    }
    return run;
}

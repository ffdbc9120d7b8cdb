// The runs of a step: (slot, first row, rows, position) each, in the order of their rows, negative where there are
// fewer. For files with the parameters n_runs, n_slots, n_tokens and runs_off.
#pragma once
#include "lib/device.cuh"

struct Run {
    unsigned slot, first, n_rows, position;
};

// A run; one without rows where there is none, or its slot or rows do not exist.
DEVICE Run run_at(const int* runs, const Params& p, unsigned index) {
    const int* at = runs + p.runs_off + 4u * size_t(index);
    int slot = at[0], first = at[1], n_rows = at[2], position = at[3];
    bool fits = slot >= 0 && unsigned(slot) < p.n_slots && first >= 0 && n_rows >= 0 && position >= 0 &&
                unsigned(first) <= p.n_tokens && unsigned(n_rows) <= p.n_tokens - unsigned(first);
    if (!fits) {
        return {0u, 0u, 0u, 0u};
    }
    return {unsigned(slot), unsigned(first), unsigned(n_rows), unsigned(position)};
}

// The run that has a row, one without rows if none has.
DEVICE Run run_of(const int* runs, const Params& p, unsigned row) {
    // The last run that begins at the row or before.
    unsigned low = 0u;
    unsigned high = p.n_runs;
    while (low < high) {
        unsigned middle = (low + high) / 2u;
        int first = runs[p.runs_off + 4u * size_t(middle) + 1u];
        if (first >= 0 && unsigned(first) <= row) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    if (low == 0u) {
        return {0u, 0u, 0u, 0u};
    }
    Run run = run_at(runs, p, low - 1u);
    if (row - run.first >= run.n_rows) {
        run.n_rows = 0u;
    }
    return run;
}

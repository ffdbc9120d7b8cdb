// delta_rule_step: the gated delta rule, token by token, of every run (lib/delta_rule).
// Bound by reading and writing the state once.
#include "lib/delta_rule.cuh"
#include "lib/grid.cuh"

KERNEL delta_rule_step(const float* __restrict__ qkv, const float* __restrict__ gates, const int* __restrict__ runs,
                       const int* __restrict__ commits, float* __restrict__ state, float* __restrict__ record,
                       float* __restrict__ y, const Params p) {
    unsigned index = folded();
    if (index >= p.n_blocks) {
        return;
    }
    by_token(index, p.n_tokens, qkv, gates, runs, commits, state, record, y, p);
}

// copy_rows: copies rows of words to other rows of the same table. A block moves one chunk of one row. Bound by memory.
#include "lib/grid.cuh"

KERNEL copy_rows(const int* __restrict__ moves, unsigned* __restrict__ y, const Params p) {
    unsigned index = folded();
    if (index >= p.n_blocks) {
        return;
    }
    const int* move = moves + p.moves_off + 2u * size_t(index / p.n_chunks);
    int source = move[0];
    int goal = move[1];
    if (source < 0 || goal < 0 || unsigned(source) >= p.n_rows || unsigned(goal) >= p.n_rows) {
        return;
    }
    unsigned first = (index % p.n_chunks) * p.chunk;
    unsigned end = first + p.chunk < p.n ? first + p.chunk : p.n;
    const unsigned* from = y + p.y_off + size_t(source) * p.y_s;
    unsigned* to = y + p.y_off + size_t(goal) * p.y_s;
    for (unsigned i = first + thread_id(); i < end; i += THREADS) {
        to[i] = from[i];
    }
}

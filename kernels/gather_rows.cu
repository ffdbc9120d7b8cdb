// gather_rows: decodes the listed rows of a matrix and scales them.
// A thread owns four columns of one listed row. The piece under prefix `g` reads the matrix: tiles of weights, of which
// each launch binds the rows row0 .. row0 + n_rows, or rows of f32 activations. Bound by memory.
#include "lib/grid.cuh"

KERNEL gather_rows(const unsigned* __restrict__ w_data, const unsigned* __restrict__ w_table,
                   const int* __restrict__ ids, float* __restrict__ y, const Params p) {
    unsigned n_quads = (p.n + 3u) / 4u;
    unsigned index = folded() * THREADS + thread_id();
    unsigned t = index / n_quads;
    unsigned quad = index % n_quads;
    if (t >= p.n_ids) {
        return;
    }
    unsigned id = unsigned(ids[p.ids_off + t * p.ids_s]);
    // A negative id is larger than any row. The first window writes the zeros of ids that no window has.
    bool exists = id < p.n_total;
    if (exists ? id < p.row0 || id - p.row0 >= p.n_rows : p.row0 > 0u) {
        return;
    }
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (exists) {
        v = g_quad(w_data, w_table, p, id - p.row0, quad);
    }
    unsigned i = 4u * quad;
    float* at = y + size_t(t) * p.n + i;
    at[0] = v.x * p.scale;
    if (i + 1u < p.n) {
        at[1] = v.y * p.scale;
    }
    if (i + 2u < p.n) {
        at[2] = v.z * p.scale;
    }
    if (i + 3u < p.n) {
        at[3] = v.w * p.scale;
    }
}

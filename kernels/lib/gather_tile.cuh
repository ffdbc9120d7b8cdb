// gather_tile: rows of weights in tiles (`lib/tile.cuh`, prefix `w`), decoded four columns at a time.

// Columns `4 * quad ..` of a row of the bound window.
DEVICE float4 SELF_quad(const unsigned* data, const unsigned* table, const Params& p, unsigned row, unsigned quad) {
    constexpr unsigned QUADS = 4u * w_RUNS;
    const unsigned* tile = data + size_t(row / 8u) * p.w_group * w_STEP + size_t(quad / QUADS) * w_TILE;
    unsigned in_tile = quad % QUADS;
    float4 v = w_quad(tile, table, row % 8u, in_tile);
    if (w_SCALED) {
        Scale scale = w_scale(tile, table, row % 8u, in_tile / 4u);
        float b = w_MIN ? scale.b : 0.0f;
        v = {v.x * scale.a + b, v.y * scale.a + b, v.z * scale.a + b, v.w * scale.a + b};
    }
    return v;
}

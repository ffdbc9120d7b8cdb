// gather_tile: rows of weights in tiles (`lib/tile.wgsl`, prefix `w`), decoded four columns at a time.
@group(0) @binding(0) var<storage, read> w_data: array<w_Words>;

// Columns `4 * quad ..` of a row of the bound window.
fn SELF_quad(row: u32, quad: u32) -> vec4<f32> {
    let quads = 4u * w_RUNS;
    let tile = (row >> 3u) * p.w_group + (quad / quads) * w_TILE;
    let h = (row >> 2u) & 1u;
    let in_tile = quad % quads;
    let m = w_quad(tile, h, in_tile);
    let lane = row & 3u;
    let codes = vec4<f32>(lane_of(m[0], lane), lane_of(m[1], lane), lane_of(m[2], lane), lane_of(m[3], lane));
    if (!w_SCALED) {
        return codes;
    }
    let scale = w_scale(tile, h, in_tile >> 2u);
    let a = vec4<f32>(lane_of(scale.a, lane));
    if (!w_MIN) {
        return codes * a;
    }
    return fma(codes, a, vec4<f32>(lane_of(scale.b, lane)));
}

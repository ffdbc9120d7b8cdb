// gather_plain: rows of f32 activations.
@group(0) @binding(0) var<storage, read_write> rows_data: array<f32>;

// Elements `4 * quad ..` of a row; elements behind its end read as zero.
fn SELF_quad(row: u32, quad: u32) -> vec4<f32> {
    let i = 4u * quad;
    let at = row_offset(row, p.w_n1, p.w_s0, p.w_s1, p.w_off) + i;
    var v = vec4<f32>(rows_data[at], 0.0, 0.0, 0.0);
    if (i + 1u < p.n) {
        v.y = rows_data[at + 1u];
    }
    if (i + 2u < p.n) {
        v.z = rows_data[at + 2u];
    }
    if (i + 3u < p.n) {
        v.w = rows_data[at + 3u];
    }
    return v;
}

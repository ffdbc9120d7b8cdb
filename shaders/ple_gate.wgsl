// ple_gate: gates an n-gram embedding by its agreement with every stream of the residual.
// One block per THREADS / LANES rows, a row being one stream of one token; the LANES threads of a row stride over it.
#import grid
#import rows
#import numeric
#import reduce

@group(0) @binding(0) var<storage, read_write> key: array<f32>;
@group(0) @binding(1) var<storage, read_write> value: array<f32>;
@group(0) @binding(2) var<storage, read_write> r: array<f32>;
@group(0) @binding(3) var<storage, read> w_key: array<f32>;
@group(0) @binding(4) var<storage, read> w_query: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
@group(0) @binding(6) var<uniform> p: Params;

// 1 / rms of a row whose squares sum to `squares`; a row of zeros with eps = 0 stays zero.
fn row_scale(squares: f32) -> f32 {
    let mean = squares / f32(p.n) + p.eps;
    return select(0.0, inverseSqrt(mean), mean > 0.0);
}

@compute @workgroup_size(THREADS)
fn ple_gate(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = folded(block, grid) * (THREADS / LANES) + thread / LANES;
    let lane = thread % LANES;
    // Rows beyond the last are empty: their threads take part in the barriers.
    let n = select(0u, p.n, row < p.n_rows);
    let r_row = row_offset(row, p.r_n1, p.r_s0, p.r_s1, p.r_off);
    let w_row = (row % p.n_streams) * p.n;
    let v_row = (row / p.n_streams) * p.n;
    var keys = 0.0;
    var queries = 0.0;
    var products = 0.0;
    for (var i = lane; i < n; i += LANES) {
        let k = key[row * p.n + i];
        let q = r[r_row + i];
        keys += k * k;
        queries += q * q;
        products += (k * w_key[w_row + i]) * (q * w_query[w_row + i]);
    }
    let key_scale = row_scale(group_sum(keys, thread, LANES));
    let query_scale = row_scale(group_sum(queries, thread, LANES));
    let s = group_sum(products, thread, LANES) * key_scale * query_scale * p.scale;
    let root = sqrt(max(abs(s), 1e-6));
    let gate = sigmoid(clamp(sign(s) * root, -128.0, 128.0));
    for (var i = lane; i < n; i += LANES) {
        y[row * p.n + i] = gate * value[v_row + i];
    }
}

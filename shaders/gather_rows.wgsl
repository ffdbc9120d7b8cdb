// gather_rows: decodes the listed rows of a matrix and scales them.
// A thread owns four columns of one listed row. The piece under prefix `g` declares and reads the matrix: tiles of
// weights, of which each launch binds the rows row0 .. row0 + n_rows, or rows of f32 activations.
#import grid
#import rows
#import tile

@group(0) @binding(1) var<storage, read> w_table: array<u32>;
@group(0) @binding(2) var<storage, read_write> ids: array<i32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn gather_rows(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let n_quads = (p.n + 3u) >> 2u;
    let index = folded(block, grid) * THREADS + thread;
    let t = index / n_quads;
    let quad = index % n_quads;
    if (t >= p.n_ids) {
        return;
    }
    let id = bitcast<u32>(ids[p.ids_off + t * p.ids_s]);
    // A negative id is larger than any row. The first window writes the zeros of ids that no window has.
    let exists = id < p.n_total;
    if (exists && (id < p.row0 || id - p.row0 >= p.n_rows)) {
        return;
    }
    if (!exists && p.row0 > 0u) {
        return;
    }
    var v = vec4<f32>();
    if (exists) {
        v = g_quad(id - p.row0, quad) * p.scale;
    }
    let i = 4u * quad;
    let at = t * p.n + i;
    y[at] = v.x;
    if (i + 1u < p.n) {
        y[at + 1u] = v.y;
    }
    if (i + 2u < p.n) {
        y[at + 2u] = v.z;
    }
    if (i + 3u < p.n) {
        y[at + 3u] = v.w;
    }
}

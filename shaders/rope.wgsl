// rope: rotates pairs of channels of each head by the angle of the token's position.
// A thread owns one pair, or one channel that is only copied, in heads_per_thread heads of a token.
#import grid

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> pos: array<i32>;
@group(0) @binding(2) var<storage, read> table: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> p: Params;

const FINE = 256u;

// (cos, sin) of a pair at a position.
fn angle(position: i32, pair: u32) -> vec2<f32> {
    if (position < 0) {
        return vec2<f32>(1.0, 0.0);
    }
    let coarse_row = u32(position) / FINE;
    if (coarse_row >= p.n_coarse) {
        return vec2<f32>(0.0);
    }
    let fine = table[(u32(position) % FINE) * p.pairs + pair];
    let coarse = table[(FINE + coarse_row) * p.pairs + pair];
    return vec2<f32>(
        coarse.x * fine.x - coarse.y * fine.y,
        coarse.y * fine.x + coarse.x * fine.y,
    );
}

@compute @workgroup_size(THREADS)
fn rope(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid) * THREADS + thread;
    if (index >= p.n_items) {
        return;
    }
    let item = index % p.items;
    let part = index / p.items;
    let parts = (p.n_heads + p.heads_per_thread - 1u) / p.heads_per_thread;
    let token = part / parts;
    let first_head = (part % parts) * p.heads_per_thread;
    let end_head = min(first_head + p.heads_per_thread, p.n_heads);

    let rotates = item < p.pairs;
    var rotation = vec2<f32>(1.0, 0.0);
    var a = p.pairs + item;
    var b = a;
    if (rotates) {
        rotation = angle(pos[p.pos_off + token], item);
        a = item * p.first;
        b = a + p.second;
    }
    for (var head = first_head; head < end_head; head += 1u) {
        let from_row = p.x_off + token * p.x_s0 + head * p.x_s1;
        let to_row = (token * p.n_heads + head) * p.head_dim;
        let x0 = x[from_row + a];
        if (rotates) {
            let x1 = x[from_row + b];
            y[to_row + a] = x0 * rotation.x - x1 * rotation.y;
            y[to_row + b] = x0 * rotation.y + x1 * rotation.x;
        } else {
            y[to_row + a] = x0;
        }
    }
}

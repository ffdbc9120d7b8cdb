// delta_gates: decay and writing strength of a gated delta net. A thread owns one head of one token.
#import grid
#import rows
#import numeric

@group(0) @binding(0) var<storage, read_write> alpha: array<f32>;
@group(0) @binding(1) var<storage, read_write> beta: array<f32>;
@group(0) @binding(2) var<storage, read> a: array<f32>;
@group(0) @binding(3) var<storage, read> dt: array<f32>;
@group(0) @binding(4) var<storage, read_write> gates: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

fn softplus(x: f32) -> f32 {
    let e = exp_neg(-abs(x));
    // ln(1 + e) = 2 atanh(e / (2 + e)), relatively exact for small e too. The next term is 1e-9 of the sum.
    let s = e / (2.0 + e);
    let q = s * s;
    var sum = 1.0 / 15.0;
    sum = sum * q + 1.0 / 13.0;
    sum = sum * q + 1.0 / 11.0;
    sum = sum * q + 1.0 / 9.0;
    sum = sum * q + 1.0 / 7.0;
    sum = sum * q + 1.0 / 5.0;
    sum = sum * q + 1.0 / 3.0;
    sum = sum * q + 1.0;
    return max(x, 0.0) + 2.0 * s * sum;
}

@compute @workgroup_size(THREADS)
fn delta_gates(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid) * THREADS + thread;
    if (index >= p.n_items) {
        return;
    }
    let row = index / p.n;
    let i = index % p.n;
    let head = index % p.n_heads;
    let decay = (index / p.n_heads) * 2u * p.n_heads + head;
    let x = alpha[row_offset(row, p.alpha_n1, p.alpha_s0, p.alpha_s1, p.alpha_off) + i] + dt[p.dt_off + head];
    gates[decay] = a[p.a_off + head] * softplus(x);
    let b = beta[row_offset(row, p.beta_n1, p.beta_s0, p.beta_s1, p.beta_off) + i];
    gates[decay + p.n_heads] = sigmoid(clamp(b, -128.0, 128.0));
}

// quantize_q8: blocks of 32 activations as signed bytes with a scale and the scaled sum of the bytes.
// A thread owns a block: d = max |x| / 127, q = x / d rounded half away from zero, s = (d, d * sum q).
#import grid
#import rows

@group(0) @binding(0) var<storage, read_write> x_data: array<x_Elem>;
@group(0) @binding(1) var<storage, read_write> q: array<u32>;
@group(0) @binding(2) var<storage, read_write> s: array<vec2<f32>>;
@group(0) @binding(3) var<uniform> p: Params;

// NaN becomes 0 and an infinity the largest finite value, by bits: arithmetic may assume neither.
fn finite(v: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(v);
    let magnitude = bits & vec4<u32>(0x7fffffffu);
    let kept = select(bits, (bits & vec4<u32>(0x80000000u)) | vec4<u32>(0x7f7fffffu), magnitude == vec4<u32>(0x7f800000u));
    return bitcast<vec4<f32>>(select(kept, vec4<u32>(), magnitude > vec4<u32>(0x7f800000u)));
}

// |v| / d rounded half away from zero, with the sign of v. A quotient may be off by some roundings, products and
// comparisons may not: they settle the code, so every device gives the same one.
fn codes(v: vec4<f32>, d: f32, inverse: f32) -> vec4<i32> {
    let x = abs(v);
    let half_code = vec4<f32>(0.5);
    var c = min(floor(x * inverse + half_code), vec4<f32>(127.0));
    let above = (c < vec4<f32>(127.0)) & (x >= (c + half_code) * d);
    let below = x < (c - half_code) * d;
    c += select(vec4<f32>(), vec4<f32>(1.0), above) - select(vec4<f32>(), vec4<f32>(1.0), below);
    return vec4<i32>(select(c, -c, v < vec4<f32>()));
}

@compute @workgroup_size(THREADS)
fn quantize_q8(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid) * THREADS + thread;
    let n_blocks = p.n >> 5u;
    if (index >= p.n_rows * n_blocks) {
        return;
    }
    let row = row_offset(index / n_blocks, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    let first = 32u * (index % n_blocks);
    var largest = vec4<f32>();
    for (var i = 0u; i < 32u; i += 4u) {
        largest = max(largest, abs(finite(x_quad(row, first + i, p.n))));
    }
    let d = max(max(largest.x, largest.y), max(largest.z, largest.w)) * p.step;
    // A subnormal scale may be flushed: such a block is zero.
    let is_zero = d < p.smallest;
    let divisor = select(d, 1.0, is_zero);
    let inverse = 1.0 / divisor;
    var sum = 0;
    for (var i = 0u; i < 32u; i += 4u) {
        let v = select(finite(x_quad(row, first + i, p.n)), vec4<f32>(), is_zero);
        let c = codes(v, divisor, inverse);
        q[8u * index + (i >> 2u)] = pack4xI8(c);
        sum += c.x + c.y + c.z + c.w;
    }
    let scale = select(d, 0.0, is_zero);
    s[index] = vec2<f32>(scale, scale * f32(sum));
}

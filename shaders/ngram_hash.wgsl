// ngram_hash: rows of an n-gram embedding table by hashing the last tokens.
// One thread per token and head. 64-bit numbers are pairs of words, low word first.
#import grid

@group(0) @binding(0) var<storage, read_write> ids: array<i32>;
@group(0) @binding(1) var<storage, read> multipliers: array<u32>;
@group(0) @binding(2) var<storage, read> heads: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<i32>;
@group(0) @binding(4) var<uniform> p: Params;

// The 64 bits of a * b.
fn product(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let second = (a & 0xffffu) * (b >> 16u) + (first & 0xffffu);
    return vec2(a * b, (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u));
}

// a mod size, for sizes below 2^31: the low word enters bit by bit.
fn remainder(a: vec2<u32>, size: u32) -> u32 {
    var rest = a.y % size;
    for (var bit = 32u; bit > 0u; bit--) {
        rest = rest * 2u + ((a.x >> (bit - 1u)) & 1u);
        rest = select(rest, rest - size, rest >= size);
    }
    return rest;
}

@compute @workgroup_size(THREADS)
fn ngram_hash(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid) * THREADS + thread;
    if (index >= p.n_rows) {
        return;
    }
    let token = index / p.n_heads;
    let head = index % p.n_heads;
    let length = head / p.n_heads_per_ngram + 2u;
    var mixed = vec2(0u);
    var is_cut = false;
    for (var j = 0u; j < length; j++) {
        var id = ids[token * p.n_ids + j];
        // Once a predecessor is missing or ends a text, all earlier ones read as that end.
        if (j > 0u) {
            is_cut = is_cut || id < 0 || id == p.eos;
            id = select(id, p.eos, is_cut);
        }
        let low = product(bitcast<u32>(id), multipliers[2u * j]);
        mixed ^= vec2(low.x, low.y + bitcast<u32>(id) * multipliers[2u * j + 1u]);
    }
    let size = heads[2u * head];
    var row = -1;
    if (size > 0u && size < 0x80000000u) {
        row = bitcast<i32>(remainder(mixed, size) + heads[2u * head + 1u]);
    }
    y[index] = row;
}

// causal_conv: a short convolution along the tokens of each sequence, with a ring of raw inputs as memory.
// A thread owns one channel of one token. SILU: an activation follows. KEEP: the input goes to the ring as well, which
// holds rows enough that no other thread still reads that place; otherwise causal_conv_keep does it afterwards.
#import grid
#import numeric
#import runs

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read_write> runs: array<i32>;
@group(0) @binding(3) var<storage, read_write> ring: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

// Where the ring keeps a channel of a position.
fn kept(slot: u32, position: u32, channel: u32) -> u32 {
    return (slot * p.depth + position % p.depth) * p.n_channels + channel;
}

@compute @workgroup_size(THREADS)
fn causal_conv(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid) * THREADS + thread;
    if (index >= p.n_items) {
        return;
    }
    let row = index / p.n_channels;
    let channel = index % p.n_channels;
    let run = run_of(row);
    if (run.n_rows == 0u) {
        y[index] = 0.0;
        return;
    }
    let t = row - run.first;
    let position = run.position + t;
    var sum = 0.0;
    for (var k = 0u; k < p.n_taps; k += 1u) {
        let back = (p.n_taps - 1u - k) * p.dilation;
        var z = 0.0;
        if (back <= t) {
            z = x[p.x_off + (row - back) * p.x_s + channel];
        } else if (back <= position) {
            z = ring[kept(run.slot, position - back, channel)];
        }
        sum += w[p.w_off + channel * p.n_taps + k] * z;
    }
    y[index] = select(sum, sum * sigmoid(clamp(sum, -128.0, 128.0)), SILU);
    if (KEEP) {
        ring[kept(run.slot, position, channel)] = x[p.x_off + row * p.x_s + channel];
    }
}

@compute @workgroup_size(THREADS)
fn causal_conv_keep(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid) * THREADS + thread;
    if (index >= p.n_items) {
        return;
    }
    let row = index / p.n_channels;
    let channel = index % p.n_channels;
    let run = run_of(row);
    // Of a run longer than the ring the last rows stay.
    if (run.n_rows > 0u && row - run.first + p.depth >= run.n_rows) {
        ring[kept(run.slot, run.position + row - run.first, channel)] = x[p.x_off + row * p.x_s + channel];
    }
}

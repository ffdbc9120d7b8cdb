// hadamard: multiplies each run of BLOCK elements by the normalised Hadamard matrix.
// LANES threads own a run, THREADS / LANES runs a block; a run lies in shared memory for log2(BLOCK) rounds.
#import grid
#import rows

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

const RUNS = THREADS / LANES;

var<workgroup> runs: array<array<f32, BLOCK>, RUNS>;

@compute @workgroup_size(THREADS)
fn hadamard(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let slot = thread / LANES;
    let lane = thread % LANES;
    let run = folded(block, grid) * RUNS + slot;
    let exists = run < p.n_blocks;
    if (exists) {
        let from_run = row_offset(run / p.row_blocks, p.x_n1, p.x_s0, p.x_s1, p.x_off) + (run % p.row_blocks) * BLOCK;
        for (var i = lane; i < BLOCK; i += LANES) {
            runs[slot][i] = x[from_run + i];
        }
    }
    for (var n = 1u; n < BLOCK; n *= 2u) {
        workgroupBarrier();
        for (var pair = lane; pair < BLOCK / 2u; pair += LANES) {
            let i = (pair / n) * 2u * n + pair % n;
            let a = runs[slot][i];
            let b = runs[slot][i + n];
            runs[slot][i] = a + b;
            runs[slot][i + n] = a - b;
        }
    }
    workgroupBarrier();
    if (exists) {
        for (var i = lane; i < BLOCK; i += LANES) {
            y[run * BLOCK + i] = runs[slot][i] * p.scale;
        }
    }
}

// delta_rule_step: the gated delta rule, token by token, of every run (lib/delta_rule).
// Bound by reading and writing the state once.
#import delta_rule
#import grid

@group(0) @binding(0) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(1) var<storage, read_write> gates: array<f32>;
@group(0) @binding(2) var<storage, read_write> runs: array<i32>;
@group(0) @binding(3) var<storage, read_write> commits: array<i32>;
@group(0) @binding(4) var<storage, read_write> state: array<f32>;
@group(0) @binding(5) var<storage, read_write> record: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
@group(0) @binding(7) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn delta_rule_step(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    if (index >= p.n_blocks) {
        return;
    }
    by_token(index, thread, p.n_tokens);
}

// peak_read: reads a buffer once, in order. A thread strides over it by the size of the grid.
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn peak_read(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = block.x * THREADS + thread;
    var sum = vec4<u32>(0u);
    for (var i = index; i < p.n; i += grid.x * THREADS) {
        sum ^= x[i];
    }
    y[index] = sum.x ^ sum.y ^ sum.z ^ sum.w;
}

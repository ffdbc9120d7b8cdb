// peak_read: reads a buffer once, in order: in each turn four vectors a thread, neighbours within the block.
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
    // The length is a multiple of a turn of the whole grid.
    for (var i = block.x * 4u * THREADS + thread; i < p.n; i += grid.x * 4u * THREADS) {
        sum ^= x[i] ^ x[i + THREADS] ^ x[i + 2u * THREADS] ^ x[i + 3u * THREADS];
    }
    y[index] = sum.x ^ sum.y ^ sum.z ^ sum.w;
}

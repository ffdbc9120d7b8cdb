// peak_fma: chains of multiply-adds in registers: four chains of four lanes a thread.
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn peak_fma(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = block.x * THREADS + thread;
    let m = x[0] * 0.5;
    var a = vec4<f32>(f32(index));
    var b = a + 1.0;
    var c = a + 2.0;
    var d = a + 3.0;
    for (var i = 0u; i < p.n; i++) {
        a = fma(a, m, m);
        b = fma(b, m, m);
        c = fma(c, m, m);
        d = fma(d, m, m);
    }
    let sum = a + b + c + d;
    y[index] = sum.x + sum.y + sum.z + sum.w;
}

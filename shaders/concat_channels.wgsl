// concat_channels: the rows of two tensors side by side.
// One block per chunk of the output, which is one long row; each thread strides over the chunk.
#import grid
#import rows
#import elementwise

@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn concat_channels(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let part = block_part(block, grid);
    for (var i = part.first + thread; i < part.end; i += THREADS) {
        let row = i / p.width;
        let column = i % p.width;
        if (column < p.n_first) {
            y[i] = a[row_offset(row, p.first_n1, p.first_s0, p.first_s1, p.first_off) + column];
        } else {
            let at = row_offset(row, p.second_n1, p.second_s0, p.second_s1, p.second_off);
            y[i] = b[at + column - p.n_first];
        }
    }
}

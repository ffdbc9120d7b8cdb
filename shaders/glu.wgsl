// glu: the activation of one tensor times another.
// One block per chunk of a row; each thread strides over the chunk. KIND is a constant, so one case remains.
#import grid
#import rows
#import numeric
#import elementwise
#import repeated

@group(0) @binding(0) var<storage, read_write> gate: array<f32>;
@group(0) @binding(1) var<storage, read_write> up: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

fn activation(x: f32) -> f32 {
    // Arguments are clamped where the factor has long reached its limit.
    let c = clamp(x, -128.0, 128.0);
    switch KIND {
        case 0u: { // swiglu
            return x * sigmoid(c);
        }
        case 1u: { // geglu: (1 + tanh(z)) / 2 = sigmoid(2 z); the factor is 2 sqrt(2 / pi)
            return x * sigmoid(1.5957691216 * (c + 0.044715 * c * c * c));
        }
        case 2u: { // geglu_erf
            return x * half_erfc_neg(c * 0.70710678118);
        }
        case 3u: { // geglu_quick
            return x * sigmoid(1.702 * c);
        }
        case 4u: { // reglu
            return max(x, 0.0);
        }
        default: { // sigmoid
            return sigmoid(c);
        }
    }
}

@compute @workgroup_size(THREADS)
fn glu(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let part = block_part(block, grid);
    let gate_at = a_row(part.row);
    let up_at = b_row(part.row);
    var col = b_first(part.first + thread);
    for (var i = part.first + thread; i < part.end; i += THREADS) {
        y[part.row * p.n + i] = activation(gate[gate_at + i]) * up[up_at + col];
        col = b_next(col);
    }
}

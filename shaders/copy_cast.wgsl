// copy_cast: copies into contiguous storage and converts the element type.
// One block per chunk of the output's words; each thread strides over the chunk. A word holds one element of 32 bits
// or two of 16. Types are parameters: 0 f32, 1 f16, 2 bf16, 3 i32.
#import grid
#import rows
#import elementwise

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;

const F16: u32 = 1u;
const BF16: u32 = 2u;
const I32: u32 = 3u;

fn is_half(kind: u32) -> bool {
    return kind == F16 || kind == BF16;
}

// Element `e` of the input, its bits in the low part of the word.
fn fetch(e: u32) -> u32 {
    let at = row_offset(e / p.x_n, p.x_n1, p.x_a_s0, p.x_a_s1, p.x_a_off) + e % p.x_n;
    let half_word = is_half(p.x_type);
    let word = x[select(at, at >> 1u, half_word)];
    return select(word, (word >> (16u * (at & 1u))) & 0xffffu, half_word);
}

// f16 to f32, subnormals included.
fn f32_of_f16(half_bits: u32) -> f32 {
    let magnitude = half_bits & 0x7fffu;
    let normal = (magnitude << 13u) + select(0x38000000u, 0x70000000u, magnitude >= 0x7c00u);
    let small = bitcast<u32>(f32(magnitude) * 5.9604644775390625e-8);
    return bitcast<f32>(((half_bits & 0x8000u) << 16u) | select(normal, small, magnitude < 0x400u));
}

// f32 to f16: nearest even, overflow to infinity.
fn f16_of_f32(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    let small = u32(round(bitcast<f32>(min(magnitude, 0x38800000u)) * 16777216.0));
    let rounded = min(magnitude, 0x47800000u) + 0xfffu + ((magnitude >> 13u) & 1u);
    let normal = min((max(rounded, 0x38000000u) - 0x38000000u) >> 13u, 0x7c00u);
    let number = select(normal, small, magnitude < 0x38800000u);
    return ((bits >> 16u) & 0x8000u) | select(number, 0x7e00u, magnitude > 0x7f800000u);
}

// f32 to bf16: nearest even, overflow to infinity.
fn bf16_of_f32(bits: u32) -> u32 {
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(rounded, (bits >> 16u) | 0x40u, (bits & 0x7fffffffu) > 0x7f800000u);
}

// f32 to i32: towards zero, saturating, NaN to 0.
fn i32_of_f32(value: f32) -> i32 {
    let inside = i32(clamp(value, -2147483648.0, 2147483520.0));
    let number = select(inside, 0x7fffffff, value >= 2147483648.0);
    return select(number, 0, (bitcast<u32>(value) & 0x7fffffffu) > 0x7f800000u);
}

fn convert(bits: u32) -> u32 {
    if (p.x_type == p.y_type) {
        return bits;
    }
    var value = bitcast<f32>(bits);
    switch p.x_type {
        case F16: {
            value = f32_of_f16(bits);
        }
        case BF16: {
            value = bitcast<f32>(bits << 16u);
        }
        case I32: {
            value = f32(bitcast<i32>(bits));
        }
        default: {}
    }
    switch p.y_type {
        case F16: {
            return f16_of_f32(bitcast<u32>(value));
        }
        case BF16: {
            return bf16_of_f32(bitcast<u32>(value));
        }
        case I32: {
            return bitcast<u32>(i32_of_f32(value));
        }
        default: {
            return bitcast<u32>(value);
        }
    }
}

@compute @workgroup_size(THREADS)
fn copy_cast(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let part = block_part(block, grid);
    let per_word = select(1u, 2u, is_half(p.y_type));
    for (var i = part.first + thread; i < part.end; i += THREADS) {
        var word = 0u;
        for (var h = 0u; h < per_word; h++) {
            let e = i * per_word + h;
            if (e < p.n_elems) {
                word |= convert(fetch(e)) << (16u * h);
            }
        }
        y[i] = word;
    }
}

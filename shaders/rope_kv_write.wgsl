// rope_kv_write: rotates the queries and keys of a step and encodes its keys and values into their cells of a paged cache.
// The first blocks of the grid rotate queries; the next write keys, which they rotate as they read them; the last write
// values. rope_kv_write: plain types. rope_kv_write_blocks: block types.
#import grid
#import rows
#import rotate
#import kv_encode

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> v: array<f32>;
@group(0) @binding(2) var<storage, read_write> pos: array<i32>;
@group(0) @binding(3) var<storage, read> table: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> slots: array<i32>;
@group(0) @binding(5) var<storage, read_write> k_cache: array<u32>;
@group(0) @binding(6) var<storage, read_write> v_cache: array<u32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;
@group(0) @binding(8) var<uniform> p: Params;

// Whether this block writes keys.
var<private> of_keys: bool;

// Channel i of a key, rotated.
fn key_element(row: u32, i: u32) -> f32 {
    let token = row / p.n_kv_heads;
    let from_row = p.x_off + token * p.x_s0 + (p.n_heads + row % p.n_kv_heads) * p.x_s1;
    if (i >= 2u * p.pairs) {
        return x[from_row + i];
    }
    // Pairs are neighbours, or half of the rotated channels apart.
    let neighbours = p.first == 2u;
    let pair = select(i % p.pairs, i / 2u, neighbours);
    let is_second = select(i >= p.pairs, i % 2u == 1u, neighbours);
    let x0 = x[from_row + pair * p.first];
    let x1 = x[from_row + pair * p.first + p.second];
    let rotation = angle(position_of(token, pair), pair);
    return select(
        x0 * rotation.x - x1 * rotation.y,
        x0 * rotation.y + x1 * rotation.x,
        is_second,
    );
}

fn element(row: u32, i: u32) -> f32 {
    if (of_keys) {
        if (i >= p.head_dim) {
            return 0.0;
        }
        return key_element(row, i);
    }
    if (i >= p.v_head_dim) {
        return 0.0;
    }
    return v[row_offset(row, p.v_n1, p.v_s0, p.v_s1, p.v_off) + i];
}

fn store(at: u32, word: u32) {
    if (of_keys) {
        k_cache[at] = word;
    } else {
        v_cache[at] = word;
    }
}

fn rows_of_block() -> Rows {
    if (of_keys) {
        return Rows(p.n_kv_heads, p.head_dim, p.k_items, p.k_n_items, p.n_cells, p.k_words, p.k_narrow, p.slots_off);
    }
    return Rows(p.n_kv_heads, p.v_head_dim, p.v_items, p.v_n_items, p.n_cells, p.v_words, p.v_narrow, p.slots_off);
}

// Number of this block among those that do the same.
fn number_of(block: u32) -> u32 {
    of_keys = block < p.q_blocks + p.k_blocks;
    return block - p.q_blocks - select(p.k_blocks, 0u, of_keys);
}

@compute @workgroup_size(THREADS)
fn rope_kv_write(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = folded(block, grid);
    if (number < p.q_blocks) {
        rotate(number * THREADS + thread);
        return;
    }
    let index = number_of(number) * THREADS + thread;
    write_words(rows_of_block(), index);
}

@compute @workgroup_size(THREADS)
fn rope_kv_write_blocks(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = folded(block, grid);
    if (number < p.q_blocks) {
        rotate(number * THREADS + thread);
        return;
    }
    let index = number_of(number) * THREADS + thread;
    write_blocks(rows_of_block(), index, thread);
}

// matmul_by_id: products of each token with the matrices of the experts chosen for it. A pair of a token and one of
// its experts is an item; a row of a result is an item's.
// matmul_by_id_order: one block per expert (and one for ids that are none) lists its items in order and cuts them
// into slots of SLOT: three words each, the expert, the first place in the list, the number of items.
// matmul_by_id: a block owns 4 * QUADS rows of one expert for the items of a slot; without GROUPED an item is a slot,
// or BATCHED, item j of each token belongs to expert j, and SLOT tokens in order are a slot of each.
// Threads are those of `matmul`: four rows and every KSPLIT-th step of STEP quads of columns each; with GLU four rows
// of either half. matmul_by_id_tile: 64 rows by 64 items, for many items on a GPU, decoded through shared memory.
//
// Rows of all experts lie one after the other, cut into windows anywhere (with GLU between experts); a launch sees
// one window and computes the rows in it.
#import grid
#import rows
#import activation
#import product_parts

@group(0) @binding(0) var<storage, read_write> x_data: array<x_Elem>;
@group(0) @binding(1) var<storage, read> w_data: array<w_Words>;
@group(0) @binding(2) var<storage, read> w_table: array<u32>;
// Slots and the list of items, or the ids themselves.
@group(0) @binding(3) var<storage, read_write> route: array<u32>;
@group(0) @binding(4) var<storage, read> scale: array<f32>;
@group(0) @binding(5) var<storage, read> bias: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
@group(0) @binding(7) var<uniform> p: Params;

@group(0) @binding(0) var<storage, read_write> ids: array<u32>;
@group(0) @binding(1) var<storage, read_write> slots: array<u32>;
@group(0) @binding(2) var<uniform> order_p: Params;

var<workgroup> sums: array<vec4<f32>, SUMS>;
var<workgroup> counts: array<vec2<u32>, THREADS>;

// What a block has to do: items `first .. first + n` of the list (BATCHED: of `n` tokens, from item `first` on), with
// the rows `row .. end` of the window.
struct Work {
    expert: u32,
    first: u32,
    n: u32,
    row: u32,
    end: u32,
}

fn work_of(slot: u32) -> Work {
    var work: Work;
    if (GROUPED) {
        work.expert = route[3u * slot];
        work.first = min(route[3u * slot + 1u], p.n_items);
        work.n = min(route[3u * slot + 2u], p.n_items - work.first);
    } else if (BATCHED) {
        let token = (slot % p.n_parts) * SLOT;
        work.expert = slot / p.n_parts;
        work.first = token * p.n_experts + work.expert;
        work.n = min(SLOT, p.n_items / p.n_experts - token);
    } else {
        work.expert = route[p.ids_off + slot];
        work.first = slot;
        work.n = 1u;
    }
    if (work.expert >= p.n_experts) {
        // No expert: zeros, from the first window alone.
        work.expert = p.n_experts;
        work.end = select(0u, p.d_out, p.row0 == 0u);
        return work;
    }
    let from_row = work.expert * p.d_out;
    work.row = max(from_row, p.row0) - p.row0;
    work.end = max(min(from_row + p.d_out, p.row0 + p.n_rows), p.row0) - p.row0;
    return work;
}

// Item `j` of a slot.
fn item_of(work: Work, j: u32) -> u32 {
    if (GROUPED) {
        return min(route[p.order_at + min(work.first + j, p.n_items - 1u)], p.n_items - 1u);
    }
    if (BATCHED) {
        return work.first + j * p.n_experts;
    }
    return work.first;
}

// Where the activations of an item start.
fn x_start(item: u32) -> u32 {
    return row_offset(item / p.x_per, p.x_n1, p.x_s0, p.x_s1, p.x_off);
}

// A sum of row `row` of the window, scaled and with its bias.
fn finished(sum: f32, expert: u32, row: u32) -> f32 {
    var out = sum;
    let global = p.row0 + row;
    if (p.n_scales > 0u) {
        let second = p.n_scales == 2u && 2u * (global - expert * p.d_out) >= p.d_out;
        out *= scale[expert + select(0u, p.n_experts, second)];
    }
    if (p.has_bias == 1u) {
        out += bias[global];
    }
    return out;
}

// Stores what belongs to `work` of the sums of rows `row .. row + 4` for an item; with GLU also those of their partners.
fn store(work: Work, item: u32, row: u32, sum: vec4<f32>, partner: vec4<f32>) {
    let at = item * p.d_y + p.row0 - work.expert * p.d_out;
    var v = sum;
    var u = partner;
    for (var i = row; i < row + 4u; i++) {
        if (GLU) {
            if (i < work.row + p.d_y) {
                let gate = finished(v.x, work.expert, i);
                y[at + i] = activation(gate) * finished(u.x, work.expert, i + p.d_y);
            }
        } else if (i >= work.row && i < work.end) {
            y[at + i] = finished(v.x, work.expert, i);
        }
        v = v.yzwx;
        u = u.yzwx;
    }
}

// A block's share of the rows of zeros of items without an expert; `quads` groups of four rows are a block's.
fn store_zeros(work: Work, row_block: u32, quads: u32, thread: u32) {
    let first = 4u * quads * row_block;
    let end = select(min(first + 4u * quads, p.d_y), 0u, work.end == 0u);
    for (var j = 0u; j < work.n; j++) {
        let at = item_of(work, j) * p.d_y;
        for (var i = first + thread; i < end; i += THREADS) {
            y[at + i] = 0.0;
        }
    }
}

// The sum of the KSPLIT threads that own the same rows, in an order that depends on KSPLIT alone; thread
// `k * QUADS + i` holds part `k` of quad `i`. Every thread of the block must call it; the first QUADS get it.
fn block_total(value: vec4<f32>, thread: u32) -> vec4<f32> {
    if (KSPLIT == 1u) {
        return value;
    }
    workgroupBarrier();
    sums[thread] = value;
    for (var n = KSPLIT / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (thread < n * QUADS) {
            sums[thread] += sums[thread + n * QUADS];
        }
    }
    workgroupBarrier();
    return sums[thread % QUADS];
}

// Adds the sum of a run: of codes, or of values where there is a minimum.
fn add_part(part: vec4<f32>, run_scale: Scale, sum: vec4<f32>) -> vec4<f32> {
    if (w_SCALED && !w_MIN) {
        return fma(run_scale.a, part, sum);
    }
    return sum + part;
}

// Four columns of the rows of a quad, as codes, or as values where there is a minimum.
fn columns(tile: u32, h: u32, quad: u32, i: u32, run_scale: Scale) -> mat4x4<f32> {
    let m = x_mask(w_quad(tile, h, quad), p.n - i);
    if (w_MIN) {
        return product_decode(m, run_scale);
    }
    return m;
}

@compute @workgroup_size(THREADS)
fn matmul_by_id(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    let row_block = index / p.n_slots;
    if (row_block >= p.n_row_blocks) {
        return;
    }
    let work = work_of(index % p.n_slots);
    if (work.expert >= p.n_experts) {
        store_zeros(work, row_block, QUADS, thread);
        return;
    }
    let first_quad = (work.row >> 2u) + row_block * QUADS;
    if (work.n == 0u || 4u * first_quad >= work.end) {
        return;
    }
    // Quads behind the end repeat the last and are not stored.
    let quad_row = min(first_quad + thread % QUADS, (work.end - 1u) >> 2u);
    let base = (quad_row >> 1u) * p.w_group;
    let h = quad_row & 1u;
    // The same rows of the other half.
    let partner_row = min(quad_row + (p.d_y >> 2u), (work.end - 1u) >> 2u);
    let partner_base = (partner_row >> 1u) * p.w_group;
    let partner_h = partner_row & 1u;

    var item: array<u32, SLOT>;
    var x_row: array<u32, SLOT>;
    var sum: array<vec4<f32>, SLOT>;
    var partner_sum: array<vec4<f32>, SLOT>;
    for (var t = 0u; t < SLOT; t++) {
        item[t] = item_of(work, min(t, work.n - 1u));
        x_row[t] = x_start(item[t]);
    }
    for (var step = thread / QUADS; 4u * STEP * step < p.n; step += KSPLIT) {
        let column = 4u * STEP * step;
        let distance = (STEP * step / (4u * w_RUNS)) * w_TILE;
        let tile = base + distance;
        let partner_tile = partner_base + distance;
        // Known to be zero where a step is a tile.
        var in_tile = 0u;
        if (4u * w_RUNS != STEP) {
            in_tile = (STEP * step) % (4u * w_RUNS);
        }
        var own: array<vec4<f32>, SLOT>;
        for (var t = 0u; t < SLOT; t++) {
            own[t] = v_own(x_row[t], column, thread);
        }
        var run_scale = w_scale(tile, h, in_tile >> 2u);
        var partner_scale: Scale;
        if (GLU) {
            partner_scale = w_scale(partner_tile, partner_h, in_tile >> 2u);
        }
        var part: array<vec4<f32>, SLOT>;
        var partner_part: array<vec4<f32>, SLOT>;
        for (var q = 0u; q < STEP; q++) {
            let i = column + 4u * q;
            // Only rows of plain types end inside a step.
            if (!w_SCALED && i >= p.n) {
                break;
            }
            if (w_SPLIT && q == 4u) {
                for (var t = 0u; t < SLOT; t++) {
                    sum[t] = add_part(part[t], run_scale, sum[t]);
                    part[t] = vec4<f32>();
                    if (GLU) {
                        partner_sum[t] = add_part(partner_part[t], partner_scale, partner_sum[t]);
                        partner_part[t] = vec4<f32>();
                    }
                }
                run_scale = w_scale(tile, h, (in_tile >> 2u) + 1u);
                if (GLU) {
                    partner_scale = w_scale(partner_tile, partner_h, (in_tile >> 2u) + 1u);
                }
            }
            let m = columns(tile, h, in_tile + q, i, run_scale);
            var partner_m: mat4x4<f32>;
            if (GLU) {
                partner_m = columns(partner_tile, partner_h, in_tile + q, i, partner_scale);
            }
            for (var t = 0u; t < SLOT; t++) {
                let v = v_quad(own[t], x_row[t], i, q);
                part[t] = product_add(m, v, part[t]);
                if (GLU) {
                    partner_part[t] = product_add(partner_m, v, partner_part[t]);
                }
            }
        }
        for (var t = 0u; t < SLOT; t++) {
            sum[t] = add_part(part[t], run_scale, sum[t]);
            if (GLU) {
                partner_sum[t] = add_part(partner_part[t], partner_scale, partner_sum[t]);
            }
        }
    }
    let row = 4u * (first_quad + thread % QUADS);
    for (var t = 0u; t < SLOT; t++) {
        let total = block_total(sum[t], thread);
        var partner_total: vec4<f32>;
        if (GLU) {
            partner_total = block_total(partner_sum[t], thread);
        }
        if (thread < QUADS && t < work.n) {
            store(work, item[t], row, total, partner_total);
        }
    }
}

// Four decoded columns `i ..` of four rows; columns behind the end are zero.
fn decoded(base: u32, h: u32, i: u32) -> mat4x4<f32> {
    if (i >= p.n) {
        return mat4x4<f32>();
    }
    let tile = base + (i / (16u * w_RUNS)) * w_TILE;
    let quad = (i >> 2u) % (4u * w_RUNS);
    let m = x_mask(w_quad(tile, h, quad), p.n - i);
    if (!w_SCALED) {
        return m;
    }
    return product_decode(m, w_scale(tile, h, quad >> 2u));
}

@compute @workgroup_size(THREADS)
fn matmul_by_id_tile(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    let row_block = index / p.n_slots;
    if (row_block >= p.n_row_blocks) {
        return;
    }
    let work = work_of(index % p.n_slots);
    if (work.expert >= p.n_experts) {
        store_zeros(work, row_block, QUADS, thread);
        return;
    }
    let first_quad = (work.row >> 2u) + row_block * QUADS;
    if (work.n == 0u || 4u * first_quad >= work.end) {
        return;
    }
    // 16 quads of rows; with GLU the second eight are the partners of the first.
    let lane = thread & 15u;
    var quad_row = first_quad + lane;
    if (GLU) {
        quad_row = first_quad + lane % 8u + (lane / 8u) * (p.d_y >> 2u);
    }
    let row = 4u * quad_row;
    quad_row = min(quad_row, (work.end - 1u) >> 2u);
    let base = (quad_row >> 1u) * p.w_group;
    let h = quad_row & 1u;

    // The first half of the threads fetches weights, the other half activations: 16 vectors, 8 quads of columns.
    let fetches_weights = thread < 128u;
    let quad = (thread >> 4u) & 7u;
    let last = work.n - 1u;
    let fetched = 4u * lane;
    let r0 = x_start(item_of(work, min(fetched, last)));
    let r1 = x_start(item_of(work, min(fetched + 1u, last)));
    let r2 = x_start(item_of(work, min(fetched + 2u, last)));
    let r3 = x_start(item_of(work, min(fetched + 3u, last)));

    var sum = mat4x4<f32>();
    for (var column = 0u; column < p.n; column += 32u) {
        let i = column + 4u * quad;
        let at = 64u * quad + lane;
        if (fetches_weights) {
            let m = decoded(base, h, i);
            sums[at] = m[0];
            sums[at + 16u] = m[1];
            sums[at + 32u] = m[2];
            sums[at + 48u] = m[3];
        } else {
            var m = mat4x4<f32>();
            if (i < p.n) {
                m = transpose(mat4x4<f32>(
                    x_quad(r0, i, p.n),
                    x_quad(r1, i, p.n),
                    x_quad(r2, i, p.n),
                    x_quad(r3, i, p.n),
                ));
            }
            sums[512u + at] = m[0];
            sums[528u + at] = m[1];
            sums[544u + at] = m[2];
            sums[560u + at] = m[3];
        }
        workgroupBarrier();
        for (var c = 0u; c < 32u; c++) {
            let w = sums[16u * c + lane];
            let v = sums[512u + 16u * c + (thread >> 4u)];
            sum[0] = fma(w, v.xxxx, sum[0]);
            sum[1] = fma(w, v.yyyy, sum[1]);
            sum[2] = fma(w, v.zzzz, sum[2]);
            sum[3] = fma(w, v.wwww, sum[3]);
        }
        workgroupBarrier();
    }
    var partner = mat4x4<f32>();
    if (GLU) {
        sums[thread] = sum[0];
        sums[256u + thread] = sum[1];
        sums[512u + thread] = sum[2];
        sums[768u + thread] = sum[3];
        workgroupBarrier();
        if (lane >= 8u) {
            return;
        }
        partner[0] = sums[thread + 8u];
        partner[1] = sums[256u + thread + 8u];
        partner[2] = sums[512u + thread + 8u];
        partner[3] = sums[768u + thread + 8u];
    }
    let place = 4u * (thread >> 4u);
    for (var j = 0u; j < 4u; j++) {
        if (place + j < work.n) {
            store(work, item_of(work, place + j), row, sum[0], partner[0]);
        }
        sum = mat4x4<f32>(sum[1], sum[2], sum[3], sum[0]);
        partner = mat4x4<f32>(partner[1], partner[2], partner[3], partner[0]);
    }
}

@compute @workgroup_size(THREADS)
fn matmul_by_id_order(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let expert = folded(block, grid);
    if (expert > order_p.n_experts) {
        return;
    }
    // Each thread owns neighbours, so that threads in order are items in order.
    let share = (order_p.n_items + THREADS - 1u) / THREADS;
    let from_item = min(thread * share, order_p.n_items);
    let end_item = min(from_item + share, order_p.n_items);
    // Items of lower experts, and of this one.
    var own = vec2<u32>();
    for (var i = from_item; i < end_item; i++) {
        let id = min(ids[order_p.ids_off + i], order_p.n_experts);
        own += vec2<u32>(select(0u, 1u, id < expert), select(0u, 1u, id == expert));
    }
    counts[thread] = own;
    for (var n = 1u; n < THREADS; n *= 2u) {
        workgroupBarrier();
        let before = select(vec2<u32>(), counts[max(thread, n) - n], thread >= n);
        workgroupBarrier();
        counts[thread] += before;
    }
    workgroupBarrier();
    let first = counts[THREADS - 1u].x;
    let n_own = counts[THREADS - 1u].y;
    var place = first + counts[thread].y - own.y;
    for (var i = from_item; i < end_item; i++) {
        if (min(ids[order_p.ids_off + i], order_p.n_experts) == expert) {
            slots[order_p.order_at + place] = i;
            place++;
        }
    }
    // No other expert has a slot of these numbers, and together experts have all.
    let first_slot = first / SLOT + expert;
    let end_slot = (first + n_own) / SLOT + expert + 1u;
    for (var s = first_slot + thread; s < end_slot; s += THREADS) {
        let done = (s - first_slot) * SLOT;
        slots[3u * s] = expert;
        slots[3u * s + 1u] = first + done;
        slots[3u * s + 2u] = min(SLOT, max(n_own, done) - done);
    }
}

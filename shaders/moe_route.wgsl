// moe_route: chooses the experts of each token and their weights.
// One block per token. Scores lie in workgroup memory; an expert's place is the number of experts that go before it,
// so nothing is sorted and the order of threads does not matter. LEN is the number of experts, rounded up.
#import grid
#import numeric
#import order

@group(0) @binding(0) var<storage, read_write> logits: array<u32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(2) var<storage, read_write> ids: array<i32>;
@group(0) @binding(3) var<storage, read_write> weights: array<f32>;
@group(0) @binding(4) var<uniform> p: Params;

const MAX_K = 32u;
const MAX_GROUPS = 64u;
const LEAST_SUM = 0x1p-14;

// Logits of experts that nobody wants, and their scores.
const DEAD = -1.0e38;
const LAST = -1.0e30;

// Keys of experts of excluded groups, and of experts that nobody wants: below those of all finite numbers.
const KEY_EXCLUDED = 0u;
const KEY_DEAD = 1u;

var<workgroup> score_of: array<f32, LEN>;
var<workgroup> key_of: array<u32, LEN>;
var<workgroup> group_key: array<u32, MAX_GROUPS>;
var<workgroup> chosen: array<u32, MAX_K>;
var<workgroup> part: array<f32, THREADS>;

// The logit of expert `e`, DEAD where it is NaN or below.
fn logit(row: u32, e: u32) -> f32 {
    let bits = logits[row + e];
    return select(clamp(bitcast<f32>(bits), DEAD, -DEAD), DEAD, order_key(bits) == KEY_NAN);
}

// exp(l - largest), 0 for dead experts.
fn exp_of(l: f32, largest: f32) -> f32 {
    return select(exp_neg(min(l - largest, 0.0)), 0.0, l <= DEAD);
}

// log(1 + e) for e = 0 .. 1, relatively exact: 2 artanh(e / (2 + e)).
fn log1p_unit(e: f32) -> f32 {
    let z = e / (2.0 + e);
    let s = z * z;
    var q = 0.0666666667; // 1 / 15
    q = q * s + 0.0769230769;
    q = q * s + 0.0909090909;
    q = q * s + 0.1111111111;
    q = q * s + 0.1428571429;
    q = q * s + 0.2;
    q = q * s + 0.3333333333;
    return 2.0 * (z + z * s * q);
}

fn sqrt_softplus(l: f32) -> f32 {
    // Far below zero the root of exp(l) is left.
    if (l < -20.0) {
        return exp_neg(0.5 * l);
    }
    return sqrt(max(l, 0.0) + log1p_unit(exp_neg(-abs(l))));
}

// What an expert counts before the bias.
fn gated(l: f32, largest: f32, sum: f32) -> f32 {
    switch GATE {
        case 0u: { // softmax
            return exp_of(l, largest) / sum;
        }
        case 1u: { // sigmoid
            return sigmoid(l);
        }
        case 2u: { // sqrt_softplus
            return sqrt_softplus(l);
        }
        default: { // softmax_after
            return l;
        }
    }
}

fn block_max(value: f32, thread: u32) -> f32 {
    part[thread] = value;
    for (var n = THREADS / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (thread < n) {
            part[thread] = max(part[thread], part[thread + n]);
        }
    }
    workgroupBarrier();
    return part[0];
}

fn block_add(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    part[thread] = value;
    for (var n = THREADS / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (thread < n) {
            part[thread] += part[thread + n];
        }
    }
    workgroupBarrier();
    return part[0];
}

@compute @workgroup_size(THREADS)
fn moe_route(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let t = folded(block, grid);
    if (t >= p.n_tokens) {
        return;
    }
    let row = p.x_off + t * p.x_s;
    var largest = DEAD;
    var sum = 1.0;
    if (GATE == 0u) {
        for (var e = thread; e < p.n_experts; e += THREADS) {
            largest = max(largest, logit(row, e));
        }
        largest = block_max(largest, thread);
        sum = 0.0;
        for (var e = thread; e < p.n_experts; e += THREADS) {
            sum += exp_of(logit(row, e), largest);
        }
        // Zero where there is no live expert, and then so are all quotients.
        sum = max(block_add(sum, thread), 1.0e-30);
    }
    for (var e = thread; e < p.n_experts; e += THREADS) {
        let l = logit(row, e);
        var score = gated(l, largest, sum);
        if (p.has_bias == 1u) {
            score += bias[e];
        }
        // Gates keep the order of logits, but may round neighbours to one value.
        let ranked = select(score, l, p.has_bias == 0u);
        score_of[e] = select(score, LAST, l <= DEAD);
        key_of[e] = select(order_key(bitcast<u32>(ranked)), KEY_DEAD, l <= DEAD);
    }
    workgroupBarrier();

    let size = p.n_experts / p.groups;
    if (p.groups > 1u) {
        for (var g = thread; g < p.groups; g += THREADS) {
            var best = 2.0 * LAST;
            var second = 2.0 * LAST;
            for (var e = g * size; e < (g + 1u) * size; e++) {
                let s = score_of[e];
                second = max(second, min(best, s));
                best = max(best, s);
            }
            group_key[g] = order_key(bitcast<u32>(select(best, best + second, size > 1u)));
        }
        workgroupBarrier();
        for (var e = thread; e < p.n_experts; e += THREADS) {
            let own = e / size;
            var before = 0u;
            for (var g = 0u; g < p.groups; g++) {
                let other = group_key[g];
                before += select(0u, 1u, other > group_key[own] || (other == group_key[own] && g < own));
            }
            if (before >= p.groups_used) {
                key_of[e] = KEY_EXCLUDED;
            }
        }
        workgroupBarrier();
    }

    for (var e = thread; e < p.n_experts; e += THREADS) {
        let key = key_of[e];
        var place = 0u;
        for (var other = 0u; other < p.n_experts; other++) {
            place += select(0u, 1u, key_of[other] > key || (key_of[other] == key && other < e));
        }
        if (place < p.k) {
            chosen[place] = e;
        }
    }
    workgroupBarrier();

    // Every thread sums all weights in the same order; there are few.
    if (GATE == 3u) {
        largest = DEAD;
        for (var i = 0u; i < p.k; i++) {
            largest = max(largest, logit(row, chosen[i]));
        }
        sum = 0.0;
        for (var i = 0u; i < p.k; i++) {
            sum += exp_of(logit(row, chosen[i]), largest);
        }
        sum = max(sum, 1.0e-30);
    }
    var total = 0.0;
    for (var i = 0u; i < p.k; i++) {
        total += weight(row, chosen[i], largest, sum);
    }
    let factor = select(1.0, max(total, LEAST_SUM), p.normalize == 1u);
    for (var i = thread; i < p.k; i += THREADS) {
        ids[t * p.k + i] = i32(chosen[i]);
        weights[t * p.k + i] = weight(row, chosen[i], largest, sum) / factor * p.scale;
    }
}

// The probability of a chosen expert.
fn weight(row: u32, e: u32, largest: f32, sum: f32) -> f32 {
    let l = logit(row, min(e, p.n_experts - 1u));
    if (l <= DEAD) {
        return 0.0;
    }
    if (GATE == 3u) {
        return exp_of(l, largest) / sum;
    }
    return gated(l, largest, sum);
}

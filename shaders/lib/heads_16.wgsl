// heads_16: a value for each of 16 rows (query heads that share what they read), in fours.
struct SELF_Rows {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
}

// Four channels for each row.
struct SELF_Sums {
    r0: vec4<f32>,
    r1: vec4<f32>,
    r2: vec4<f32>,
    r3: vec4<f32>,
    r4: vec4<f32>,
    r5: vec4<f32>,
    r6: vec4<f32>,
    r7: vec4<f32>,
    r8: vec4<f32>,
    r9: vec4<f32>,
    r10: vec4<f32>,
    r11: vec4<f32>,
    r12: vec4<f32>,
    r13: vec4<f32>,
    r14: vec4<f32>,
    r15: vec4<f32>,
}

const SELF_ROWS = 16u;
const SELF_FOURS = 4u;

fn SELF_all(v: f32) -> SELF_Rows {
    return SELF_Rows(vec4<f32>(v), vec4<f32>(v), vec4<f32>(v), vec4<f32>(v));
}

// `x` with another four of rows.
fn SELF_with(x: SELF_Rows, four: u32, v: vec4<f32>) -> SELF_Rows {
    var y = x;
    y.a = select(y.a, v, four == 0u);
    y.b = select(y.b, v, four == 1u);
    y.c = select(y.c, v, four == 2u);
    y.d = select(y.d, v, four == 3u);
    return y;
}

fn SELF_four(x: SELF_Rows, four: u32) -> vec4<f32> {
    var v = x.a;
    v = select(v, x.b, four == 1u);
    v = select(v, x.c, four == 2u);
    v = select(v, x.d, four == 3u);
    return v;
}

// x + s * y
fn SELF_axpy(x: SELF_Rows, s: f32, y: SELF_Rows) -> SELF_Rows {
    return SELF_Rows(x.a + s * y.a, x.b + s * y.b, x.c + s * y.c, x.d + s * y.d);
}

fn SELF_add(x: SELF_Rows, y: SELF_Rows) -> SELF_Rows {
    return SELF_Rows(x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d);
}

fn SELF_mul(x: SELF_Rows, y: SELF_Rows) -> SELF_Rows {
    return SELF_Rows(x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d);
}

fn SELF_max(x: SELF_Rows, y: SELF_Rows) -> SELF_Rows {
    return SELF_Rows(max(x.a, y.a), max(x.b, y.b), max(x.c, y.c), max(x.d, y.d));
}

// `x` where a condition holds, else `v`.
fn SELF_keep(x: SELF_Rows, kept: bool, v: f32) -> SELF_Rows {
    return SELF_Rows(select(vec4<f32>(v), x.a, kept), select(vec4<f32>(v), x.b, kept), select(vec4<f32>(v), x.c, kept), select(vec4<f32>(v), x.d, kept));
}

// exp_neg(x - top)
fn SELF_exp(x: SELF_Rows, top: SELF_Rows) -> SELF_Rows {
    return SELF_Rows(exp_neg4(x.a - top.a), exp_neg4(x.b - top.b), exp_neg4(x.c - top.c), exp_neg4(x.d - top.d));
}

// cap * tanh(scale * x / cap), without a cap of 0.
fn SELF_logits(x: SELF_Rows, scale: f32, cap: f32) -> SELF_Rows {
    if (cap > 0.0) {
        return SELF_Rows(softcap4(scale * x.a, cap), softcap4(scale * x.b, cap), softcap4(scale * x.c, cap), softcap4(scale * x.d, cap));
    }
    return SELF_Rows(scale * x.a, scale * x.b, scale * x.c, scale * x.d);
}

// For each four: the sum of its rows, rectified and weighted.
fn SELF_rectified(x: SELF_Rows, w: SELF_Rows) -> vec4<f32> {
    let zero = vec4<f32>();
    return vec4<f32>(dot(w.a, max(x.a, zero)), dot(w.b, max(x.b, zero)), dot(w.c, max(x.c, zero)), dot(w.d, max(x.d, zero)));
}

// s + w * v for each row.
fn SELF_gather(s: SELF_Sums, w: SELF_Rows, v: vec4<f32>) -> SELF_Sums {
    return SELF_Sums(
        s.r0 + w.a.x * v,
        s.r1 + w.a.y * v,
        s.r2 + w.a.z * v,
        s.r3 + w.a.w * v,
        s.r4 + w.b.x * v,
        s.r5 + w.b.y * v,
        s.r6 + w.b.z * v,
        s.r7 + w.b.w * v,
        s.r8 + w.c.x * v,
        s.r9 + w.c.y * v,
        s.r10 + w.c.z * v,
        s.r11 + w.c.w * v,
        s.r12 + w.d.x * v,
        s.r13 + w.d.y * v,
        s.r14 + w.d.z * v,
        s.r15 + w.d.w * v,
    );
}

fn SELF_faded(s: SELF_Sums, w: SELF_Rows) -> SELF_Sums {
    return SELF_Sums(
        s.r0 * w.a.x,
        s.r1 * w.a.y,
        s.r2 * w.a.z,
        s.r3 * w.a.w,
        s.r4 * w.b.x,
        s.r5 * w.b.y,
        s.r6 * w.b.z,
        s.r7 * w.b.w,
        s.r8 * w.c.x,
        s.r9 * w.c.y,
        s.r10 * w.c.z,
        s.r11 * w.c.w,
        s.r12 * w.d.x,
        s.r13 * w.d.y,
        s.r14 * w.d.z,
        s.r15 * w.d.w,
    );
}

// The channels of one row.
fn SELF_row(s: SELF_Sums, row: u32) -> vec4<f32> {
    switch row {
        case 0u: {
            return s.r0;
        }
        case 1u: {
            return s.r1;
        }
        case 2u: {
            return s.r2;
        }
        case 3u: {
            return s.r3;
        }
        case 4u: {
            return s.r4;
        }
        case 5u: {
            return s.r5;
        }
        case 6u: {
            return s.r6;
        }
        case 7u: {
            return s.r7;
        }
        case 8u: {
            return s.r8;
        }
        case 9u: {
            return s.r9;
        }
        case 10u: {
            return s.r10;
        }
        case 11u: {
            return s.r11;
        }
        case 12u: {
            return s.r12;
        }
        case 13u: {
            return s.r13;
        }
        case 14u: {
            return s.r14;
        }
        default: {
            return s.r15;
        }
    }
}

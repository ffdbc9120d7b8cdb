// Functions that stay finite for every finite argument.

// Stands for minus infinity in masks and maxima.
const NEG_BIG: f32 = -3.0e38;

// exp(x) for x <= 0: exactly 0 below the normal range, where drivers differ.
fn exp_neg(x: f32) -> f32 {
    return select(exp(max(x, -87.0)), 0.0, x < -87.0);
}

// exp_neg of four values.
fn exp_neg4(x: vec4<f32>) -> vec4<f32> {
    let least = vec4<f32>(-87.0);
    return select(exp(max(x, least)), vec4<f32>(0.0), x < least);
}

fn sigmoid(x: f32) -> f32 {
    let e = exp_neg(-abs(x));
    return select(1.0, e, x < 0.0) / (1.0 + e);
}

// tanh(x), relatively exact near 0 too. The built-in one may be off by 1e-5.
fn tanh_safe(x: f32) -> f32 {
    let a = abs(x);
    let e = exp_neg(-2.0 * min(a, 50.0));
    let far = (1.0 - e) / (1.0 + e);
    // tanh(a) / a is interpolated in a^2 at 6 Chebyshev points of a = 0 .. 0.6: 3e-9 relative. Further out an error
    // of the exponential is damped.
    let s = min(a * a, 1.0);
    var q = -0.00584964391;
    q = q * s + 0.02075134911;
    q = q * s - 0.05376798351;
    q = q * s + 0.1333167963;
    q = q * s - 0.3333328283;
    q = q * s + 0.9999999975;
    return select(1.0, -1.0, x < 0.0) * select(far, a * q, a < 0.6);
}

// cap * tanh(x / cap) of four values.
fn softcap4(x: vec4<f32>, cap: f32) -> vec4<f32> {
    let t = x / cap;
    return cap * vec4<f32>(tanh_safe(t.x), tanh_safe(t.y), tanh_safe(t.z), tanh_safe(t.w));
}

// (1 + erf(z)) / 2, the share of the normal distribution below z * sqrt(2), without cancellation for z < 0.
// exp(z^2) erfc(z) / t is interpolated in t = 1 / (1 + z / 2) at 9 Chebyshev points of z = 0 .. 10: 5e-8 relative.
fn half_erfc_neg(z: f32) -> f32 {
    let a = min(abs(z), 10.0);
    let t = 1.0 / (1.0 + 0.5 * a);
    var q = -0.05971491896;
    q = q * t + 0.2877683095;
    q = q * t - 0.4938636487;
    q = q * t + 0.2856977103;
    q = q * t - 0.03184175738;
    q = q * t + 0.2048536551;
    q = q * t + 0.242572893;
    q = q * t + 0.282445042;
    q = q * t + 0.2820826737;
    let tail = 0.5 * q * t * exp_neg(-a * a);
    return select(1.0 - tail, tail, z < 0.0);
}

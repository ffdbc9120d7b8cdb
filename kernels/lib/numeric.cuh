// Functions that stay finite for every finite argument.
#pragma once
#include "lib/device.cuh"

// Stands for minus infinity in masks and maxima.
constexpr float NEG_BIG = -3.0e38f;

// exp(x) for x <= 0: exactly 0 below the normal range.
DEVICE float exp_neg(float x) { return x < -87.0f ? 0.0f : expf(fmaxf(x, -87.0f)); }

DEVICE float sigmoid(float x) {
    float e = exp_neg(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// tanh(x), relatively exact near 0 too.
DEVICE float tanh_safe(float x) {
    float a = fabsf(x);
    float e = exp_neg(-2.0f * fminf(a, 50.0f));
    float far_value = (1.0f - e) / (1.0f + e);
    // tanh(a) / a is interpolated in a^2 at 6 Chebyshev points of a = 0 .. 0.6: 3e-9 relative. Further out an error
    // of the exponential is damped.
    float s = fminf(a * a, 1.0f);
    float q = -0.00584964391f;
    q = q * s + 0.02075134911f;
    q = q * s - 0.05376798351f;
    q = q * s + 0.1333167963f;
    q = q * s - 0.3333328283f;
    q = q * s + 0.9999999975f;
    return (x < 0.0f ? -1.0f : 1.0f) * (a < 0.6f ? a * q : far_value);
}

// (1 + erf(z)) / 2, the share of the normal distribution below z * sqrt(2), without cancellation for z < 0.
// exp(z^2) erfc(z) / t is interpolated in t = 1 / (1 + z / 2) at 9 Chebyshev points of z = 0 .. 10: 5e-8 relative.
DEVICE float half_erfc_neg(float z) {
    float a = fminf(fabsf(z), 10.0f);
    float t = 1.0f / (1.0f + 0.5f * a);
    float q = -0.05971491896f;
    q = q * t + 0.2877683095f;
    q = q * t - 0.4938636487f;
    q = q * t + 0.2856977103f;
    q = q * t - 0.03184175738f;
    q = q * t + 0.2048536551f;
    q = q * t + 0.242572893f;
    q = q * t + 0.282445042f;
    q = q * t + 0.2820826737f;
    float tail = 0.5f * q * t * exp_neg(-a * a);
    return z < 0.0f ? tail : 1.0f - tail;
}

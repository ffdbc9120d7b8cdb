// Activations of gated units. KIND is a constant, so one case remains.
#pragma once
#include "lib/numeric.cuh"

DEVICE float activation(float x) {
    // Arguments are clamped where the factor has long reached its limit.
    float c = fminf(fmaxf(x, -128.0f), 128.0f);
    switch (KIND) {
    case 0u: // swiglu
        return x * sigmoid(c);
    case 1u: // geglu: (1 + tanh(z)) / 2 = sigmoid(2 z); the factor is 2 sqrt(2 / pi)
        return x * sigmoid(1.5957691216f * (c + 0.044715f * c * c * c));
    case 2u: // geglu_erf
        return x * half_erfc_neg(c * 0.70710678118f);
    case 3u: // geglu_quick
        return x * sigmoid(1.702f * c);
    case 4u: // reglu
        return fmaxf(x, 0.0f);
    default: // sigmoid
        return sigmoid(c);
    }
}

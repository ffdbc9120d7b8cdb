// The factor of a result in a stream of a hyper-connected residual.
#pragma once
#include "lib/numeric.cuh"

DEVICE float hc_weight(float inject, float scale) {
    // The argument is clamped where the factor has long reached its limit.
    return 2.0f * sigmoid(fminf(fmaxf(inject * scale, -128.0f), 128.0f));
}

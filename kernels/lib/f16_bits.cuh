// f32 to f16 and bf16 as caches store them: to nearest even, saturating, NaN to 0.
#pragma once
#include "lib/device.cuh"

// Replaces what no cache can store: NaN by 0, an infinity by the largest finite value of its sign.
DEVICE unsigned finite_bits(unsigned bits) {
    unsigned magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return 0u;
    }
    return (bits & 0x80000000u) | (magnitude < 0x7f7fffffu ? magnitude : 0x7f7fffffu);
}

DEVICE unsigned f16_bits(float x) {
    float finite = float_of(finite_bits(bits_of(x)));
    return f16_of_f32(fminf(fmaxf(finite, -65504.0f), 65504.0f));
}

DEVICE unsigned bf16_bits(float x) {
    unsigned bits = finite_bits(bits_of(x));
    unsigned magnitude = bits & 0x7fffffffu;
    magnitude = magnitude < 0x7f7f0000u ? magnitude : 0x7f7f0000u;
    return ((bits >> 16u) & 0x8000u) | ((magnitude + 0x7fffu + ((magnitude >> 16u) & 1u)) >> 16u);
}

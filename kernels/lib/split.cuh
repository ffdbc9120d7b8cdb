// f32 as sums of 16-bit floats, for products on tensor cores that keep what f32 has.
#pragma once
#include "lib/device.cuh"

// Two f16 a number: off by 2^-22 of it, and by 2^-25 where it is below 2^-3. Only below 65,504.
DEVICE void split(unsigned (&parts)[2], float x, float y) {
    parts[0] = f16_pair(x, y);
    parts[1] = f16_pair(x - f32_of_f16(parts[0] & 0xffffu), y - f32_of_f16(parts[0] >> 16u));
}

// Three bf16 a number, exactly: each takes the 8 leading bits of what is left, so that nothing can overflow.
DEVICE void split(unsigned (&parts)[3], float x, float y) {
    for (unsigned i = 0u; i < 3u; i++) {
        unsigned low = bits_of(x) & 0xffff0000u;
        unsigned high = bits_of(y) & 0xffff0000u;
        parts[i] = (low >> 16u) | high;
        x -= float_of(low);
        y -= float_of(high);
    }
}

// Numbers as operands of the matrix instructions: pairs of f16 or bf16, the first in the low half of a word.
#pragma once
#include "lib/device.cuh"

DEVICE bool is_infinite(float x) { return (bits_of(x) & 0x7fffffffu) == 0x7f800000u; }

// Four columns whose f16 values are exact.
DEVICE void f16_of_codes(float4 v, unsigned (&to)[2]) {
    to[0] = f16_pair(v.x, v.y);
    to[1] = f16_pair(v.z, v.w);
}

// The four bytes of a word minus `zero`, both below 1024: behind the bits of 1024 a byte counts ones.
DEVICE void f16_of_bytes(unsigned bytes, unsigned zero, unsigned (&to)[2]) {
    unsigned base = (0x6400u + zero) * 0x00010001u;
    to[0] = f16_pair_sub(choose_bytes(bytes, 0x64646464u, 0x4140u), base);
    to[1] = f16_pair_sub(choose_bytes(bytes, 0x64646464u, 0x4342u), base);
}

// Four numbers as sums of three bf16 with eight bits of significand each: exact, except for parts below the range of
// f32. Each part is the rest cut off behind its eighth bit, so nothing overflows.
DEVICE void split_bf16(float4 v, unsigned (&to)[3][2]) {
    constexpr unsigned TOP = 0xffff0000u;
    for (unsigned part = 0u; part < 3u; part++) {
        float4 cut = {float_of(bits_of(v.x) & TOP), float_of(bits_of(v.y) & TOP), float_of(bits_of(v.z) & TOP),
                      float_of(bits_of(v.w) & TOP)};
        to[part][0] = choose_bytes(bits_of(v.x), bits_of(v.y), 0x7632u);
        to[part][1] = choose_bytes(bits_of(v.z), bits_of(v.w), 0x7632u);
        // An infinity has no rest.
        v = {is_infinite(cut.x) ? 0.0f : v.x - cut.x, is_infinite(cut.y) ? 0.0f : v.y - cut.y,
             is_infinite(cut.z) ? 0.0f : v.z - cut.z, is_infinite(cut.w) ? 0.0f : v.w - cut.w};
    }
}

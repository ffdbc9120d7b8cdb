// Which lane and element of a matrix tile's fragments is which row and column. Device code, emulation and the
// exhaustive test use these functions. Elements are numbered as they lie in a lane's registers, low bits first.
// Source: PTX ISA 8.5, "Matrix Fragments for mma.m16n8k16" and "... m16n8k32".
#pragma once
#include "lib/device.cuh"

struct Place {
    unsigned row, column;
};

// a of mma_f16 and mma_bf16: 16 x 16, 8 elements a lane, two a register.
DEVICE constexpr Place mma16_a(unsigned lane, unsigned element) {
    return {lane / 4 + 8 * (element / 2 % 2), 2 * (lane % 4) + element % 2 + 8 * (element / 4)};
}

// b of mma_f16 and mma_bf16: 16 x 8, 4 elements a lane, two a register.
DEVICE constexpr Place mma16_b(unsigned lane, unsigned element) {
    return {2 * (lane % 4) + element % 2 + 8 * (element / 2), lane / 4};
}

// a of mma_s8: 16 x 32, 16 elements a lane, four a register.
DEVICE constexpr Place mma8_a(unsigned lane, unsigned element) {
    return {lane / 4 + 8 * (element / 4 % 2), 4 * (lane % 4) + element % 4 + 16 * (element / 8)};
}

// b of mma_s8: 32 x 8, 8 elements a lane, four a register.
DEVICE constexpr Place mma8_b(unsigned lane, unsigned element) {
    return {4 * (lane % 4) + element % 4 + 16 * (element / 4), lane / 4};
}

// c of all of them: 16 x 8, 4 elements a lane, one a register.
DEVICE constexpr Place mma_c(unsigned lane, unsigned element) {
    return {lane / 4 + 8 * (element / 2), 2 * (lane % 4) + element % 2};
}

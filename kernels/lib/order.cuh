// Keys that order the bits of f32 as unsigned integers: the larger number has the larger key, -0 equals +0, NaN is
// below -inf, and no number has the key 0.
#pragma once
#include "lib/device.cuh"

constexpr unsigned KEY_NAN = 1u;
constexpr unsigned KEY_NEG_INF = 0x007fffffu;

DEVICE unsigned order_key(unsigned bits) {
    unsigned magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return KEY_NAN;
    }
    return bits > 0x80000000u ? ~bits : magnitude | 0x80000000u;
}

// Where the elements of the second operand are, which repeats on every axis.
#pragma once
#include "lib/device.cuh"

DEVICE size_t b_row(const Params& p, unsigned row) {
    return size_t(p.b_off) + size_t((row / p.n1) % p.b_m0) * p.b_s0 + size_t((row % p.n1) % p.b_m1) * p.b_s1;
}

// The column of element `i` of a row.
DEVICE unsigned b_first(const Params& p, unsigned i) { return i % p.b_n; }

// The column THREADS elements later.
DEVICE unsigned b_next(const Params& p, unsigned column) {
    unsigned next = column + p.b_step;
    return next >= p.b_n ? next - p.b_n : next;
}

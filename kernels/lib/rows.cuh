// Start of a row, in elements: rows are numbered over two outer axes with strides s0 and s1.
#pragma once
#include "lib/device.cuh"

DEVICE size_t row_offset(unsigned row, unsigned n1, unsigned s0, unsigned s1, unsigned off) {
    return size_t(off) + size_t(row / n1) * s0 + size_t(row % n1) * s1;
}

// Whether all rows of `n` elements of an operand can be read four elements at a time: the same answer for every row, so
// that the order of a sum does not depend on the row.
DEVICE bool are_quads(const void* base, unsigned n, unsigned s0, unsigned s1, unsigned off) {
    return (size_t(base) / 4u | n | s0 | s1 | off) % 4u == 0u;
}

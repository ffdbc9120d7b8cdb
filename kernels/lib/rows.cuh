// Start of a row, in elements: rows are numbered over two outer axes with strides s0 and s1.
#pragma once
#include "lib/device.cuh"

DEVICE size_t row_offset(unsigned row, unsigned n1, unsigned s0, unsigned s1, unsigned off) {
    return size_t(off) + size_t(row / n1) * s0 + size_t(row % n1) * s1;
}

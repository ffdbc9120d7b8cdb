// Index of a block in a one-dimensional grid that was folded into x and y.
#pragma once
#include "lib/device.cuh"

DEVICE unsigned folded() { return block_id().y * grid_size().x + block_id().x; }

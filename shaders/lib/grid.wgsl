// Index of a block in a one-dimensional grid that was folded into x and y.
fn folded(block: vec3<u32>, grid: vec3<u32>) -> u32 {
    return block.y * grid.x + block.x;
}

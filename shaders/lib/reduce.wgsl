// Reductions over the threads of a block, in an order that depends on THREADS alone.
// Every thread of the block must call them; all receive the result.
var<workgroup> reduce_sums: array<f32, THREADS>;

fn block_sum(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    reduce_sums[thread] = value;
    for (var n = THREADS / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (thread < n) {
            reduce_sums[thread] += reduce_sums[thread + n];
        }
    }
    workgroupBarrier();
    return reduce_sums[0];
}

// Reductions over the threads of a block, in an order that depends on their number alone.
// Every thread of the block must call them.
var<workgroup> reduce_sums: array<f32, THREADS>;

// The sum over `lanes` neighbouring threads, a power of two; all of them receive it.
fn group_sum(value: f32, thread: u32, lanes: u32) -> f32 {
    workgroupBarrier();
    reduce_sums[thread] = value;
    let lane = thread % lanes;
    for (var n = lanes / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (lane < n) {
            reduce_sums[thread] += reduce_sums[thread + n];
        }
    }
    workgroupBarrier();
    return reduce_sums[thread - lane];
}

// The sum over all threads.
fn block_sum(value: f32, thread: u32) -> f32 {
    return group_sum(value, thread, THREADS);
}

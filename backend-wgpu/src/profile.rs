//! Time of each launch by the device's own clock.

use gemel_core::device::{Recording, ordered};
use gemel_core::error::DeviceError;

use crate::device::WgpuDevice;

/// Launches per query set: two queries each.
const CHUNK: usize = wgpu::QUERY_SET_MAX_QUERIES as usize / 2;

/// Runs a recording with a pass per launch, each between two timestamps. Nanoseconds, in plan order.
pub(crate) fn profile(
    device: &WgpuDevice,
    recording: &Recording,
) -> Result<Option<Vec<u64>>, DeviceError> {
    let lane = &device.lane;
    let gpu = &lane.gpu;
    gpu.check()?;
    let native = device.native(recording)?;
    if !gpu
        .device
        .features()
        .contains(wgpu::Features::TIMESTAMP_QUERY)
    {
        return Ok(None);
    }
    let period = f64::from(gpu.queue.get_timestamp_period());
    let label = format!("profile of plan {}", recording.plan.label);
    let touches = recording.plan.touches();
    let accesses = touches.iter().map(|(buffer, access)| (buffer, *access));
    ordered(device, &label, accesses, |_| {
        let mut times = Vec::with_capacity(native.dispatches.len());
        let mut last = 0;
        for chunk in native.dispatches.chunks(CHUNK) {
            let n_queries = 2 * chunk.len() as u32;
            let n_bytes = u64::from(n_queries) * 8;
            let (queries, resolved) = gpu.checked("creating timestamp queries", || {
                let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
                    label: Some("profile"),
                    ty: wgpu::QueryType::Timestamp,
                    count: n_queries,
                });
                let resolved = gpu.device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("profile"),
                    size: n_bytes,
                    usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                    mapped_at_creation: false,
                });
                (queries, resolved)
            })?;
            let (work, value) = lane.submit_and_read(
                &label,
                |encoder| {
                    for (index, dispatch) in chunk.iter().enumerate() {
                        let first = 2 * index as u32;
                        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                            label: None,
                            timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                                query_set: &queries,
                                beginning_of_pass_write_index: Some(first),
                                end_of_pass_write_index: Some(first + 1),
                            }),
                        });
                        dispatch.encode(&mut pass, true);
                    }
                    encoder.resolve_query_set(&queries, 0..n_queries, &resolved, 0);
                },
                Some((&resolved, 0, n_bytes)),
                || (),
            )?;
            last = value;
            let bytes = lane.collect(work)?;
            let stamps: Vec<u64> = bytes
                .chunks_exact(8)
                .map(|stamp| {
                    stamp
                        .iter()
                        .rev()
                        .fold(0, |value, &byte| value << 8 | u64::from(byte))
                })
                .collect();
            times.extend(stamps.chunks_exact(2).map(|pair| {
                let ticks = pair[1].saturating_sub(pair[0]);
                (ticks as f64 * period).round() as u64
            }));
        }
        Ok((Some(times), lane.ticket(last)))
    })
}

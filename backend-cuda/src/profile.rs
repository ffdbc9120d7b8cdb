//! Time of each launch by the device's own clock.

use gemel_core::device::{Recording, ordered};
use gemel_core::error::DeviceError;

use crate::device::CudaDevice;
use crate::error::Fault;
use crate::lane::Kept;
use crate::launch::Event;

/// Runs a recording launch by launch, each between two events. Nanoseconds, in plan order.
pub(crate) fn profile(device: &CudaDevice, recording: &Recording) -> Result<Vec<u64>, DeviceError> {
    let native = device.native(recording)?;
    let lane = &device.lane;
    let what = format!("profile of plan {}", recording.plan.label);
    let failed = |fault: Fault| lane.gpu.fault(&what, &fault);
    // An event between two launches ends the one and begins the other.
    let events = (0..=native.kernels.len())
        .map(|_| Event::new(&lane.context, true))
        .collect::<Result<Vec<Event>, Fault>>()
        .map_err(failed)?;
    let touches = recording.plan.touches();
    let accesses = touches.iter().map(|(buffer, access)| (buffer, *access));
    let done = ordered(device, &what, accesses, |waits| {
        let kept: Kept = vec![recording.native.clone(), recording.plan.clone()];
        let (done, value) = lane.enqueue(&what, waits, kept, |stream| {
            for (kernel, event) in native.kernels.iter().zip(&events) {
                stream.record(event)?;
                stream.launch(kernel)?;
            }
            events.last().map_or(Ok(()), |event| stream.record(event))
        })?;
        Ok((done, lane.ticket(value)))
    })?;
    lane.wait(&done, &what)?;
    events
        .windows(2)
        .map(|pair| pair[1].ns_since(&pair[0]).map_err(failed))
        .collect()
}

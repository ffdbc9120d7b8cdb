//! Time of each launch by the device's own clock.

use std::any::Any;
use std::sync::Arc;

use gemel_core::device::Recording;
use gemel_core::error::DeviceError;

use crate::device::CudaDevice;
use crate::error::Fault;
use crate::launch::Event;

/// Runs a recording launch by launch, each between two events. Nanoseconds, in plan order.
pub(crate) fn profile(device: &CudaDevice, recording: &Recording) -> Result<Vec<u64>, DeviceError> {
    let native = device.native(recording)?;
    let what = format!("profile of plan {}", recording.plan.label);
    let failed = |fault: Fault| device.gpu.fault(&what, &fault);
    // An event between two launches ends the one and begins the other.
    let events = (0..=native.kernels.len())
        .map(|_| Event::new(&device.context, true))
        .collect::<Result<Vec<Event>, Fault>>()
        .map_err(failed)?;
    let kept: Vec<Arc<dyn Any + Send + Sync>> =
        vec![recording.native.clone(), recording.plan.clone()];
    let (done, _) = device.enqueue(&what, kept, |stream| {
        for (kernel, event) in native.kernels.iter().zip(&events) {
            stream.record(event)?;
            stream.launch(kernel)?;
        }
        events.last().map_or(Ok(()), |event| stream.record(event))
    })?;
    device.wait(&done, &what)?;
    events
        .windows(2)
        .map(|pair| pair[1].ns_since(&pair[0]).map_err(failed))
        .collect()
}

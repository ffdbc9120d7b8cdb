//! From a plan to a graph of CUDA: kernels and arguments once, one launch a replay.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use gemel_core::error::DeviceError;
use gemel_core::op::{Binding, Launch, Table};
use gemel_core::plan::{Placed, Plan, Span, Step};

use crate::buffers::{self, Allocation};
use crate::device::CudaDevice;
use crate::error::lock;
use crate::launch::{Graph, Kernel, Stream};

/// A recorded plan.
#[derive(Debug)]
pub(crate) struct Native {
    /// The lane of the device that recorded it.
    pub(crate) lane: u64,
    /// The plan, with its kernel if it has one only: what fails may be named by it.
    pub(crate) label: String,
    /// The launches, in order.
    pub(crate) kernels: Vec<Kernel>,
    /// The same as one unit; `None` if there is none.
    pub(crate) graph: Option<Graph>,
    /// Constant tables that the kernels read.
    _tables: Vec<Arc<Allocation>>,
}

/// Constant tables, uploaded once per device.
#[derive(Debug, Default)]
pub(crate) struct Tables(Mutex<HashMap<&'static str, Arc<Allocation>>>);

impl Tables {
    fn get(&self, device: &CudaDevice, table: &Table) -> Result<Arc<Allocation>, DeviceError> {
        if let Some(memory) = lock(&self.0).get(table.name) {
            return Ok(memory.clone());
        }
        let bytes: &[u8] = bytemuck::cast_slice(table.words);
        let (memory, _) = device.allocate(bytes.len() as u64, table.name)?;
        device.lane.upload(&memory, 0, bytes, 0, table.name, &[])?;
        lock(&self.0).insert(table.name, memory.clone());
        Ok(memory)
    }
}

/// Compiles the kernels of a plan and captures its launches.
pub(crate) fn record(device: &CudaDevice, plan: &Plan) -> Result<Native, DeviceError> {
    let gpu = &device.lane.gpu;
    gpu.check()?;
    let launches: Vec<(&Step, &Launch)> = plan
        .steps
        .iter()
        .flat_map(|step| step.launches.iter().map(move |launch| (step, launch)))
        .collect();
    let wanted: Vec<(&'static str, &Launch)> = launches
        .iter()
        .map(|(step, launch)| (step.op.name(), *launch))
        .collect();
    let modules = device.modules.get(gpu, &device.lane.context, &wanted)?;
    let mut kernels = Vec::with_capacity(launches.len());
    let mut tables = Vec::new();
    for ((step, launch), module) in launches.into_iter().zip(modules) {
        let fail =
            |what: String| gpu.usage(format!("plan {}, `{}`: {what}", plan.label, step.label));
        let limit = device.caps.max_blocks_per_axis;
        if launch.grid.iter().any(|&n| n > limit) {
            return Err(fail(format!(
                "a grid of {:?} blocks exceeds {limit} along an axis",
                launch.grid
            )));
        }
        let pointers = launch
            .bindings
            .iter()
            .map(|binding| match find(step, binding, &fail)? {
                Storage::Span(span) => {
                    let buffer = plan
                        .buffers
                        .get(span.buffer)
                        .ok_or_else(|| fail(format!("the plan has no buffer {}", span.buffer)))?;
                    let allocation = buffers::allocation(
                        gpu,
                        device.lane.id,
                        buffer,
                        span.offset,
                        span.n_bytes,
                    )?;
                    Ok(allocation.memory.address(span.offset))
                }
                Storage::Table(table) => {
                    let allocation = device.tables.get(device, table)?;
                    let address = allocation.memory.address(0);
                    tables.push(allocation);
                    Ok(address)
                }
            })
            .collect::<Result<Vec<u64>, DeviceError>>()?;
        kernels.push(Kernel {
            name: module.name.clone(),
            function: module.function.clone(),
            grid: launch.grid,
            threads: module.threads,
            shared_bytes: module.shared_bytes,
            pointers,
            params: launch.params.bytes(),
        });
    }
    let what = format!("recording plan {}", plan.label);
    let graph = if kernels.is_empty() {
        None
    } else {
        // A stream of its own: the device's goes on with its work.
        let graph = Stream::new(&device.lane.context).and_then(|stream| stream.capture(&kernels));
        Some(graph.map_err(|fault| gpu.fault(&what, &fault))?)
    };
    let label = match &kernels[..] {
        [kernel] => format!("plan {} ({})", plan.label, kernel.name),
        _ => format!("plan {}", plan.label),
    };
    Ok(Native {
        label,
        lane: device.lane.id,
        kernels,
        graph,
        _tables: tables,
    })
}

/// The storage that a binding refers to.
enum Storage<'a> {
    Span(&'a Span),
    Table(&'a Table),
}

fn find<'a>(
    step: &'a Step,
    binding: &'a Binding,
    fail: &dyn Fn(String) -> DeviceError,
) -> Result<Storage<'a>, DeviceError> {
    let span = |operands: &'a [Placed], index: usize, window: usize| {
        let found = operands
            .get(index)
            .and_then(|placed| placed.spans.get(window));
        found
            .map(Storage::Span)
            .ok_or_else(|| fail(format!("the step has no operand for {binding:?}")))
    };
    match binding {
        Binding::Input(index) => span(&step.inputs, *index, 0),
        Binding::InputWindow(index, window) => span(&step.inputs, *index, *window),
        Binding::Inout(index) => span(&step.inouts, *index, 0),
        Binding::Output(index) => span(&step.outputs, *index, 0),
        Binding::Scratch(index) => step
            .scratch
            .get(*index)
            .map(Storage::Span)
            .ok_or_else(|| fail(format!("the step has no scratch area {index}"))),
        Binding::Table(table) => Ok(Storage::Table(table)),
    }
}

//! From a plan to a list of dispatches with their bind groups, made once and replayed.

use std::collections::HashMap;
use std::sync::Arc;

use gemel_core::device::Account;
use gemel_core::error::DeviceError;
use gemel_core::op::{Binding, Launch, Table};
use gemel_core::plan::{Placed, Plan, Span, Step};

use crate::buffers::{self, DeviceMemory};
use crate::device::WgpuDevice;
use crate::error::{Gpu, lock};
use crate::pipelines::{Pipeline, Use};

/// One launch, ready to be encoded.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) pipeline: Arc<Pipeline>,
    bind_group: wgpu::BindGroup,
    grid: [u32; 3],
    /// Whether the pipeline is another one than that of the dispatch before.
    switches: bool,
}

/// A recorded plan.
#[derive(Debug)]
pub(crate) struct Native {
    /// The lane of the device that recorded it.
    pub(crate) lane: u64,
    pub(crate) dispatches: Vec<Dispatch>,
    /// All parameter blocks.
    _params: Option<DeviceMemory>,
}

impl Dispatch {
    /// Encodes the launch; `first` if the pass has no pipeline yet.
    pub(crate) fn encode(&self, pass: &mut wgpu::ComputePass<'_>, first: bool) {
        if first || self.switches {
            pass.set_pipeline(&self.pipeline.raw);
        }
        pass.set_bind_group(0, &self.bind_group, &[]);
        let [x, y, z] = self.grid;
        pass.dispatch_workgroups(x, y, z);
    }
}

/// Constant tables, uploaded once per device.
#[derive(Debug, Default)]
pub(crate) struct Tables(std::sync::Mutex<HashMap<&'static str, Arc<DeviceMemory>>>);

impl Tables {
    fn get(
        &self,
        gpu: &Gpu,
        account: &Account,
        lane: u64,
        table: &Table,
    ) -> Result<Arc<DeviceMemory>, DeviceError> {
        if let Some(memory) = lock(&self.0).get(table.name) {
            return Ok(memory.clone());
        }
        let bytes: &[u8] = bytemuck::cast_slice(table.words);
        let memory = buffers::alloc(
            gpu,
            account,
            lane,
            bytes.len() as u64,
            table.name,
            wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
        )?;
        gpu.checked("writing a constant table", || {
            gpu.queue.write_buffer(&memory.raw, 0, bytes);
        })?;
        let memory = Arc::new(memory);
        lock(&self.0).insert(table.name, memory.clone());
        Ok(memory)
    }
}

/// Compiles the kernels of a plan and makes its bind groups.
pub(crate) fn record(device: &WgpuDevice, plan: &Plan) -> Result<Native, DeviceError> {
    let gpu = &device.lane.gpu;
    gpu.check()?;
    let launches: Vec<(&Step, &Launch)> = plan
        .steps
        .iter()
        .flat_map(|step| step.launches.iter().map(move |launch| (step, launch)))
        .collect();
    let kernels: Vec<(&'static str, &Launch)> = launches
        .iter()
        .map(|(step, launch)| (step.op.name(), *launch))
        .collect();
    let pipelines = device.pipelines.get(gpu, &kernels)?;
    let (params, offsets) = upload_params(device, &launches)?;

    let mut dispatches: Vec<Dispatch> = Vec::with_capacity(launches.len());
    for (((step, launch), pipeline), &offset) in launches.iter().zip(pipelines).zip(&offsets) {
        let fail =
            |what: String| gpu.usage(format!("plan {}, `{}`: {what}", plan.label, step.label));
        let limit = device.caps.max_blocks_per_axis;
        if launch.grid.iter().any(|&n| n > limit) {
            return Err(fail(format!(
                "a grid of {:?} blocks exceeds {limit} along an axis",
                launch.grid
            )));
        }
        let bind_group = bind(
            device,
            plan,
            step,
            launch,
            &pipeline,
            params.as_ref(),
            offset,
            &fail,
        )?;
        let switches = dispatches
            .last()
            .is_none_or(|before| !Arc::ptr_eq(&before.pipeline, &pipeline));
        dispatches.push(Dispatch {
            pipeline,
            bind_group,
            grid: launch.grid,
            switches,
        });
    }
    Ok(Native {
        lane: device.lane.id,
        dispatches,
        _params: params,
    })
}

/// Puts all parameter blocks into one buffer; equal ones share a place. Returns the offset of each launch's block.
fn upload_params(
    device: &WgpuDevice,
    launches: &[(&Step, &Launch)],
) -> Result<(Option<DeviceMemory>, Vec<u64>), DeviceError> {
    let gpu = &device.lane.gpu;
    let align = gpu.device.limits().min_uniform_buffer_offset_alignment as usize;
    let mut bytes: Vec<u8> = Vec::new();
    let mut known: HashMap<Vec<u8>, u64> = HashMap::new();
    let mut offsets = Vec::with_capacity(launches.len());
    for (_, launch) in launches {
        let offset = *known
            .entry(launch.params.bytes())
            .or_insert_with_key(|block| {
                bytes.resize(bytes.len().next_multiple_of(align), 0);
                let offset = bytes.len() as u64;
                bytes.extend_from_slice(block);
                offset
            });
        offsets.push(offset);
    }
    if bytes.is_empty() {
        return Ok((None, offsets));
    }
    let memory = buffers::alloc(
        gpu,
        &device.account,
        device.lane.id,
        bytes.len() as u64,
        "parameters",
        wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
    )?;
    gpu.checked("writing parameters", || {
        gpu.queue.write_buffer(&memory.raw, 0, &bytes);
    })?;
    Ok((Some(memory), offsets))
}

/// The storage that a binding refers to.
enum Storage<'a> {
    Span(&'a Span),
    Table(Arc<DeviceMemory>),
}

#[allow(
    clippy::too_many_arguments,
    reason = "everything that a launch is made of, once"
)]
fn bind(
    device: &WgpuDevice,
    plan: &Plan,
    step: &Step,
    launch: &Launch,
    pipeline: &Pipeline,
    params: Option<&DeviceMemory>,
    params_offset: u64,
    fail: &dyn Fn(String) -> DeviceError,
) -> Result<wgpu::BindGroup, DeviceError> {
    let gpu = &device.lane.gpu;
    // Tables must outlive the loop that borrows them.
    let mut storage: Vec<Option<Storage<'_>>> = Vec::with_capacity(pipeline.bound.len());
    for bound in &pipeline.bound {
        storage.push(match launch.bindings.get(bound.index as usize) {
            Some(binding) => Some(find(device, step, binding, fail)?),
            None => None,
        });
    }
    let mut entries = Vec::with_capacity(pipeline.bound.len());
    let mut uses: HashMap<u64, Use> = HashMap::new();
    for (bound, storage) in pipeline.bound.iter().zip(&storage) {
        let (buffer, offset, n_bytes) = match storage {
            Some(Storage::Span(span)) => {
                let buffer = plan
                    .buffers
                    .get(span.buffer)
                    .ok_or_else(|| fail(format!("the plan has no buffer {}", span.buffer)))?;
                let raw = buffers::raw(gpu, device.lane.id, buffer, span.offset, span.n_bytes)?;
                // wgpu refuses such a launch with many words; the remedy is the shader's declaration.
                if *uses.entry(buffer.id()).or_insert(bound.usage) != bound.usage {
                    return Err(fail(format!(
                        "{}/{} binds {buffer:?} both `read` and `read_write` (binding {}); operands in the arena \
                         must be declared `read_write`",
                        step.op.name(),
                        launch.entry,
                        bound.index
                    )));
                }
                (raw, span.offset, span.n_bytes)
            }
            Some(Storage::Table(memory)) => (&memory.raw, 0, memory.raw.size()),
            None => {
                let Some(memory) = params else {
                    return Err(fail("the parameter block is missing".to_owned()));
                };
                (
                    &memory.raw,
                    params_offset,
                    launch.params.bytes().len() as u64,
                )
            }
        };
        // The exact size, so that a kernel that leaves its operand is found out, but at least one element.
        let size = n_bytes.next_multiple_of(4).max(bound.min_bytes);
        let size = size.min(buffer.size() - offset);
        entries.push(wgpu::BindGroupEntry {
            binding: bound.index,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset,
                size: wgpu::BufferSize::new(size),
            }),
        });
    }
    let what = format!("binding the operands of `{}`", step.label);
    gpu.checked(&what, || {
        gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&step.label),
            layout: &pipeline.layout,
            entries: &entries,
        })
    })
}

fn find<'a>(
    device: &WgpuDevice,
    step: &'a Step,
    binding: &Binding,
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
        Binding::Table(table) => device
            .tables
            .get(&device.lane.gpu, &device.account, device.lane.id, table)
            .map(Storage::Table),
    }
}

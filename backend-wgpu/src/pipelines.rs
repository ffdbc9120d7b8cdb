//! Kernels: compiled once for each specialisation, and what they bind.
#![allow(
    unsafe_code,
    reason = "the project's own shaders run without wgpu's bounds checks"
)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use gemel_core::error::DeviceError;
use gemel_core::kernel::{self, Kernels, Progress};
use gemel_core::op::Launch;
use gemel_core::source::Library;

use crate::error::{Fault, Gpu, lock};
use crate::source::{self, Source};

/// How a kernel uses a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Use {
    /// Storage that is only read.
    Read,
    /// Storage that may be written.
    ReadWrite,
    /// The parameter block.
    Params,
}

/// A binding of a kernel, found in its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Number of the binding.
    pub(crate) index: u32,
    /// How it is used.
    pub(crate) usage: Use,
    /// Bytes of one element: what a binding must hold at least.
    pub(crate) min_bytes: u64,
}

/// A compiled kernel.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
    /// The bindings that the entry uses, by number.
    pub(crate) bound: Vec<Bound>,
}

/// All kernels of a device.
#[derive(Debug)]
pub(crate) struct Pipelines {
    library: Library,
    checked: bool,
    compiled: Kernels<Pipeline>,
    layouts: Mutex<HashMap<Vec<(u32, Use)>, wgpu::BindGroupLayout>>,
}

impl Pipelines {
    pub(crate) fn new(library: Library, checked: bool, progress: Option<Progress>) -> Self {
        Self {
            library,
            checked,
            compiled: Kernels::new(progress),
            layouts: Mutex::default(),
        }
    }

    /// The kernels of these launches, in order; those that are new are compiled on all cores.
    pub(crate) fn get(
        &self,
        gpu: &Gpu,
        launches: &[(&'static str, &Launch)],
    ) -> Result<Vec<Arc<Pipeline>>, DeviceError> {
        self.compiled.get(&gpu.name, launches, |key, launch| {
            self.compile(gpu, key.op, launch)
        })
    }

    fn compile(&self, gpu: &Gpu, op: &str, launch: &Launch) -> Result<Pipeline, DeviceError> {
        let source = source::join(&self.library, op, launch)
            .map_err(|error| compile_error(op, launch, error.to_string()))?;
        let (module, bound) = reflect(op, launch, &source)?;
        let compiled = gpu.scoped(|| {
            let layout = self.layout(gpu, &bound);
            let pipeline_layout =
                gpu.device
                    .create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                        label: Some(launch.entry),
                        bind_group_layouts: &[Some(&layout)],
                        immediate_size: 0,
                    });
            let descriptor = wgpu::ShaderModuleDescriptor {
                label: Some(launch.entry),
                source: wgpu::ShaderSource::Naga(std::borrow::Cow::Owned(module)),
            };
            let module = if self.checked {
                gpu.device.create_shader_module(descriptor)
            } else {
                let checks = wgpu::ShaderRuntimeChecks {
                    bounds_checks: false,
                    force_loop_bounding: false,
                    // Kept: a division by zero stops a process whose driver renders on the CPU.
                    int_div_checks: true,
                    ..wgpu::ShaderRuntimeChecks::checked()
                };
                // SAFETY: the shaders are the project's own. They check every index read from memory against its
                // bound, their loops end, and the conformance suite runs them with the checks as well.
                unsafe { gpu.device.create_shader_module_trusted(descriptor, checks) }
            };
            let raw = gpu
                .device
                .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                    label: Some(launch.entry),
                    layout: Some(&pipeline_layout),
                    module: &module,
                    entry_point: Some(launch.entry),
                    compilation_options: wgpu::PipelineCompilationOptions {
                        constants: &[],
                        // Dear in software drivers; shaders write shared memory before they read it.
                        zero_initialize_workgroup_memory: false,
                    },
                    cache: None,
                });
            Pipeline {
                raw,
                layout,
                bound: bound.clone(),
            }
        });
        gpu.check()?;
        compiled.map_err(|fault| {
            let log = match fault {
                Fault::OutOfMemory => "the driver is out of memory".to_owned(),
                Fault::Other(message) => message,
            };
            compile_error(op, launch, log)
        })
    }

    /// The layout of these bindings. Kernels with equal bindings share one.
    fn layout(&self, gpu: &Gpu, bound: &[Bound]) -> wgpu::BindGroupLayout {
        let key: Vec<(u32, Use)> = bound.iter().map(|b| (b.index, b.usage)).collect();
        if let Some(layout) = lock(&self.layouts).get(&key) {
            return layout.clone();
        }
        let entries: Vec<wgpu::BindGroupLayoutEntry> = bound
            .iter()
            .map(|bound| wgpu::BindGroupLayoutEntry {
                binding: bound.index,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: match bound.usage {
                        Use::Read => wgpu::BufferBindingType::Storage { read_only: true },
                        Use::ReadWrite => wgpu::BufferBindingType::Storage { read_only: false },
                        Use::Params => wgpu::BufferBindingType::Uniform,
                    },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let layout = gpu
            .device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries: &entries,
            });
        lock(&self.layouts).insert(key, layout.clone());
        layout
    }
}

/// Parses and validates the embedded kernel of a launch and compares its bindings with the launch's, without a
/// device.
///
/// # Errors
/// [`DeviceError::Compile`] with file and line.
pub fn check(op: &str, launch: &Launch) -> Result<(), DeviceError> {
    let source = source::join(&source::embedded(), op, launch)
        .map_err(|error| compile_error(op, launch, error.to_string()))?;
    reflect(op, launch, &source).map(|_| ())
}

/// Parses a text and finds the bindings that the entry uses.
fn reflect(
    op: &str,
    launch: &Launch,
    source: &Source,
) -> Result<(naga::Module, Vec<Bound>), DeviceError> {
    let failed = |line: Option<u32>, log: String| {
        let place = line.map_or_else(String::new, |line| {
            let line = line as usize;
            format!("{}: `{}`: ", source.locate(line), source.line(line))
        });
        compile_error(op, launch, format!("{place}{log}"))
    };
    let text = source.text.as_str();
    let module = naga::front::wgsl::parse_str(text).map_err(|error| {
        let line = error.location(text).map(|at| at.line_number);
        failed(line, error.emit_to_string_with_path(text, op))
    })?;
    let all = naga::valid::Capabilities::all();
    let info = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), all)
        .validate(&module)
        .map_err(|error| {
            let line = error.location(text).map(|at| at.line_number);
            failed(line, error.emit_to_string_with_path(text, op))
        })?;
    let index = module
        .entry_points
        .iter()
        .position(|entry| entry.name == launch.entry)
        .ok_or_else(|| failed(None, format!("there is no entry point `{}`", launch.entry)))?;

    let uses = info.get_entry_point(index);
    let n_storage = launch.bindings.len() as u32;
    let mut bound = Vec::new();
    for (handle, variable) in module.global_variables.iter() {
        let Some(binding) = &variable.binding else {
            continue;
        };
        // A binding that the entry does not use is left out, so files may share declarations.
        if uses[handle].is_empty() {
            continue;
        }
        let name = variable.name.as_deref().unwrap_or_default();
        let usage = match variable.space {
            naga::AddressSpace::Uniform => Use::Params,
            naga::AddressSpace::Storage { access } => {
                if access.contains(naga::StorageAccess::STORE) {
                    Use::ReadWrite
                } else {
                    Use::Read
                }
            }
            _ => {
                return Err(failed(
                    None,
                    format!("`{name}` is neither storage nor uniform"),
                ));
            }
        };
        let expected = if binding.binding < n_storage {
            "storage"
        } else {
            "the uniform parameter block"
        };
        let fits = match usage {
            Use::Params => binding.binding == n_storage,
            Use::Read | Use::ReadWrite => binding.binding < n_storage,
        };
        if binding.group != 0 || binding.binding > n_storage || !fits {
            return Err(failed(
                None,
                format!(
                    "`{name}` is binding {} of group {}, but the launch has {n_storage} operands in group 0 \
                     and then the parameter block: binding {} is {expected}",
                    binding.binding, binding.group, binding.binding
                ),
            ));
        }
        let size = module.types[variable.ty].inner.try_size(module.to_ctx());
        bound.push(Bound {
            index: binding.binding,
            usage,
            min_bytes: u64::from(size.unwrap_or(4)),
        });
    }
    bound.sort_by_key(|bound| bound.index);
    if let Some(pair) = bound.windows(2).find(|pair| pair[0].index == pair[1].index) {
        return Err(failed(
            None,
            format!("binding {} is declared twice", pair[0].index),
        ));
    }
    Ok((module, bound))
}

fn compile_error(op: &str, launch: &Launch, log: String) -> DeviceError {
    let kernel = kernel::name_of(op, launch);
    DeviceError::Compile { kernel, log }
}

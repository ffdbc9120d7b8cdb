//! Runs cases on a device: many cases a plan, prepared by [`crate::prepare`], in the memory of `pools`.
//!
//! # Crashes
//! A panic or a lost device costs a batch, whose cases are then run one by one; the culprit is reported and the run
//! goes on with a new device. What fails on CUDA is the whole context, which lives as long as anything that was made
//! in it: everything of the old device goes before the new one is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gemel_core::Device;
use gemel_core::device::{Buffer, submit};
use gemel_core::error::DeviceError;
use gemel_core::op::{Caps, DeviceClass};
use gemel_core::reference::ReferenceDevice;
use gemel_cuda::emulated::open_emulated;
use gemel_cuda::{CudaDevice, CudaOptions};
use gemel_wgpu::{LimitOverrides, WgpuDevice, WgpuOptions};
use rayon::prelude::*;

use crate::cases::Case;
use crate::fill::Poison;
use crate::pools::{Judged, PoolLayout, STALE};
use crate::prepare::Prepared;
use crate::report::{Outcome, Status};

/// Op, entry and specialisation: what is compiled once.
pub use gemel_core::kernel::name_of as kernel_name;

/// What a batch may hold.
const BATCH_CASES: usize = 96;
const BATCH_BYTES: usize = 24 << 20;

/// Which device, and how it is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device: `reference`, `cuda`, `cuda:N`, `cuda-emulated`, `wgpu`, `wgpu:N` or a part of an adapter's name.
    pub device: String,
    /// Chooses launches as for a device of this class.
    pub class: Option<DeviceClass>,
    /// Pretends to be a device with the least limits of WebGPU.
    pub least_limits: bool,
    /// Mixed into the seeds of all cases.
    pub seed: u64,
    /// Runs each case a third time.
    pub thorough: bool,
    /// Replaces shader files, name to text, and kernel files, name with extension to text.
    pub sources: BTreeMap<String, String>,
}

impl Options {
    /// The usual way to use a device.
    pub fn new(device: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            class: None,
            least_limits: false,
            seed: 0,
            thorough: false,
            sources: BTreeMap::new(),
        }
    }
}

/// Opens the device that options select.
///
/// # Errors
/// No such device, or the driver refuses.
pub fn open(options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    if options.device == "reference" {
        return Ok(Arc::new(ReferenceDevice::new()));
    }
    if is_cuda(&options.device) {
        return open_cuda(options);
    }
    let mut wgpu = WgpuOptions::new(&options.device);
    wgpu.class = options.class;
    wgpu.sources = sources_of(options, false);
    if options.least_limits {
        let least = least_caps(DeviceClass::Software);
        wgpu.limits = Some(LimitOverrides {
            max_binding_bytes: Some(least.max_binding_bytes),
            max_buffer_bytes: Some(least.max_buffer_bytes),
            // Fewer than the least, so that grids fold.
            max_blocks_per_axis: Some(60),
            max_threads_per_block: Some(least.max_threads_per_block),
            no_f16: true,
            no_subgroups: true,
            memory_bytes: None,
        });
    }
    Ok(Arc::new(WgpuDevice::open(&wgpu)?))
}

/// Whether a name selects a device of the CUDA backend, real or emulated.
fn is_cuda(device: &str) -> bool {
    let kind = device.split([':', '#']).next().unwrap_or_default();
    matches!(kind, "cuda" | "cuda-emulated")
}

fn open_cuda(options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    let mut cuda = CudaOptions::new(&options.device);
    cuda.class = options.class;
    cuda.sources = sources_of(options, true);
    if options.least_limits {
        let least = least_caps(DeviceClass::Discrete);
        cuda.limits = Some(gemel_cuda::LimitOverrides {
            max_binding_bytes: Some(least.max_binding_bytes),
            max_buffer_bytes: Some(least.max_buffer_bytes),
            // Fewer than the least, so that grids fold.
            max_blocks_per_axis: Some(60),
            max_threads_per_block: Some(least.max_threads_per_block),
            memory_bytes: None,
        });
    }
    Ok(if options.device.starts_with("cuda-emulated") {
        Arc::new(open_emulated(&cuda)?)
    } else {
        Arc::new(CudaDevice::open(&cuda)?)
    })
}

/// The replaced files of one backend: names of kernels have an extension, names of shaders have none.
fn sources_of(options: &Options, kernels: bool) -> BTreeMap<String, String> {
    options
        .sources
        .iter()
        .filter(|(name, _)| name.contains('.') == kernels)
        .map(|(name, text)| (name.clone(), text.clone()))
        .collect()
}

/// The least that any adapter of WebGPU offers.
pub fn least_caps(class: DeviceClass) -> Caps {
    Caps {
        class,
        max_binding_bytes: 128 << 20,
        max_buffer_bytes: 256 << 20,
        binding_alignment: 256,
        max_blocks_per_axis: 65_535,
        max_threads_per_block: 256,
        max_shared_bytes: 16 * 1024,
        max_bindings: 8,
        f16: false,
        warp: None,
        tensor_cores: false,
        bf16_tensor_cores: false,
        memory_bytes: 1 << 30,
    }
}

/// A first compilation: how long the first submission of a new specialisation took.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Entry and specialisation.
    pub kernel: String,
    /// From submission to result, the launch itself included.
    pub time: Duration,
}

/// What happens during a run.
#[derive(Debug)]
pub enum Event {
    /// This many of the next cases are being run together.
    Started(usize),
    /// The next case has ended.
    Done(Box<Outcome>),
}

/// Executes cases on one device.
#[derive(Debug)]
pub struct Runner {
    options: Options,
    /// The device's name, which outlives the device.
    name: String,
    device: Arc<dyn Device>,
    /// Why there is no device; `device` is an empty reference then.
    closed: Option<DeviceError>,
    caps: Caps,
    pools: BTreeMap<String, Buffer>,
    known: BTreeSet<String>,
    /// First compilations so far.
    pub compiled: Vec<Compiled>,
}

impl Runner {
    /// A runner on a device by name.
    ///
    /// # Errors
    /// No such device, or the driver refuses.
    pub fn open(device: &str) -> Result<Self, DeviceError> {
        Self::with(Options::new(device))
    }

    /// A runner with options.
    ///
    /// # Errors
    /// No such device, or the driver refuses.
    pub fn with(options: Options) -> Result<Self, DeviceError> {
        let device = open(&options)?;
        let mut caps = device.caps().clone();
        if let Some(class) = options.class {
            caps.class = class;
        }
        if options.least_limits {
            // What the driver cannot be asked to pretend.
            let least = least_caps(caps.class);
            caps.binding_alignment = least.binding_alignment;
            caps.max_shared_bytes = least.max_shared_bytes.min(caps.max_shared_bytes);
            caps.max_bindings = least.max_bindings.min(caps.max_bindings);
        }
        Ok(Self {
            options,
            name: device.name().to_owned(),
            device,
            closed: None,
            caps,
            pools: BTreeMap::new(),
            known: BTreeSet::new(),
            compiled: Vec::new(),
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The capabilities that launches are chosen for.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Runs and judges cases, in order.
    pub fn test(&mut self, cases: &[Case]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(cases.len());
        self.test_each(cases, 0, &mut |event| {
            if let Event::Done(outcome) = event {
                outcomes.push(*outcome);
            }
        });
        outcomes
    }

    /// Runs and judges cases, in order, telling about each batch and each outcome. The first `alone` cases are not
    /// batched, so that one that kills the process can be told from its neighbours.
    pub fn test_each(&mut self, cases: &[Case], alone: usize, tell: &mut dyn FnMut(Event)) {
        let mut done = 0;
        while done < cases.len() {
            let rest = &cases[done..];
            let n = if done < alone {
                1
            } else {
                self.batch_len(rest)
            };
            tell(Event::Started(n));
            for outcome in self.test_batch(&rest[..n]) {
                tell(Event::Done(Box::new(outcome)));
            }
            done += n;
        }
    }

    /// How many of the first cases make a batch. A case with a new specialisation is a batch of its own, so that its
    /// first compilation can be timed and so that a kernel that does not compile fails its own cases only.
    fn batch_len(&mut self, cases: &[Case]) -> usize {
        let mut bytes = 0;
        for (index, case) in cases.iter().take(BATCH_CASES).enumerate() {
            if index > 0 && case.op.name() != cases[0].op.name() {
                return index;
            }
            let fresh = self
                .kernels(case)
                .iter()
                .any(|kernel| !self.known.contains(kernel));
            if fresh {
                return index.max(1);
            }
            bytes += case
                .operands()
                .map(|operand| operand.desc.n_bytes())
                .sum::<usize>();
            if index > 0 && bytes > BATCH_BYTES {
                return index;
            }
        }
        cases.len().min(BATCH_CASES)
    }

    /// The specialisations of a case.
    fn kernels(&self, case: &Case) -> Vec<String> {
        if self.caps.class == DeviceClass::Reference {
            return Vec::new();
        }
        // Whatever is wrong shows when the case runs.
        catch_unwind(AssertUnwindSafe(|| case.launches(&self.caps)))
            .ok()
            .and_then(Result::ok)
            .map(|launches| {
                launches
                    .list
                    .iter()
                    .map(|launch| kernel_name(case.op.name(), launch))
                    .collect()
            })
            .unwrap_or_default()
    }

    fn test_batch(&mut self, cases: &[Case]) -> Vec<Outcome> {
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| self.run_batch(cases)));
        let failure = match result {
            Ok(Ok(outcomes)) => return outcomes,
            Ok(Err(error)) => {
                if matches!(
                    error,
                    DeviceError::Lost { .. } | DeviceError::Timeout { .. }
                ) {
                    self.reopen();
                }
                (Status::Error, error.to_string())
            }
            Err(panic) => (Status::Crash, panic_text(&*panic)),
        };
        if cases.len() > 1 {
            return cases
                .iter()
                .flat_map(|case| self.test_batch(std::slice::from_ref(case)))
                .collect();
        }
        let (status, message) = failure;
        cases
            .iter()
            .map(|case| Outcome {
                status,
                message: message.clone(),
                wall_us: start.elapsed().as_micros() as u64,
                ..Outcome::new(case, &self.name)
            })
            .collect()
    }

    /// Gives everything of a failed device up, then opens it anew. Until that succeeds, every batch tries again and
    /// reports why not.
    fn reopen(&mut self) {
        self.pools.clear();
        self.known.clear();
        self.device = Arc::new(ReferenceDevice::new());
        match open(&self.options) {
            Ok(device) => {
                self.device = device;
                self.closed = None;
            }
            Err(error) => self.closed = Some(error),
        }
    }

    /// Runs cases of one op together.
    fn run_batch(&mut self, cases: &[Case]) -> Result<Vec<Outcome>, DeviceError> {
        if self.closed.is_some() {
            self.reopen();
        }
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        let start = Instant::now();
        let (caps, seed) = (self.caps.clone(), self.options.seed);
        let prepared: Vec<Result<Prepared, (Status, String)>> = cases
            .par_iter()
            .map(|case| {
                catch_unwind(AssertUnwindSafe(|| Prepared::new(case, &caps, seed)))
                    .unwrap_or_else(|panic| Err((Status::Crash, panic_text(&*panic))))
            })
            .collect();
        let ready: Vec<&Prepared> = prepared.iter().filter_map(|p| p.as_ref().ok()).collect();
        let judged = if ready.is_empty() {
            Vec::new()
        } else {
            self.execute(&ready)?
        };
        let share = start.elapsed().as_micros() as u64 / cases.len() as u64;
        let mut judged = judged.into_iter();
        Ok(cases
            .iter()
            .zip(&prepared)
            .map(|(case, prepared)| {
                let outcome = Outcome {
                    wall_us: share,
                    ..Outcome::new(case, &self.name)
                };
                match prepared {
                    Err((status, message)) => Outcome {
                        status: *status,
                        message: message.clone(),
                        ..outcome
                    },
                    Ok(prepared) => {
                        let judged = judged.next().expect("one judgement for each case that ran");
                        judged.into_outcome(prepared, outcome)
                    }
                }
            })
            .collect())
    }

    fn execute(&mut self, cases: &[&Prepared]) -> Result<Vec<Judged>, DeviceError> {
        let device = self.device.clone();
        let layout = PoolLayout::new(cases);
        let mut buffers = Vec::new();
        for (name, n_bytes) in &layout.sizes {
            let large_enough = |buffer: &Buffer| buffer.n_bytes() >= *n_bytes as u64;
            if !self.pools.get(name).is_some_and(large_enough) {
                self.pools.remove(name);
                let n_bytes = n_bytes.next_power_of_two().max(1 << 16) as u64;
                self.pools
                    .insert(name.clone(), device.alloc(n_bytes, name)?);
            }
            buffers.push(self.pools[name].clone());
        }
        let plan = Arc::new(layout.plan(cases, &buffers));
        let fresh: BTreeSet<String> = cases
            .iter()
            .flat_map(|case| {
                case.launches
                    .iter()
                    .map(|launch| kernel_name(case.case.op.name(), launch))
            })
            .filter(|kernel| !self.known.contains(kernel))
            .collect();
        let before = Instant::now();
        let recording = device.record(&plan)?;
        let recorded = before.elapsed();

        let runs = if self.options.thorough { 3 } else { 2 };
        let stales = STALE.iter().copied().enumerate().take(runs);
        let mut first: Vec<Vec<u8>> = Vec::new();
        let mut notes: Vec<BTreeSet<String>> = vec![BTreeSet::new(); cases.len()];
        for (run, stale) in stales {
            let poison = if run == 0 { Poison::Nan } else { Poison::Huge };
            let images = layout.images(cases, poison, stale);
            for (buffer, image) in buffers.iter().zip(&images) {
                device.write(buffer, 0, image)?;
            }
            if run == 0 && !fresh.is_empty() {
                // Uploads out of the way, so that the first submission is the compilation.
                if let (Some(buffer), Some(image)) = (buffers.first(), images.first()) {
                    device.read(buffer, 0, &mut vec![0; image.len().min(4)])?;
                }
            }
            let before = Instant::now();
            let pending = submit(&*device, &recording, &[], None)?;
            device.finish(pending)?;
            if run == 0 && !fresh.is_empty() {
                let time = before.elapsed() + recorded;
                let kernel = fresh.iter().cloned().collect::<Vec<_>>().join(" + ");
                self.compiled.push(Compiled { kernel, time });
                self.known.extend(fresh.iter().cloned());
            }
            let mut after = Vec::with_capacity(images.len());
            for (buffer, image) in buffers.iter().zip(&images) {
                let mut bytes = vec![0; image.len()];
                device.read(buffer, 0, &mut bytes)?;
                after.push(bytes);
            }
            layout.check_untouched(&images, &after, &mut notes);
            if run == 0 {
                first = after;
            } else {
                layout.check_same(cases, &first, &after, &mut notes);
            }
        }
        Ok(cases
            .par_iter()
            .zip(notes)
            .enumerate()
            .map(|(index, (case, notes))| layout.judge(index, case, &first, notes))
            .collect())
    }

    /// Records a case alone for benchmarks: the recording and its cost.
    ///
    /// # Errors
    /// The op refuses its operands, or the device fails.
    pub fn record(&self, case: &Case) -> Result<Recorded, RecordError> {
        let prepared = Prepared::without_reference(case, &self.caps, self.options.seed)
            .map_err(|(_, message)| RecordError::Op { message })?;
        let cases = [&prepared];
        let layout = PoolLayout::new(&cases);
        let images = layout.images(&cases, Poison::Nan, STALE[0]);
        let mut buffers = Vec::new();
        for ((name, _), image) in layout.sizes.iter().zip(&images) {
            let buffer = self.device.alloc(image.len() as u64, name)?;
            self.device.write(&buffer, 0, image)?;
            buffers.push(buffer);
        }
        let plan = Arc::new(layout.plan(&cases, &buffers));
        Ok(Recorded {
            cost: plan.cost(),
            recording: self.device.record(&plan)?,
        })
    }
}

/// A case ready for timing.
#[derive(Debug)]
pub struct Recorded {
    /// To be submitted any number of times.
    pub recording: gemel_core::device::Recording,
    /// Unavoidable work of the op.
    pub cost: gemel_core::op::Cost,
}

/// A case that cannot be recorded.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecordError {
    /// The op refuses its operands on this device.
    Op {
        /// Its words.
        message: String,
    },
    /// The device failed.
    Device(DeviceError),
}

impl From<DeviceError> for RecordError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl std::fmt::Display for RecordError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Op { message } => f.write_str(message),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RecordError {}

/// The words of a panic.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    format!("panicked: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    /// A device whose `scale` fails on rows of 33 values.
    fn options() -> Options {
        let kernel = gemel_cuda::source::embedded()
            .files()
            .find(|(name, _)| *name == "scale.cu")
            .map(|(_, text)| text.to_owned())
            .expect("the kernel is embedded");
        let start = "    Part part = block_part(p);\n";
        assert!(kernel.contains(start), "the place to plant the fault");
        let faulty = kernel.replace(
            start,
            &format!("    if (p.n == 33u) {{ trap(); }}\n{start}"),
        );
        Options {
            sources: [("scale.cu".to_owned(), faulty)].into(),
            ..Options::new("cuda-emulated")
        }
    }

    #[test]
    fn a_run_goes_on_after_a_kernel_that_fails() {
        let mut runner = Runner::with(options()).unwrap_or_else(|error| panic!("{error}"));
        // In the order of the table: the fault comes in the middle.
        let cases: Vec<Case> = cases::of("scale")
            .into_iter()
            .filter(|case| {
                ["7", "33", "256"]
                    .map(|shape| format!("scale[shape={shape},"))
                    .iter()
                    .any(|id| case.id.starts_with(id))
            })
            .collect();
        let fails = |id: &str| id.contains("shape=33,");
        assert_eq!(cases.len(), 12, "four of each shape");
        let outcomes = runner.test(&cases);
        assert_eq!(outcomes.len(), 12, "one outcome each");
        for outcome in &outcomes {
            if fails(&outcome.id) {
                assert_eq!(outcome.status, Status::Error, "{}", outcome.id);
                assert!(outcome.message.contains("lost"), "{}", outcome.message);
            } else {
                assert_eq!(
                    outcome.status,
                    Status::Pass,
                    "{}: {}",
                    outcome.id,
                    outcome.message
                );
            }
        }
        // The device itself is as new.
        let healthy: Vec<Case> = cases.into_iter().filter(|case| !fails(&case.id)).collect();
        assert!(
            runner.test(&healthy).iter().all(Outcome::is_good),
            "once more"
        );
    }
}

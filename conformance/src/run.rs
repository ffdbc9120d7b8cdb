//! Runs cases on a device: many cases a plan, every operand in poisoned memory with guard words.
//!
//! # Memory
//! A plan is plain data, so the steps of a batch are placed by hand: operand `i` of every case lies in pool `i`, one
//! buffer a pool, so no launch binds one buffer for reading and for writing. Each operand's binding ends with guard
//! words *inside* it, because drivers drop writes beyond a binding and a guard outside would never show them; the
//! gaps between bindings are checked too. Everything that is no element is poison: NaN in the first run, huge numbers
//! in the second, and both runs must give the same bits.
//!
//! # Crashes
//! A panic or a lost device costs a batch, whose cases are then run one by one; the culprit is reported and the run
//! goes on with a new device.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gemel_core::device::{Buffer, submit};
use gemel_core::error::DeviceError;
use gemel_core::op::{Caps, DeviceClass, Launch, Op, Operands, Tolerance};
use gemel_core::plan::{Placed, Plan, Span, Step};
use gemel_core::reference::{RefArgs, RefOutput, RefTensor, RefTensorMut, ReferenceDevice};
use gemel_core::tensor::Layout;
use gemel_core::{DType, Device, TensorDesc};
use gemel_cuda::emulated::open_emulated;
use gemel_cuda::{CudaDevice, CudaOptions};
use gemel_wgpu::{LimitOverrides, WgpuDevice, WgpuOptions};
use rayon::prelude::*;

use crate::cases::Case;
use crate::compare::{self, Expected, Figures, State};
use crate::fill::{self, Poison, Rng};
use crate::report::{Outcome, Status};

/// Guard bytes at the end of each operand's binding, inside it.
const GUARD: usize = 256;

/// Bytes between two bindings at least, and the alignment of bindings: the strictest of any adapter.
const ALIGN: usize = 256;

/// What a batch may hold.
const BATCH_CASES: usize = 96;
const BATCH_BYTES: usize = 24 << 20;

/// What the guard words are and what outputs hold before a run. Two patterns, so that a device that copies what was
/// there is caught by the second run.
const STALE: [u32; 3] = [0x7fc0_dead, 0x7fc1_beef, 0x7fc0_dead];

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
    device: Arc<dyn Device>,
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
            device,
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
                ..Outcome::new(case, self.device.name())
            })
            .collect()
    }

    fn reopen(&mut self) {
        self.pools.clear();
        self.known.clear();
        if let Ok(device) = open(&self.options) {
            self.device = device;
        }
    }

    /// Runs cases of one op together.
    fn run_batch(&mut self, cases: &[Case]) -> Result<Vec<Outcome>, DeviceError> {
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
                    ..Outcome::new(case, self.device.name())
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

/// Entry and specialisation: what is compiled once. Names of parameters belong to it, their values do not.
pub fn kernel_name(op: &str, launch: &Launch) -> String {
    use std::fmt::Write as _;
    let mut name = format!("{op}/{}", launch.entry);
    for (key, value) in &launch.spec.consts {
        let value = match value {
            gemel_core::op::Const::U32(value) => value.to_string(),
            gemel_core::op::Const::Bool(value) => value.to_string(),
        };
        // Writing to a string cannot fail.
        let _ = write!(name, " {key}={value}");
    }
    for (prefix, file) in &launch.spec.imports {
        let _ = write!(name, " {prefix}={file}");
    }
    name
}

/// An operand's storage as devices want it: one piece per window.
fn device_pieces(desc: &TensorDesc, bytes: Vec<u8>) -> Vec<Vec<u8>> {
    if desc.layout != Layout::Tile8 {
        return vec![bytes];
    }
    desc.windows()
        .into_iter()
        .map(|(first, n_rows)| {
            let tiles = desc.tiles(n_rows);
            let row_bytes = tiles.row_bytes();
            let mut packed = vec![0; tiles.packed_bytes()];
            let rows = &bytes[first * row_bytes..(first + n_rows) * row_bytes];
            if tiles.group_bytes() > 0 {
                for (rows, out) in rows
                    .chunks(8 * row_bytes)
                    .zip(packed.chunks_mut(tiles.group_bytes()))
                {
                    tiles.pack_rows(rows, out);
                }
            }
            packed
        })
        .collect()
}

/// An operand on the device.
#[derive(Debug)]
struct Placement {
    desc: TensorDesc,
    /// Storage by poison: NaN, huge; one piece per window.
    pieces: [Vec<Vec<u8>>; 2],
}

/// A case with its operands, its launches and what the reference says.
#[derive(Debug)]
struct Prepared {
    case: Case,
    inputs: Vec<Placement>,
    inouts: Vec<Placement>,
    outputs: Vec<TensorDesc>,
    scratch: Vec<usize>,
    launches: Vec<Launch>,
    cost: gemel_core::op::Cost,
    tolerance: Tolerance,
    expected: Vec<Expected>,
    states: Vec<ExpectedState>,
}

/// An in-place operand before and after, see [`State`].
#[derive(Debug)]
pub struct ExpectedState {
    desc: TensorDesc,
    before: Vec<u8>,
    after: Vec<u8>,
    exact: Option<Vec<f32>>,
}

impl ExpectedState {
    /// What the judge compares with.
    pub fn state(&self) -> State<'_> {
        State {
            desc: &self.desc,
            before: &self.before,
            after: &self.after,
            exact: self.exact.as_deref(),
        }
    }
}

/// What the reference says about a case.
#[derive(Debug)]
pub struct Reference {
    /// Outputs.
    pub outputs: Vec<Expected>,
    /// In-place operands.
    pub states: Vec<ExpectedState>,
    /// How far a device may be from them.
    pub tolerance: Tolerance,
}

/// Asks the reference about a case.
///
/// # Errors
/// What the op refuses.
pub fn reference(case: &Case, seed: u64) -> Result<Reference, String> {
    let prepared = Prepared::new(case, &gemel_core::device::reference_caps(), seed)
        .map_err(|(_, message)| message)?;
    Ok(Reference {
        outputs: prepared.expected,
        states: prepared.states,
        tolerance: prepared.tolerance,
    })
}

fn slot(poison: Poison) -> usize {
    match poison {
        Poison::Nan => 0,
        Poison::Huge => 1,
    }
}

/// Storage of all operands in the reference's layout.
fn storages(case: &Case, seed: u64, poison: Poison) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = case
        .operands()
        .enumerate()
        .map(|(index, operand)| {
            let mut rng = Rng::new(&case.id, seed, index);
            let desc = TensorDesc {
                window_rows: 0,
                ..operand.desc.clone()
            };
            fill::storage(&desc, &operand.fill, &mut rng, poison)
        })
        .collect();
    if let Some(finish) = &case.finish {
        finish(&mut all);
    }
    all
}

impl Prepared {
    fn new(case: &Case, caps: &Caps, seed: u64) -> Result<Self, (Status, String)> {
        let mut prepared = Self::without_reference(case, caps, seed)?;
        prepared.ask_reference(case, seed);
        Ok(prepared)
    }

    fn without_reference(case: &Case, caps: &Caps, seed: u64) -> Result<Self, (Status, String)> {
        let refused = |error: gemel_core::error::OpError| (Status::Unsupported, error.to_string());
        let outputs = case.outputs(caps.class).map_err(refused)?;
        let launches = if caps.class == DeviceClass::Reference {
            gemel_core::op::Launches::default()
        } else {
            case.launches(caps).map_err(refused)?
        };
        let mut by_poison =
            [Poison::Nan, Poison::Huge].map(|poison| storages(case, seed, poison).into_iter());
        let mut place = |operand: &crate::cases::Operand| {
            let desc = operand.device_desc(caps.class);
            let pieces = by_poison.each_mut().map(|storages| {
                device_pieces(&desc, storages.next().expect("one storage an operand"))
            });
            Placement { desc, pieces }
        };
        let inputs: Vec<Placement> = case.inputs.iter().map(&mut place).collect();
        let inouts: Vec<Placement> = case.inouts.iter().map(&mut place).collect();
        let input_descs: Vec<&TensorDesc> = inputs.iter().map(|p| &p.desc).collect();
        let inout_descs: Vec<&TensorDesc> = inouts.iter().map(|p| &p.desc).collect();
        let output_descs: Vec<&TensorDesc> = outputs.iter().collect();
        let operands = Operands {
            inputs: &input_descs,
            inouts: &inout_descs,
            outputs: &output_descs,
        };
        let (cost, tolerance) = (case.op.cost(operands), case.op.tolerance(operands));
        Ok(Self {
            case: case.clone(),
            inputs,
            inouts,
            outputs,
            scratch: launches.scratch,
            launches: launches.list,
            cost,
            tolerance,
            expected: Vec::new(),
            states: Vec::new(),
        })
    }

    /// Runs the definition in f64 on the host.
    fn ask_reference(&mut self, case: &Case, seed: u64) {
        let storages = storages(case, seed, Poison::Nan);
        let (inputs, inouts) = storages.split_at(case.inputs.len());
        let host = |operand: &crate::cases::Operand| operand.device_desc(DeviceClass::Reference);
        let input_descs: Vec<TensorDesc> = case.inputs.iter().map(host).collect();
        let inout_descs: Vec<TensorDesc> = case.inouts.iter().map(host).collect();
        (self.expected, self.states) = ask(
            &*case.op,
            (&input_descs, inputs),
            (&inout_descs, inouts),
            &self.outputs,
        );
    }
}

/// Runs a definition on operands in the reference's layout: what outputs and in-place operands should be.
pub(crate) fn ask(
    op: &dyn Op,
    (input_descs, inputs): (&[TensorDesc], &[Vec<u8>]),
    (inout_descs, inouts): (&[TensorDesc], &[Vec<u8>]),
    outputs: &[TensorDesc],
) -> (Vec<Expected>, Vec<ExpectedState>) {
    let run = |inout_descs: &[TensorDesc], after: &mut [Vec<u8>]| {
        let mut args = RefArgs {
            inputs: input_descs
                .iter()
                .zip(inputs)
                .map(|(desc, bytes)| RefTensor { desc, bytes })
                .collect(),
            inouts: inout_descs
                .iter()
                .zip(after)
                .map(|(desc, bytes)| RefTensorMut { desc, bytes })
                .collect(),
            outputs: outputs.iter().map(RefOutput::new).collect(),
        };
        op.reference(&mut args);
        args.outputs
            .into_iter()
            .map(|output| Expected {
                desc: output.desc.clone(),
                values: output.values,
                magnitudes: output.magnitudes,
                norms: output.norms,
            })
            .collect::<Vec<_>>()
    };
    let mut after: Vec<Vec<u8>> = inouts.to_vec();
    let expected = run(inout_descs, &mut after);
    // The same op on plain f32 caches says what the encoder was given.
    let exact = if inout_descs.iter().any(|desc| desc.layout == Layout::Pages) {
        let plain: Vec<TensorDesc> = inout_descs
            .iter()
            .map(|desc| TensorDesc {
                dtype: DType::F32,
                ..desc.clone()
            })
            .collect();
        let mut exact: Vec<Vec<u8>> = plain.iter().map(|desc| vec![0; desc.n_bytes()]).collect();
        run(&plain, &mut exact);
        exact
            .iter()
            .map(|bytes| {
                let words = bytes.chunks_exact(4);
                Some(
                    words
                        .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]))
                        .collect(),
                )
            })
            .collect()
    } else {
        vec![None; inout_descs.len()]
    };
    let states = inout_descs
        .iter()
        .zip(inouts)
        .zip(after)
        .zip(exact)
        .map(|(((desc, before), after), exact)| ExpectedState {
            desc: desc.clone(),
            before: before.clone(),
            after,
            exact,
        })
        .collect();
    (expected, states)
}

/// Where one binding lies in its pool.
#[derive(Clone, Copy, Debug)]
struct Place {
    pool: usize,
    at: usize,
    /// Bytes of the operand, whole words.
    n_bytes: usize,
    case: usize,
    operand: Part,
}

/// Which operand of a case a binding belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Input(usize, usize),
    Inout(usize),
    Output(usize),
    Scratch(usize),
}

/// The bindings of a batch in their pools.
#[derive(Debug)]
struct PoolLayout {
    sizes: Vec<(String, usize)>,
    places: Vec<Place>,
}

impl PoolLayout {
    fn new(cases: &[&Prepared]) -> Self {
        let mut layout = Self {
            sizes: Vec::new(),
            places: Vec::new(),
        };
        for (index, case) in cases.iter().enumerate() {
            for (i, input) in case.inputs.iter().enumerate() {
                for (window, piece) in input.pieces[0].iter().enumerate() {
                    layout.add(
                        &format!("input {i}"),
                        index,
                        Part::Input(i, window),
                        piece.len(),
                    );
                }
            }
            for (i, inout) in case.inouts.iter().enumerate() {
                layout.add(
                    &format!("state {i}"),
                    index,
                    Part::Inout(i),
                    inout.pieces[0][0].len(),
                );
            }
            for (i, output) in case.outputs.iter().enumerate() {
                layout.add(
                    &format!("output {i}"),
                    index,
                    Part::Output(i),
                    output.n_bytes(),
                );
            }
            for (i, &n_bytes) in case.scratch.iter().enumerate() {
                layout.add(&format!("scratch {i}"), index, Part::Scratch(i), n_bytes);
            }
        }
        layout
    }

    fn add(&mut self, pool: &str, case: usize, operand: Part, n_bytes: usize) {
        let known = self.sizes.iter().position(|(name, _)| name == pool);
        let index = known.unwrap_or(self.sizes.len());
        if known.is_none() {
            self.sizes.push((pool.to_owned(), ALIGN));
        }
        let size = &mut self.sizes[index].1;
        let n_bytes = n_bytes.next_multiple_of(4);
        let place = Place {
            pool: index,
            at: *size,
            n_bytes,
            case,
            operand,
        };
        *size = (place.at + n_bytes + GUARD + ALIGN).next_multiple_of(ALIGN);
        self.places.push(place);
    }

    fn of(&self, case: usize) -> impl Iterator<Item = &Place> {
        // Places are in the order of the cases.
        let first = self.places.partition_point(|place| place.case < case);
        self.places[first..]
            .iter()
            .take_while(move |place| place.case == case)
    }

    fn plan(&self, cases: &[&Prepared], buffers: &[Buffer]) -> Plan {
        let span = |place: &Place| Span {
            buffer: place.pool,
            offset: place.at as u64,
            n_bytes: (place.n_bytes + GUARD) as u64,
        };
        let steps = cases
            .iter()
            .enumerate()
            .map(|(index, case)| {
                let spans = |wanted: &dyn Fn(Part) -> bool| -> Vec<Span> {
                    self.of(index)
                        .filter(|place| wanted(place.operand))
                        .map(span)
                        .collect()
                };
                let placed = |desc: &TensorDesc, spans| Placed {
                    desc: desc.clone(),
                    spans,
                };
                Step {
                    label: case.case.id.clone(),
                    op: case.case.op.clone(),
                    inputs: (case.inputs.iter().enumerate())
                        .map(|(i, p)| {
                            placed(
                                &p.desc,
                                spans(&|part| matches!(part, Part::Input(n, _) if n == i)),
                            )
                        })
                        .collect(),
                    inouts: (case.inouts.iter().enumerate())
                        .map(|(i, p)| placed(&p.desc, spans(&|part| part == Part::Inout(i))))
                        .collect(),
                    outputs: (case.outputs.iter().enumerate())
                        .map(|(i, desc)| placed(desc, spans(&|part| part == Part::Output(i))))
                        .collect(),
                    scratch: spans(&|part| matches!(part, Part::Scratch(_))),
                    launches: case.launches.clone(),
                    cost: case.cost,
                }
            })
            .collect();
        Plan {
            label: "conformance".to_owned(),
            buffers: buffers.to_vec(),
            steps,
            step_buffer: None,
            step_inputs: BTreeMap::new(),
            outputs: Vec::new(),
            readback: None,
        }
    }

    /// The contents of the pools before a run.
    fn images(&self, cases: &[&Prepared], poison: Poison, stale: u32) -> Vec<Vec<u8>> {
        let mut images: Vec<Vec<u8>> = self
            .sizes
            .iter()
            .map(|(name, size)| {
                // Inputs may be read beyond their end by mistake: that must hurt. Guards of outputs are the same word.
                let word = if name.starts_with("input") {
                    poison.word(DType::F32)
                } else {
                    stale
                };
                word.to_le_bytes().repeat(size / 4)
            })
            .collect();
        for place in &self.places {
            let case = cases[place.case];
            let piece = match place.operand {
                Part::Input(i, window) => &case.inputs[i].pieces[slot(poison)][window],
                Part::Inout(i) => &case.inouts[i].pieces[slot(poison)][0],
                Part::Output(_) | Part::Scratch(_) => continue,
            };
            images[place.pool][place.at..place.at + piece.len()].copy_from_slice(piece);
        }
        images
    }

    /// Notes every change outside outputs, scratch and in-place operands: inputs, guards, gaps.
    fn check_untouched(
        &self,
        before: &[Vec<u8>],
        after: &[Vec<u8>],
        notes: &mut [BTreeSet<String>],
    ) {
        for (pool, (name, size)) in self.sizes.iter().enumerate() {
            if before[pool] == after[pool] {
                continue;
            }
            let places: Vec<&Place> = self
                .places
                .iter()
                .filter(|place| place.pool == pool)
                .collect();
            let mut at = 0;
            for (index, place) in places.iter().enumerate() {
                let next = places.get(index + 1).map_or(*size, |next| next.at);
                let changed = |from: usize, to: usize| {
                    (from..to).find(|&i| before[pool][i] != after[pool][i])
                };
                if let Some(i) = changed(at, place.at) {
                    notes[place.case].insert(format!("wrote {} bytes before {name}", place.at - i));
                }
                if matches!(place.operand, Part::Input(..))
                    && let Some(i) = changed(place.at, place.at + place.n_bytes)
                {
                    notes[place.case].insert(format!("changed byte {} of {name}", i - place.at));
                }
                if let Some(i) = changed(place.at + place.n_bytes, next) {
                    let beyond = i - place.at - place.n_bytes;
                    notes[place.case]
                        .insert(format!("wrote {beyond} bytes beyond the end of {name}"));
                }
                at = next;
            }
        }
    }

    /// Notes outputs whose bits differ between runs. What in-place operands hold outside the written cells is poison
    /// of each run, so of these only whole caches with one poison are compared, by the judge.
    fn check_same(
        &self,
        cases: &[&Prepared],
        first: &[Vec<u8>],
        again: &[Vec<u8>],
        notes: &mut [BTreeSet<String>],
    ) {
        for place in &self.places {
            // The rest of a last word belongs to nobody.
            let n_bytes = match place.operand {
                Part::Output(i) => cases[place.case].outputs[i].n_bytes(),
                Part::Input(..) | Part::Inout(_) | Part::Scratch(_) => place.n_bytes,
            };
            let range = place.at..place.at + n_bytes;
            let (a, b) = (&first[place.pool][range.clone()], &again[place.pool][range]);
            let differs = match place.operand {
                Part::Output(_) => a != b,
                Part::Inout(i) => {
                    let pieces = &cases[place.case].inouts[i].pieces;
                    // Written bytes are equal in both runs; the others are what each run began with.
                    (0..a.len()).any(|at| {
                        a[at] != b[at] && (a[at] != pieces[0][0][at] || b[at] != pieces[1][0][at])
                    })
                }
                Part::Input(..) | Part::Scratch(_) => false,
            };
            if differs {
                notes[place.case]
                    .insert("is not the same in a second run with other poison".to_owned());
            }
        }
    }

    /// Compares the outputs and in-place operands of a case with the reference.
    fn judge(
        &self,
        index: usize,
        case: &Prepared,
        after: &[Vec<u8>],
        notes: BTreeSet<String>,
    ) -> Judged {
        let mut judged = Judged {
            figures: Figures::default(),
            problems: notes.into_iter().collect(),
        };
        for place in self.of(index) {
            let bytes = &after[place.pool][place.at..place.at + place.n_bytes];
            let result = match place.operand {
                Part::Output(i) => {
                    let expected = &case.expected[i];
                    let stale = STALE[0].to_le_bytes();
                    let unwritten = bytes.chunks_exact(4).filter(|&word| word == stale).count();
                    if unwritten > 0 {
                        judged
                            .problems
                            .push(format!("left {unwritten} words of output {i} unwritten"));
                    }
                    let got = compare::elements(&expected.desc, bytes);
                    compare::judge(expected, &got, case.tolerance)
                }
                Part::Inout(i) => compare::judge_state(case.states[i].state(), bytes),
                Part::Input(..) | Part::Scratch(_) => continue,
            };
            match result {
                Ok(figures) => judged.figures = judged.figures.worst(figures),
                Err(mismatch) => {
                    judged.figures = judged.figures.worst(mismatch.figures);
                    judged.problems.push(mismatch.message);
                }
            }
        }
        judged
    }
}

/// The result of a case that ran.
#[derive(Debug)]
struct Judged {
    figures: Figures,
    problems: Vec<String>,
}

impl Judged {
    fn into_outcome(self, prepared: &Prepared, outcome: Outcome) -> Outcome {
        Outcome {
            status: if self.problems.is_empty() {
                Status::Pass
            } else {
                Status::Fail
            },
            message: self.problems.join("; "),
            headroom: self.figures.headroom,
            max_abs: self.figures.max_abs,
            nmse: self.figures.nmse,
            bytes: prepared.cost.bytes,
            flops: prepared.cost.flops,
            ..outcome
        }
    }
}

//! Compiles kernels for NVIDIA's architectures without a GPU, and reports what they take of a multiprocessor.
//!
//! What is compiled is what the case tables and the plans of models launch on a device with the documented capabilities
//! of each architecture. A kernel that does not compile, that no multiprocessor can hold, or that keeps values of a hot
//! op in local memory is a fault.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use gemel_core::error::DeviceError;
use gemel_core::op::{Caps, Const, Launch};
use gemel_cuda::cubin::{self, Loop, Resources};
use gemel_cuda::source;
use gemel_engine::blocks::{Head, Precision, StepShape};
use gemel_engine::synthetic::{self, Spec};
use rayon::prelude::*;

use crate::cases::{self, Case, Tag};
use crate::hollow;
use crate::run::kernel_name;
use crate::targets::{Bound, Occupancy, Target};

/// Which kernels are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Every architecture gets the first kernel of each entry and the hot kernels of [`MODELS`]; the other kernels of
    /// the cases of `cargo test` and of the benchmarks' shapes are dealt out, each to one architecture.
    Subset,
    /// The kernels of every case, and of every published model in [`ALL_TYPES`].
    All,
}

/// The models whose hot kernels every architecture gets.
pub const MODELS: &[&str] = &["llama:8b:q4_k", "llama:8b:q8_0"];

/// Weight types of the models of [`Extent::All`].
pub const ALL_TYPES: &[&str] = &["q4_k", "q8_0", "f16", "bf16"];

/// Tokens of the steps that models are planned for.
const STEPS: [usize; 5] = [1, 4, 16, 64, 512];

impl Extent {
    fn has(self, case: &Case) -> bool {
        match self {
            Self::Subset => case.has(Tag::Quick) || case.has(Tag::Bench),
            Self::All => true,
        }
    }

    fn models(self) -> Result<Vec<Spec>> {
        let names: Vec<String> = match self {
            Self::Subset => MODELS.iter().map(|&name| name.to_owned()).collect(),
            Self::All => synthetic::models()
                .filter(|&(_, size)| size != "tiny")
                .flat_map(|(arch, size)| {
                    ALL_TYPES
                        .iter()
                        .map(move |dtype| format!("{arch}:{size}:{dtype}"))
                })
                .collect(),
        };
        names
            .iter()
            .map(|name| name.parse().with_context(|| name.clone()))
            .collect()
    }
}

/// A kernel to be compiled for one architecture.
#[derive(Clone, Debug)]
pub struct Job {
    /// The architecture.
    pub target: Target,
    /// The op.
    pub op: &'static str,
    /// Whether it must not use local memory.
    pub hot: bool,
    /// Whether a plan of a model has it.
    pub in_model: bool,
    /// A launch of the kernel.
    pub launch: Launch,
}

/// A compiled kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// What was compiled.
    pub job: Job,
    /// What it takes.
    pub resources: Resources,
    /// How many blocks a multiprocessor holds.
    pub occupancy: Occupancy,
    /// Its loops with products on tensor cores, the smallest first.
    pub loops: Vec<Loop>,
}

/// A number of a specialisation.
pub(crate) fn constant(launch: &Launch, wanted: &str) -> Option<u32> {
    launch
        .spec
        .consts
        .iter()
        .find_map(|(name, value)| match value {
            Const::U32(value) if *name == wanted => Some(*value),
            Const::U32(_) | Const::Bool(_) => None,
        })
}

impl Job {
    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        constant(&self.launch, "THREADS").unwrap_or(1)
    }

    /// Dynamic shared memory of a block, in bytes.
    pub fn dynamic_bytes(&self) -> u32 {
        constant(&self.launch, "SHARED_BYTES").unwrap_or(0)
    }

    fn name(&self) -> String {
        kernel_name(self.op, &self.launch)
    }

    /// Compiles; with a folder, source and cubin are kept there.
    ///
    /// # Errors
    /// The compiler's words.
    pub fn run(self, keep: Option<&Path>) -> Result<Kernel, String> {
        let compute = self.target.compute;
        let name = || format!("{} for {}", self.name(), self.target);
        let image = gemel_cuda::check(self.op, &self.launch, compute)
            .map_err(|error| format!("{}: {error}", name()))?;
        if let Some(folder) = keep {
            let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
            let file: String = name().chars().map(plain).collect();
            let text = source::join(&source::embedded(), self.op, &self.launch)
                .map_err(|error| format!("{}: {error}", name()))?
                .text;
            fs::write(folder.join(format!("{file}.cu")), text)
                .and_then(|()| fs::write(folder.join(format!("{file}.cubin")), &image))
                .map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let resources = cubin::resources(&image, self.launch.entry, compute)
            .map_err(|error| format!("{}: {error}", name()))?;
        let occupancy = self
            .target
            .occupancy(self.threads(), resources, self.dynamic_bytes());
        let loops = cubin::loops(&image, self.launch.entry, compute)
            .map_err(|error| format!("{}: {error}", name()))?;
        Ok(Kernel {
            job: self,
            resources,
            occupancy,
            loops,
        })
    }
}

impl Kernel {
    /// What must not be.
    pub fn fault(&self) -> Option<String> {
        let name = || format!("{} for {}", self.job.name(), self.job.target);
        if self.occupancy.blocks == 0 {
            return Some(format!(
                "{}: a multiprocessor cannot hold one block, for its {}",
                name(),
                self.occupancy.bound.name()
            ));
        }
        (self.job.hot && self.resources.local_bytes > 0).then(|| {
            format!(
                "{}: {} bytes of local memory a thread beside {} registers",
                name(),
                self.resources.local_bytes,
                self.resources.registers
            )
        })
    }
}

/// Whether an op has a kernel at all.
pub fn has_kernel(op: &str) -> bool {
    let file = format!("{op}.cu");
    source::embedded().files().any(|(name, _)| name == file)
}

/// The kernels of cases and models on these architectures, each once. `ops` empty: all that have any.
///
/// # Errors
/// A case without launches on an architecture, a model without a plan.
pub fn jobs(targets: &[Target], extent: Extent, ops: &[String]) -> Result<Vec<Job>> {
    let wanted = |op: &str| (ops.is_empty() || ops.iter().any(|name| name == op)) && has_kernel(op);
    let cases: Vec<Case> = cases::TABLES
        .iter()
        .filter(|(op, _)| wanted(op))
        .flat_map(|(_, table)| table())
        .filter(|case| extent.has(case))
        .collect();
    let models = extent.models()?;
    let mut list = Vec::new();
    for (turn, &target) in targets.iter().enumerate() {
        let caps: Caps = target.caps();
        let mut known = BTreeSet::new();
        for spec in &models {
            for (op, hot, launch) in of_model(spec, &caps)? {
                let taken = wanted(op) && (hot || extent == Extent::All);
                if taken && known.insert(kernel_name(op, &launch)) {
                    list.push(Job {
                        target,
                        op,
                        hot,
                        in_model: true,
                        launch,
                    });
                }
            }
        }
        // Kernels of each entry so far. What models have is counted too: who gets which does not depend on them.
        let mut dealt = BTreeSet::new();
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for case in &cases {
            let made = case
                .launches(&caps)
                .with_context(|| format!("{case:?} on {target}"))?;
            for launch in made.list {
                let op = case.op.name();
                let name = kernel_name(op, &launch);
                if !dealt.insert(name.clone()) {
                    continue;
                }
                let count = counts.entry((op, launch.entry)).or_default();
                *count += 1;
                let taken = *count == 1 || *count % targets.len() == turn;
                if (taken || extent == Extent::All) && known.insert(name) {
                    list.push(Job {
                        target,
                        op,
                        hot: case.op.is_hot(),
                        in_model: false,
                        launch,
                    });
                }
            }
        }
    }
    Ok(list)
}

/// What the plans of a model's steps launch, in both precisions: op, whether it is hot, launch.
fn of_model(spec: &Spec, caps: &Caps) -> Result<Vec<(&'static str, bool, Launch)>> {
    let mut list = Vec::new();
    for precision in [Precision::Strict, Precision::Fast] {
        let most = STEPS.into_iter().max().unwrap_or(1);
        let mut context = hollow::open(spec, caps.clone(), precision, most)
            .with_context(|| format!("loading {spec}"))?;
        for n_tokens in STEPS {
            let recording = context
                .plan(StepShape {
                    n_tokens,
                    n_outputs: 1,
                    max_len: hollow::N_CTX,
                    head: Head::Argmax,
                })
                .with_context(|| format!("{n_tokens} tokens of {spec}"))?;
            for step in &recording.plan.steps {
                let (op, hot) = (step.op.name(), step.op.is_hot());
                list.extend(step.launches.iter().map(|launch| (op, hot, launch.clone())));
            }
        }
    }
    Ok(list)
}

/// Whether kernels can be compiled here; if not, why.
///
/// # Errors
/// One line.
pub fn compiler() -> Result<String, DeviceError> {
    gemel_cuda::compiler().map_err(|available| DeviceError::NotFound {
        wanted: "nvrtc".to_owned(),
        available,
    })
}

/// Compiles on all cores: the kernels, and the words of the compiler on those that failed. With a folder, sources
/// and cubins are kept there.
pub fn compile(
    jobs: Vec<Job>,
    keep: Option<&Path>,
    progress: &(dyn Fn(usize) + Sync),
) -> (Vec<Kernel>, Vec<String>) {
    let done = std::sync::atomic::AtomicUsize::new(0);
    let results: Vec<_> = jobs
        .into_par_iter()
        .map(|job| {
            let result = job.run(keep);
            progress(1 + done.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
            result
        })
        .collect();
    let (mut kernels, mut failures) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(kernel) => kernels.push(kernel),
            Err(failure) => failures.push(failure),
        }
    }
    (kernels, failures)
}

/// Least and most of a figure.
#[derive(Clone, Copy, Debug)]
struct Range(u32, u32);

impl Range {
    fn of(figures: impl Iterator<Item = u32>) -> Self {
        figures.fold(Self(u32::MAX, 0), |range, n| {
            Self(range.0.min(n), range.1.max(n))
        })
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == self.1 {
            write!(f, "{}", self.0)
        } else {
            write!(f, "{} - {}", self.0, self.1)
        }
    }
}

/// One table an op: per entry and architecture the extremes over its kernels.
pub fn table(kernels: &[Kernel]) -> String {
    let mut out = String::new();
    let ops: BTreeMap<&str, bool> = (kernels.iter())
        .map(|kernel| (kernel.job.op, kernel.job.hot))
        .collect();
    for (op, _) in cases::TABLES.iter().filter(|(op, _)| ops.contains_key(op)) {
        let mut rows: BTreeMap<(&str, Target), Vec<&Kernel>> = BTreeMap::new();
        for kernel in kernels.iter().filter(|kernel| kernel.job.op == *op) {
            let row = (kernel.job.launch.entry, kernel.job.target);
            rows.entry(row).or_default().push(kernel);
        }
        let hot = if ops[op] { " (hot)" } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "\n## {op}{hot}\n\n| entry | target | kernels | threads | registers | shared | local | warps | of | bound by |\n\
             |---|---|---|---|---|---|---|---|---|---|"
        );
        for ((entry, target), kernels) in rows {
            let range = |figure: &dyn Fn(&Kernel) -> u32| {
                Range::of(kernels.iter().map(|kernel| figure(kernel)))
            };
            let bounds: BTreeSet<_> = kernels
                .iter()
                .map(|kernel| kernel.occupancy.bound)
                .collect();
            let bounds: Vec<&str> = bounds.into_iter().map(Bound::name).collect();
            let _ = writeln!(
                out,
                "| {entry} | {target} | {} | {} | {} | {} | {} | {} | {} | {} |",
                kernels.len(),
                range(&|kernel| kernel.job.threads()),
                range(&|kernel| kernel.resources.registers),
                range(&|kernel| kernel.resources.shared_bytes + kernel.job.dynamic_bytes()),
                range(&|kernel| kernel.resources.local_bytes),
                range(&|kernel| kernel.occupancy.warps),
                target.max_warps,
                bounds.join(", "),
            );
        }
    }
    out
}

/// The contents of `docs/kernels.md`.
pub fn document(compiler: &str, targets: &[Target], kernels: &[Kernel]) -> String {
    let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
    format!(
        "# Kernels\n\n\
         Generated by `gemel-conformance compile -o docs/kernels.md`; do not edit.\n\n\
         What {compiler} makes for {} of the first kernel of every entry point and of the hot kernels of {} (steps of {} tokens, strict and fast); the other kernels of the quick cases and of the benchmarks' shapes are dealt out, one architecture each. `--all` compiles those of every case and of every published model for all.\n\
         No GPU is needed for it, and none has confirmed it.\n\n\
         A row holds the least and the most over the kernels of one entry point: threads of a block, registers of a thread, bytes of shared memory of a block (static and dynamic), bytes of local memory of a thread.\n\
         `warps` are those that a multiprocessor holds of at most `of`, by the documented limits of the architecture; `bound by` says what keeps it from holding more.\n\
         An op that is hot must not use local memory: `gemel-conformance compile` fails if it does. Where the compiler spills to let a multiprocessor hold more warps, the loader has it compile again for fewer.\n{}",
        names.join(", "),
        MODELS.join(" and "),
        STEPS.map(|n| n.to_string()).join(", "),
        table(kernels)
    )
}

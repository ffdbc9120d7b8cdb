//! What a model should reach on a GPU, by arithmetic: nobody has to have one.
//!
//! The plan of a step is made for the GPU's documented capabilities on a device that holds no memory, its kernels are
//! compiled, and each step's bytes and flops (the cost models of the ops) are divided by what the data sheet says.
//! Two times come out: the floor, which nothing can beat, and an estimate with the [`ASSUMPTIONS`].

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context as _, Result, anyhow};
use gemel_core::op::{Cost, Roof};
use gemel_core::plan::Plan;
use gemel_engine::blocks::{Head, Precision, StepShape};
use gemel_engine::synthetic::Spec;

use crate::compile::{Job, Kernel};
use crate::hollow;
use crate::run::kernel_name;
use crate::targets::Target;

/// What a data sheet says about a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Gpu {
    /// The name to select it by.
    pub name: &'static str,
    /// Compute capability.
    compute: (u32, u32),
    /// Multiprocessors.
    n_processors: u32,
    /// GB/s of its memory.
    gb_per_s: f64,
    /// TFLOP/s of f32 multiply-adds.
    vector: f64,
    /// TFLOP/s of products of f16 matrices summed in f32, without sparsity.
    matrix: f64,
    /// The same of bytes.
    byte_matrix: f64,
}

/// The GPUs.
///
/// # Source
/// NVIDIA's data sheets of A100 80GB SXM and H200 SXM; the whitepapers of the Ampere GA102, Ada and RTX Blackwell
/// architectures.
pub const GPUS: [Gpu; 5] = [
    gpu("h200", (9, 0), 132, 4800.0, 67.0, 989.0, 1979.0),
    gpu("a100", (8, 0), 108, 2039.0, 19.5, 312.0, 624.0),
    gpu("5090", (12, 0), 170, 1792.0, 104.8, 209.5, 838.0),
    gpu("4090", (8, 9), 128, 1008.0, 82.6, 165.2, 660.6),
    gpu("3090", (8, 6), 82, 936.0, 35.6, 71.0, 284.0),
];

const fn gpu(
    name: &'static str,
    compute: (u32, u32),
    n_processors: u32,
    gb_per_s: f64,
    vector: f64,
    matrix: f64,
    byte_matrix: f64,
) -> Gpu {
    Gpu {
        name,
        compute,
        n_processors,
        gb_per_s,
        vector,
        matrix,
        byte_matrix,
    }
}

/// Nanoseconds from the end of a launch of a graph to the start of the next that depends on it.
const LAUNCH_NS: f64 = 1500.0;
/// Nanoseconds from a load to its data.
const LATENCY_NS: f64 = 700.0;
/// Bytes that a warp has under way: two loads of 16 bytes a lane.
const WARP_BYTES: f64 = 2.0 * 16.0 * 32.0;
/// Share of the memory's rate that a full GPU reaches.
const MEMORY_SHARE: f64 = 0.85;
/// Share of the arithmetic's rate that a full GPU reaches through `mma`, which is half of what Hopper's own instructions
/// reach.
const ARITHMETIC_SHARE: f64 = 0.5;

/// What an estimate assumes, in words.
pub const ASSUMPTIONS: &str = "\
Assumed are 1.5 us between two launches of a graph, 700 ns from a load to its data, two loads of 16 bytes under way a lane \
(so that bytes under way, and with them the bandwidth, follow the warps that the compiled kernel's registers and shared memory \
allow), at most 85 % of the memory's rate, 50 % of the arithmetic's on the units of the op's roof, and whole waves of blocks; each op moves what its cost \
model counts, once.";

impl Gpu {
    /// The GPU of a name.
    pub fn named(name: &str) -> Option<Self> {
        GPUS.into_iter().find(|gpu| gpu.name == name)
    }

    fn target(&self) -> Result<Target> {
        crate::targets::TARGETS
            .into_iter()
            .find(|target| target.compute == self.compute)
            .with_context(|| format!("{} has no target", self.name))
    }

    /// Operations a second under a roof.
    fn arithmetic(&self, roof: Roof) -> f64 {
        1e12 * match roof {
            Roof::Vector => self.vector,
            Roof::Matrix => self.matrix,
            Roof::ByteMatrix => self.byte_matrix,
        }
    }

    fn floor_s(&self, roof: Roof, cost: Cost) -> f64 {
        let read = cost.bytes as f64 / (self.gb_per_s * 1e9);
        read.max(cost.flops as f64 / self.arithmetic(roof))
    }

    /// Seconds of a launch that does all of an op's work, without the gap before it.
    fn estimate_s(&self, roof: Roof, cost: Cost, kernel: &Kernel, n_blocks: u32) -> f64 {
        let slots = f64::from(kernel.occupancy.blocks.max(1) * self.n_processors);
        let n_blocks = f64::from(n_blocks.max(1));
        let warps = f64::from(kernel.job.threads().div_ceil(32));
        let resident = n_blocks.min(slots) * warps;
        // Bytes under way over the time that each takes.
        let rate =
            (resident * WARP_BYTES / (LATENCY_NS * 1e-9)).min(MEMORY_SHARE * self.gb_per_s * 1e9);
        let busy = (n_blocks / f64::from(self.n_processors)).min(1.0);
        let waves = n_blocks / slots;
        let tail = if waves > 1.0 {
            waves / waves.ceil()
        } else {
            1.0
        };
        let computed = cost.flops as f64 / (self.arithmetic(roof) * ARITHMETIC_SHARE * busy * tail);
        (cost.bytes as f64 / rate).max(computed)
    }
}

/// The figures of a step.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// Model, and `decode` or `prefill`.
    pub label: String,
    /// Tokens of the step.
    pub n_tokens: usize,
    /// Kernel launches.
    pub n_launches: usize,
    /// Sum over its ops.
    pub cost: Cost,
    /// Seconds that nothing can beat.
    pub floor_s: f64,
    /// Seconds by the assumptions.
    pub estimate_s: f64,
    /// The same by op, with the gaps between launches under `launches`.
    pub by_op: BTreeMap<String, f64>,
}

/// Cells that are cached before a decode step.
const DEPTH: usize = 512;
/// Tokens of a prompt.
const PROMPT: usize = 512;

/// Estimates one token after a prompt of 512, and that prompt, of a synthetic model.
///
/// # Errors
/// A model that cannot be planned, a kernel that does not compile.
pub fn estimate(gpu: Gpu, spec: &Spec, precision: Precision) -> Result<[Estimate; 2]> {
    let target = gpu.target()?;
    let mut context = hollow::open(spec, target.caps(), precision, PROMPT)?;
    let mut step = |label: &str, n_tokens: usize, max_len: usize| -> Result<Estimate> {
        let recording = context.plan(StepShape {
            n_tokens,
            n_outputs: 1,
            max_len,
            head: Head::Argmax,
        })?;
        of_plan(
            gpu,
            target,
            &recording.plan,
            format!("{label} of {spec}"),
            n_tokens,
        )
    };
    Ok([
        step("decode", 1, 2 * DEPTH)?,
        step("prefill", PROMPT, PROMPT)?,
    ])
}

fn of_plan(
    gpu: Gpu,
    target: Target,
    plan: &Plan,
    label: String,
    n_tokens: usize,
) -> Result<Estimate> {
    let mut kernels: BTreeMap<String, Kernel> = BTreeMap::new();
    let mut jobs = BTreeMap::new();
    for step in &plan.steps {
        for launch in &step.launches {
            let op = step.op.name();
            jobs.entry(kernel_name(op, launch)).or_insert_with(|| Job {
                target,
                op,
                hot: step.op.is_hot(),
                in_model: true,
                launch: launch.clone(),
            });
        }
    }
    let (list, failures) = crate::compile::compile(jobs.into_values().collect(), None, &|_| {});
    if let Some(failure) = failures.into_iter().next() {
        return Err(anyhow!(failure));
    }
    for kernel in list {
        kernels.insert(kernel_name(kernel.job.op, &kernel.job.launch), kernel);
    }
    let mut found = Estimate {
        label,
        n_tokens,
        n_launches: plan.n_launches(),
        cost: plan.cost(),
        floor_s: 0.0,
        estimate_s: 0.0,
        by_op: BTreeMap::new(),
    };
    for step in &plan.steps {
        found.floor_s += gpu.floor_s(step.op.roof(), step.cost);
        // Windows of a weight share its work by their blocks; a merge is small beside what it merges.
        let blocks = |grid: [u32; 3]| grid.iter().product::<u32>();
        let total: u64 = (step.launches.iter())
            .map(|launch| u64::from(blocks(launch.grid)))
            .sum();
        let mut seconds = 0.0;
        for launch in &step.launches {
            let n_blocks = blocks(launch.grid);
            let share = f64::from(n_blocks) / total.max(1) as f64;
            let part = Cost {
                bytes: (step.cost.bytes as f64 * share) as u64,
                flops: (step.cost.flops as f64 * share) as u64,
            };
            let kernel = kernels
                .get(&kernel_name(step.op.name(), launch))
                .context("every kernel of the plan was compiled")?;
            seconds += gpu.estimate_s(step.op.roof(), part, kernel, n_blocks);
        }
        *found.by_op.entry(step.op.name().to_owned()).or_default() += seconds;
    }
    let gaps = found.n_launches as f64 * LAUNCH_NS * 1e-9;
    found.by_op.insert("launches".to_owned(), gaps);
    found.estimate_s = found.by_op.values().sum();
    Ok(found)
}

/// A row of [`table`]: step, launches, MB, GFLOP, floor and estimate in ms, tokens a second, the three largest parts.
impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<_> = self.by_op.iter().collect();
        parts.sort_by(|a, b| b.1.total_cmp(a.1));
        let parts: Vec<String> = parts
            .iter()
            .take(3)
            .map(|(op, seconds)| format!("{op} {:.0} %", 100.0 * *seconds / self.estimate_s))
            .collect();
        write!(
            f,
            "| {} | {} | {:.0} | {:.0} | {:.2} | {:.2} | {:.0} | {} |",
            self.label,
            self.n_launches,
            self.cost.bytes as f64 / 1e6,
            self.cost.flops as f64 / 1e9,
            self.floor_s * 1e3,
            self.estimate_s * 1e3,
            self.n_tokens as f64 / self.estimate_s,
            parts.join(", ")
        )
    }
}

/// Decode and prefill of models on a GPU, as Markdown.
///
/// # Errors
/// As [`estimate`].
pub fn table(gpu: Gpu, specs: &[Spec], precision: Precision) -> Result<String> {
    let mut text = format!(
        "\n## {}, {} GB/s, estimated\n\n\
         | step | launches | MB | GFLOP | floor ms | estimate ms | tok/s | largest parts |\n\
         |---|---|---|---|---|---|---|---|\n",
        gpu.name, gpu.gb_per_s
    );
    for spec in specs {
        for row in estimate(gpu, spec, precision).with_context(|| spec.to_string())? {
            text += &row.to_string();
            text.push('\n');
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemel_core::op::{Launch, Params, Spec as Specialisation};
    use gemel_cuda::cubin::Resources;

    fn kernel(target: Target, registers: u32) -> Kernel {
        let launch = Launch {
            entry: "k",
            spec: Specialisation::threads(128),
            params: Params::new(),
            grid: [1, 1, 1],
            bindings: Vec::new(),
        };
        let resources = Resources {
            registers,
            ..Resources::default()
        };
        Kernel {
            occupancy: target.occupancy(128, resources, 0),
            job: Job {
                target,
                op: "k",
                hot: false,
                in_model: false,
                launch,
            },
            resources,
        }
    }

    #[test]
    fn an_estimate_is_above_the_floor_and_falls_with_occupancy() {
        for gpu in GPUS {
            let target = gpu.target().unwrap();
            let cost = Cost {
                bytes: 1 << 30,
                flops: 1 << 30,
            };
            let floor = gpu.floor_s(Roof::Vector, cost);
            let time = |registers, n_blocks| {
                gpu.estimate_s(Roof::Vector, cost, &kernel(target, registers), n_blocks)
            };
            let full = time(32, 1 << 16);
            assert!(full > floor, "{}: {full} above {floor}", gpu.name);
            assert!(time(255, 1 << 16) >= full, "{}: fewer warps", gpu.name);
            assert!(time(32, 4) > 4.0 * full, "{}: four blocks", gpu.name);
        }
    }
}

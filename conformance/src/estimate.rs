//! What a model should reach on a GPU, by arithmetic: nobody has to have one.
//!
//! The plan of a step is made for the GPU's documented capabilities on a device that holds no memory, its kernels are
//! compiled, and each step's bytes and flops (the cost models of the ops) are divided by what the data sheet says.
//! Two times come out: the floor, which nothing can beat, and an estimate with the [`ASSUMPTIONS`]. Products of many
//! tokens are estimated by the instructions of their compiled loops, whatever these are for.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use anyhow::{Context as _, Result, anyhow};
use gemel_core::op::{Cost, Roof};
use gemel_core::ops::matmul::FEW_TOKENS;
use gemel_core::plan::Plan;
use gemel_engine::blocks::{Head, Precision, StepShape, row_bucket};
use gemel_engine::synthetic::Spec;

use crate::compile::{Job, Kernel, constant};
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
    /// GHz at which it reaches these.
    ghz: f64,
    /// Share of `matrix` that the instruction `mma` can reach.
    mma_share: f64,
}

/// The GPUs.
///
/// # Source
/// NVIDIA's data sheets of A100 80GB SXM and H200 SXM; the whitepapers of the Ampere GA102, Ada and RTX Blackwell
/// architectures. That `mma` reaches 62 % of what Hopper's own instructions do: Luo et al. 2024, "Benchmarking and
/// Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", arXiv:2402.13499.
pub const GPUS: [Gpu; 5] = [
    gpu(
        "h200",
        (9, 0),
        132,
        4800.0,
        (67.0, 989.0, 1979.0),
        1.83,
        0.62,
    ),
    gpu(
        "a100",
        (8, 0),
        108,
        2039.0,
        (19.5, 312.0, 624.0),
        1.41,
        0.95,
    ),
    gpu(
        "5090",
        (12, 0),
        170,
        1792.0,
        (104.8, 209.5, 838.0),
        2.41,
        0.95,
    ),
    gpu(
        "4090",
        (8, 9),
        128,
        1008.0,
        (82.6, 165.2, 660.6),
        2.52,
        0.95,
    ),
    gpu("3090", (8, 6), 82, 936.0, (35.6, 71.0, 284.0), 1.70, 0.95),
];

const fn gpu(
    name: &'static str,
    compute: (u32, u32),
    n_processors: u32,
    gb_per_s: f64,
    (vector, matrix, byte_matrix): (f64, f64, f64),
    ghz: f64,
    mma_share: f64,
) -> Gpu {
    Gpu {
        name,
        compute,
        n_processors,
        gb_per_s,
        vector,
        matrix,
        byte_matrix,
        ghz,
        mma_share,
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
/// Share of the arithmetic's rate that a full GPU reaches in kernels whose instructions are not counted.
const ARITHMETIC_SHARE: f64 = 0.5;
/// Share of a scheduler's issue slots that are used.
const ISSUE_SHARE: f64 = 0.85;
/// Bytes that a thread moves which prepares activations (two quads in, and out as 16-bit numbers).
const HELPER_BYTES: u64 = 48;
/// Schedulers of a multiprocessor.
const SCHEDULERS: f64 = 4.0;
/// Operations of a product of 16-bit floats on tensor cores (m16n8k16), and of bytes (m16n8k32).
const PRODUCT_FLOPS: (f64, f64) = (4096.0, 8192.0);

/// What an estimate assumes, in words.
pub const ASSUMPTIONS: &str = "\
Assumed are 1.5 us between two launches of a graph, 700 ns from a load to its data, two loads of 16 bytes under way a lane \
(so that bytes under way, and with them the bandwidth, follow the warps that the compiled kernel's registers and shared memory \
allow), at most 85 % of the memory's rate, and that each op moves what its cost model counts, once. Products of more than 16 \
tokens take the instructions of their compiled loops, every branch counted, at 85 % of the issue slots of the schedulers, or \
their products on tensor cores at the rate of `mma` (62 % of the data sheet's on Hopper, 95 % elsewhere), whichever is longer, on the \
multiprocessor with the most blocks; so does attention of more than 16 tokens, over half of the cells. Other kernels reach 50 % of the rate of the units \
of their op's roof, in whole waves of blocks.";

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

    /// Seconds of a launch by the instructions of its loop, if it has one that is counted: steps of many tokens.
    fn counted_s(&self, kernel: &Kernel, n_blocks: u32) -> Option<f64> {
        let launch = &kernel.job.launch;
        let number = |name: &str| constant(launch, name).map(f64::from);
        let param = |name: &str| {
            let fields = launch.params.fields();
            let found = fields.iter().find(|(field, _)| field == name);
            found.map(|(_, value)| f64::from(value.bits()))
        };
        // The loop over steps or chunks: the smallest with all products.
        let most = kernel.loops.iter().map(|found| found.products).max()?;
        let outer = kernel.loops.iter().find(|found| found.products == most)?;
        let inner = kernel.loops.iter().filter(|found| {
            found.products < most
                && found.first >= outer.first
                && found.first + found.instructions <= outer.first + outer.instructions
        });
        let mut slots = outer.instructions as f64;
        let mut products = outer.products as f64;
        let (turns, kind) = match launch.entry {
            "matmul_many" => (param("split_runs")? / number("STEP")?, self.matrix),
            "matmul_q8_many" => {
                // Either a turn is a step, or there is a loop over its runs around which the step is.
                let whole = kernel.loops.iter().find(|found| {
                    found.products == most && found.instructions > outer.instructions
                });
                let per_run = number("TILES")? * (number("TOKENS")? / 8.0);
                if let Some(whole) = whole.filter(|_| products <= 2.0 * per_run) {
                    slots = whole.instructions as f64 + (number("STEP")? - 1.0) * slots;
                    products *= number("STEP")?;
                }
                (param("split_runs")? / number("STEP")?, self.byte_matrix)
            }
            "attention_tiles" if param("n_tokens")? > FEW_TOKENS as f64 => {
                // The first inner loop is over blocks of 32 channels of keys, the others over 16 cells of values.
                let mut inner: Vec<_> = inner.collect();
                inner.sort_by_key(|found| found.first);
                for (at, found) in inner.into_iter().enumerate() {
                    let turns = match at {
                        0 => (param("dk")? / 32.0).ceil(),
                        _ => number("CELLS")? / 16.0,
                    };
                    slots += (turns - 1.0) * found.instructions as f64;
                    products += (turns - 1.0) * found.products as f64;
                }
                // Half of the cells of a prompt are behind a token.
                let chunks = PROMPT as f64 / 2.0 / number("CELLS")? + 0.5;
                (chunks / param("n_splits")?, self.matrix)
            }
            _ => return None,
        };
        let flops = match launch.entry {
            "matmul_q8_many" => PRODUCT_FLOPS.1,
            _ => PRODUCT_FLOPS.0,
        };
        let per_cycle =
            kind * 1e3 * self.mma_share / (f64::from(self.n_processors) * SCHEDULERS * self.ghz);
        let cycles = (slots / ISSUE_SHARE).max(products * flops / per_cycle);
        let blocks = f64::from(n_blocks.div_ceil(self.n_processors));
        let warps = f64::from(kernel.job.threads().div_ceil(32)) / SCHEDULERS;
        Some(blocks * warps.max(1.0) * turns * cycles / (self.ghz * 1e9))
    }

    /// Seconds of a launch that does all of an op's work, without the gap before it.
    fn estimate_s(&self, roof: Roof, cost: Cost, kernel: &Kernel, n_blocks: u32) -> f64 {
        let slots = f64::from(kernel.occupancy.blocks.max(1) * self.n_processors);
        let counted = self.counted_s(kernel, n_blocks);
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
        let computed = counted.unwrap_or_else(|| {
            cost.flops as f64 / (self.arithmetic(roof) * ARITHMETIC_SHARE * busy * tail)
        });
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
/// Longest step whose next token is looked at.
const MOST_SHARED: usize = 128;

/// The estimates of a model: one token after a prompt of 512, that prompt, and what one token more costs at most.
#[derive(Debug)]
pub struct Model {
    /// One token.
    pub decode: Estimate,
    /// The prompt.
    pub prefill: Estimate,
    /// Tokens `T` up to 128 whose next costs the most, and the time of `T + 1` over that of `T`.
    pub steepest: (usize, f64),
}

/// Estimates a synthetic model.
///
/// # Errors
/// A model that cannot be planned, a kernel that does not compile.
pub fn estimate(gpu: Gpu, spec: &Spec, precision: Precision) -> Result<Model> {
    let target = gpu.target()?;
    let mut context = hollow::open(spec, target.caps(), precision, PROMPT)?;
    let mut kernels = BTreeMap::new();
    let mut step = |label: &str, n_tokens: usize, max_len: usize| -> Result<Estimate> {
        let recording = context.plan(StepShape {
            n_tokens,
            n_outputs: 1,
            max_len,
            head: Head::Argmax,
        })?;
        let label = format!("{label} of {spec}");
        of_plan(gpu, target, &recording.plan, &mut kernels, label, n_tokens)
    };
    let decode = step("decode", 1, 2 * DEPTH)?;
    let prefill = step("prefill", PROMPT, PROMPT)?;
    let mut steepest = (1, 1.0);
    let mut before = (1, decode.estimate_s);
    // Steps are padded to buckets, so that time steps where these do.
    for n_tokens in 2..=MOST_SHARED + 1 {
        let bucket = row_bucket(n_tokens);
        if bucket == before.0 {
            continue;
        }
        let time = step("step", bucket, 2 * DEPTH)?.estimate_s;
        if time / before.1 > steepest.1 {
            steepest = (n_tokens - 1, time / before.1);
        }
        before = (bucket, time);
    }
    Ok(Model {
        decode,
        prefill,
        steepest,
    })
}

fn of_plan(
    gpu: Gpu,
    target: Target,
    plan: &Plan,
    kernels: &mut BTreeMap<String, Kernel>,
    label: String,
    n_tokens: usize,
) -> Result<Estimate> {
    let mut jobs = BTreeMap::new();
    for step in &plan.steps {
        for launch in &step.launches {
            let op = step.op.name();
            let name = kernel_name(op, launch);
            if kernels.contains_key(&name) {
                continue;
            }
            jobs.entry(name).or_insert_with(|| Job {
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
        let kernel_of = |launch| kernels.get(&kernel_name(step.op.name(), launch));
        let works = |launch| kernel_of(launch).is_some_and(|kernel| !kernel.loops.is_empty());
        let some_work = step.launches.iter().any(works);
        // Windows of a weight share its work by their blocks. Launches beside those with products, which prepare
        // activations or add partial sums, move HELPER_BYTES a thread.
        let blocks = |grid: [u32; 3]| grid.iter().product::<u32>();
        let total: u64 = (step.launches.iter())
            .filter(|launch| !some_work || works(launch))
            .map(|launch| u64::from(blocks(launch.grid)))
            .sum();
        let mut seconds = 0.0;
        for launch in &step.launches {
            let n_blocks = blocks(launch.grid);
            let mut kernel = kernel_of(launch)
                .context("every kernel of the plan was compiled")?
                .clone();
            // Kernels are shared by launches that differ in their parameters.
            kernel.job.launch.params = launch.params.clone();
            let part = if some_work && kernel.loops.is_empty() {
                let n_threads = u64::from(n_blocks) * u64::from(kernel.job.threads());
                Cost {
                    bytes: n_threads * HELPER_BYTES,
                    flops: 0,
                }
            } else {
                let share = f64::from(n_blocks) / total.max(1) as f64;
                Cost {
                    bytes: (step.cost.bytes as f64 * share) as u64,
                    flops: (step.cost.flops as f64 * share) as u64,
                }
            };
            seconds += gpu.estimate_s(step.op.roof(), part, &kernel, n_blocks);
        }
        *found.by_op.entry(step.op.name().to_owned()).or_default() += seconds;
    }
    let gaps = found.n_launches as f64 * LAUNCH_NS * 1e-9;
    found.by_op.insert("launches".to_owned(), gaps);
    found.estimate_s = found.by_op.values().sum();
    Ok(found)
}

/// The cells of a row of [`table`]: step, launches, MB, GFLOP, floor and estimate in ms, tokens a second, the three largest parts.
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
            "{} | {} | {:.0} | {:.0} | {:.2} | {:.2} | {:.0} | {} |",
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

/// Models on a GPU, strict and fast, as Markdown.
///
/// # Errors
/// As [`estimate`].
pub fn table(gpu: Gpu, specs: &[Spec]) -> Result<String> {
    let mut steps = String::new();
    let mut shares = String::new();
    for spec in specs {
        for (name, precision) in [("strict", Precision::Strict), ("fast", Precision::Fast)] {
            let model = estimate(gpu, spec, precision).with_context(|| spec.to_string())?;
            for row in [&model.decode, &model.prefill] {
                // Writing to a string cannot fail.
                let _ = writeln!(steps, "| {name} {row}");
            }
            let bandwidth = model.decode.cost.bytes as f64 / model.decode.estimate_s / 1e9;
            let rate = model.prefill.cost.flops as f64 / model.prefill.estimate_s / 1e12;
            let (tokens, ratio) = model.steepest;
            let _ = writeln!(
                shares,
                "| {spec} | {name} | {:.0} % | {:.0} % | {ratio:.2} at {tokens} |",
                100.0 * bandwidth / gpu.gb_per_s,
                100.0 * rate / gpu.matrix
            );
        }
    }
    Ok(format!(
        "\n## {}\n\n{} GB/s, {} TFLOP/s of bf16.\n\n\
         | model | precision | decode, of the memory's rate | prefill of {PROMPT}, of the bf16 rate | steepest: time of T + 1 over T |\n\
         |---|---|---|---|---|\n{shares}\n\
         | step | launches | MB | GFLOP | floor ms | estimate ms | tok/s | largest parts |\n\
         |---|---|---|---|---|---|---|---|\n{steps}",
        gpu.name, gpu.gb_per_s, gpu.matrix
    ))
}

/// The contents of `docs/estimates.md`.
///
/// # Errors
/// As [`estimate`].
pub fn document(compiler: &str, gpus: &[Gpu], specs: &[Spec]) -> Result<String> {
    let mut text = format!(
        "# Estimates\n\n\
         Generated by `gemel-conformance estimate -o docs/estimates.md`; do not edit.\n\n\
         What models should reach by arithmetic, with kernels as {compiler} compiles them. **These are estimates: no GPU has run this.** {ASSUMPTIONS}\n\n\
         `floor` is the time that the bytes at the memory's full rate, or the flops at the data sheet's, take at least. Strict precision multiplies 16-bit numbers that add up to f32, two to six products for one.\n"
    );
    for gpu in gpus {
        text += &table(*gpu, specs)?;
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
            loops: Vec::new(),
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

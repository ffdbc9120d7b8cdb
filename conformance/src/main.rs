//! `gemel-conformance`: lists, tests and times the cases of every op on a device.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use gemel_conformance::bench::Effort;
use gemel_conformance::cases::{self, Case, Tag};
use gemel_conformance::estimate::{self, GPUS, Gpu};
use gemel_conformance::report::{self, Format, Header, Outcome, Status};
use gemel_conformance::run::{self, Event, Options, Runner, kernel_name, least_caps};
use gemel_conformance::targets::{TARGETS, Target};
use gemel_conformance::{bench, bisect, cliffs, compile, golden, peak, support};
use gemel_core::DType;
use gemel_core::op::DeviceClass;
use gemel_engine::blocks::{Head, StepShape, len_bucket};
use gemel_engine::forward::StepToken;
use gemel_engine::gguf::GgufFile;
use gemel_engine::synthetic::Spec;

/// Holds every op on every backend against the f64 reference.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the ids of the selected cases.
    List(Selection),
    /// Run the selected cases and judge them; fails unless all pass.
    Test(Test),
    /// Time the cases tagged `bench` on a device.
    Bench(Bench),
    /// Time a matrix product of 1, 2, 3, .. tokens: one token more should never cost half as much again.
    Cliffs(Cliffs),
    /// Run models whose tokens and logits an independent engine has published, and compare.
    Golden(GoldenModels),
    /// Estimate, without a GPU, what models reach on one.
    Estimate(Estimate),
    /// Print the support table.
    Support {
        /// Write to this file.
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
    /// Compile CUDA kernels without a GPU and report registers, memory and occupancy; fails unless all is well.
    Compile(Compile),
    /// Find the first step of a model's plans where device and reference differ, each given the device's own inputs.
    Bisect(Bisect),
    /// Print the complete source of every launch of the selected cases.
    Source {
        #[command(flatten)]
        selection: Selection,
        /// Choose launches as for this class of device.
        #[arg(long, value_enum, default_value = "discrete")]
        class: Class,
    },
}

#[derive(Debug, Args)]
struct Selection {
    /// Only these ops, separated by commas.
    #[arg(long, value_delimiter = ',')]
    op: Vec<String>,
    /// Only the case with this id, or those whose id matches this regular expression.
    #[arg(long)]
    case: Option<String>,
    /// Only cases with an operand or variant of this type.
    #[arg(long = "type")]
    dtype: Option<String>,
    /// Only cases of this set.
    #[arg(long, value_enum)]
    tag: Option<TagName>,
    /// Only every n-th case, from the i-th: `i/n`, counted from 1.
    #[arg(long, value_parser = parse_shard)]
    shard: Option<(usize, usize)>,
    /// The reduced set, for slow adapters.
    #[arg(long)]
    reduced: bool,
}

#[derive(Debug, Args)]
struct On {
    /// `reference`, `wgpu`, `wgpu:N` or a part of an adapter's name.
    #[arg(long, default_value = "wgpu")]
    device: String,
    /// Choose launches as for this class of device.
    #[arg(long, value_enum)]
    class: Option<Class>,
    /// Pretend to be a device with the least limits of WebGPU and a small grid.
    #[arg(long)]
    limits: bool,
    /// Mixed into the values of all cases.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Replace a shader (`NAME`) or a kernel file (`NAME.cu`) by a file, for experiments.
    #[arg(long, value_name = "NAME=FILE", value_parser = parse_source)]
    source: Vec<(String, String)>,
}

#[derive(Debug, Args)]
struct Test {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    on: On,
    /// Run each case a third time.
    #[arg(long)]
    thorough: bool,
    #[command(flatten)]
    to: To,
    /// Used by the program itself: run in this process and write events as lines.
    #[arg(long, hide = true)]
    worker: bool,
    /// Used by the program itself: leave out this many cases.
    #[arg(long, hide = true, default_value_t = 0)]
    skip: usize,
    /// Used by the program itself: do not batch this many cases.
    #[arg(long, hide = true, default_value_t = 0)]
    alone: usize,
}

#[derive(Debug, Args)]
struct Bench {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    on: On,
}

#[derive(Debug, Args)]
struct Cliffs {
    /// Types of the weight, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = parse_weight_type, default_value = "q4_k,q8_0,f16")]
    types: Vec<DType>,
    /// Rows and columns of the weight.
    #[arg(long, value_parser = parse_shape, default_value = "4096x4096")]
    shape: (usize, usize),
    /// The longest step.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    tokens: u16,
    #[command(flatten)]
    on: On,
}

#[derive(Debug, Args)]
struct Estimate {
    /// GPUs, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = parse_gpu, default_value = "h200,4090")]
    gpu: Vec<Gpu>,
    /// Synthetic models, separated by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "llama:8b:q4_k,llama:8b:q8_0"
    )]
    model: Vec<Spec>,
    /// Write to this file.
    #[arg(short, long, conflicts_with = "check")]
    output: Option<PathBuf>,
    /// Fail unless this file holds the estimates.
    #[arg(long)]
    check: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct GoldenModels {
    /// `smollm2`, `gemma3` (scripts/fetch-models.sh), or names of tiny models in engine/tests/golden/tiny.
    #[arg(default_value = "smollm2")]
    models: Vec<String>,
    /// Tokens of each greedy continuation at most.
    #[arg(long, default_value_t = 48)]
    tokens: usize,
    #[command(flatten)]
    on: On,
}

#[derive(Debug, Args)]
struct Compile {
    /// Only these ops, separated by commas.
    #[arg(long, value_delimiter = ',')]
    op: Vec<String>,
    /// Only these architectures, separated by commas: `sm_90`.
    #[arg(long, value_delimiter = ',', value_parser = parse_target)]
    arch: Vec<Target>,
    /// The kernels of every case and of every published model, not only the subset that the report states.
    #[arg(long)]
    all: bool,
    /// Keep each kernel in this folder, its source to be compiled with `-I kernels`, its cubin for `cuobjdump -sass`.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Write the report to this file.
    #[arg(short, long, conflicts_with = "check")]
    output: Option<PathBuf>,
    /// Fail unless this file holds the report.
    #[arg(long)]
    check: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Bisect {
    /// A GGUF file.
    model: PathBuf,
    /// Tokens of the step, 1 to 8; a decode step follows.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=8))]
    tokens: u32,
    /// Print every step, not only the first that differs.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    on: On,
}

#[derive(Debug, Args)]
struct To {
    /// Form of the report.
    #[arg(long, value_enum, default_value = "table")]
    format: FormatName,
    /// Write the report to this file, and the table to the terminal.
    #[arg(short, long)]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Class {
    Software,
    Integrated,
    Discrete,
}

impl From<Class> for DeviceClass {
    fn from(class: Class) -> Self {
        match class {
            Class::Software => Self::Software,
            Class::Integrated => Self::Integrated,
            Class::Discrete => Self::Discrete,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TagName {
    Reduced,
    Quick,
    Bench,
}

impl From<TagName> for Tag {
    fn from(tag: TagName) -> Self {
        match tag {
            TagName::Reduced => Self::Reduced,
            TagName::Quick => Self::Quick,
            TagName::Bench => Self::Bench,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatName {
    Table,
    Json,
    Junit,
}

impl From<FormatName> for Format {
    fn from(format: FormatName) -> Self {
        match format {
            FormatName::Table => Self::Table,
            FormatName::Json => Self::Json,
            FormatName::Junit => Self::Junit,
        }
    }
}

fn parse_shard(text: &str) -> Result<(usize, usize), String> {
    let parts = text
        .split_once('/')
        .and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    match parts {
        Some((i, n)) if (1..=n).contains(&i) => Ok((i, n)),
        _ => Err(format!("`{text}` is not i/n with 1 <= i <= n")),
    }
}

fn parse_source(text: &str) -> Result<(String, String), String> {
    let (name, path) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` is not NAME=FILE"))?;
    let source = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    Ok((name.to_owned(), source))
}

fn parse_gpu(text: &str) -> Result<Gpu, String> {
    Gpu::named(text).ok_or_else(|| {
        let known: Vec<&str> = GPUS.iter().map(|gpu| gpu.name).collect();
        format!("there are {}", known.join(", "))
    })
}

fn parse_weight_type(text: &str) -> Result<DType, String> {
    gemel_core::dtype::WEIGHT_TYPES
        .iter()
        .copied()
        .find(|dtype| dtype.name() == text)
        .ok_or_else(|| format!("`{text}` is no type of weights"))
}

fn parse_shape(text: &str) -> Result<(usize, usize), String> {
    text.split_once('x')
        .and_then(|(rows, columns)| Some((rows.parse().ok()?, columns.parse().ok()?)))
        .filter(|&(rows, columns): &(usize, usize)| rows > 0 && columns > 0)
        .ok_or_else(|| format!("`{text}` is not ROWSxCOLUMNS"))
}

fn parse_target(text: &str) -> Result<Target, String> {
    Target::named(text).ok_or_else(|| {
        let known: Vec<String> = TARGETS.iter().map(ToString::to_string).collect();
        format!("there are {}", known.join(", "))
    })
}

impl Selection {
    /// The selected cases. Benchmarks are left out unless asked for by tag or id.
    fn cases(&self) -> Result<Vec<Case>> {
        for op in &self.op {
            if !cases::TABLES.iter().any(|(name, _)| name == op) {
                bail!("there is no op `{op}`");
            }
        }
        let mut selected = cases::all();
        if !self.op.is_empty() {
            selected.retain(|case| self.op.iter().any(|op| op == case.op.name()));
        }
        if let Some(wanted) = &self.case {
            if let Some(case) = selected.iter().find(|case| case.id == *wanted) {
                return Ok(vec![case.clone()]);
            }
            let regex = fancy_regex::Regex::new(wanted).with_context(|| {
                format!("no case has the id `{wanted}`, and as a regular expression it is wrong")
            })?;
            selected.retain(|case| regex.is_match(&case.id).unwrap_or(false));
        }
        if let Some(dtype) = &self.dtype {
            selected.retain(|case| {
                case.operands()
                    .any(|operand| operand.desc.dtype.name() == dtype)
                    || case.variant.split(' ').any(|word| word == dtype)
            });
        }
        match self.tag {
            Some(tag) => selected.retain(|case| case.has(tag.into())),
            None => selected.retain(|case| !case.has(Tag::Bench)),
        }
        if self.reduced {
            selected.retain(|case| case.has(Tag::Reduced));
        }
        if let Some((i, n)) = self.shard {
            selected = selected.into_iter().skip(i - 1).step_by(n).collect();
        }
        if selected.is_empty() {
            bail!("no case is selected");
        }
        Ok(selected)
    }
}

/// The kernels that measure a device, and what the command line replaces.
fn with_peaks(on: &On) -> BTreeMap<String, String> {
    let mut sources = peak::sources();
    sources.extend(on.source.iter().cloned());
    sources
}

impl On {
    fn options(&self) -> Options {
        Options {
            class: self.class.map(Into::into),
            least_limits: self.limits,
            seed: self.seed,
            sources: self.source.iter().cloned().collect(),
            ..Options::new(&self.device)
        }
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::List(selection) => list(&selection),
        Command::Test(args) => test(&args),
        Command::Bench(args) => bench(&args),
        Command::Cliffs(args) => cliffs(&args),
        Command::Golden(args) => golden(&args),
        Command::Estimate(args) => estimate(&args),
        Command::Compile(args) => compile(&args),
        Command::Bisect(args) => bisect(&args),
        Command::Support { output } => write_support(output),
        Command::Source { selection, class } => source(&selection, class.into()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn list(selection: &Selection) -> Result<bool> {
    for case in selection.cases()? {
        println!("{}", case.id);
    }
    Ok(true)
}

fn test(args: &Test) -> Result<bool> {
    let cases = args.selection.cases()?;
    if args.worker {
        return worker(args, &cases[args.skip.min(cases.len())..]);
    }
    // Opened here too: a device that does not exist is an error of the command, not of a case.
    let header = header(
        &Runner::with(options(args)).context("opening the device")?,
        &args.on,
    );
    let start = Instant::now();
    let outcomes = supervise(&cases, start)?;
    let text = report::write(args.to.format.into(), &header, &outcomes);
    match &args.to.output {
        Some(path) => {
            fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
            print!("{}", report::write(Format::Table, &header, &outcomes));
        }
        None => print!("{text}"),
    }
    eprintln!("{:.1} s in all", start.elapsed().as_secs_f64());
    Ok(outcomes.iter().all(Outcome::is_good))
}

fn options(args: &Test) -> Options {
    Options {
        thorough: args.thorough,
        ..args.on.options()
    }
}

/// What a worker writes, one a line.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Line {
    Started(usize),
    Done(Box<Outcome>),
    End,
}

/// Runs cases in this process, writing events as lines.
fn worker(args: &Test, cases: &[Case]) -> Result<bool> {
    let mut runner = Runner::with(options(args)).context("opening the device")?;
    // Panics arrive as outcomes; the default hook would print them as well.
    std::panic::set_hook(Box::new(|_| {}));
    let write = |line: &Line| {
        if let Ok(text) = serde_json::to_string(line) {
            println!("{text}");
        }
    };
    runner.test_each(cases, args.alone, &mut |event| {
        write(&match event {
            Event::Started(n) => Line::Started(n),
            Event::Done(outcome) => Line::Done(outcome),
        });
    });
    write(&Line::End);
    slowest_compiles(&runner);
    Ok(true)
}

/// Runs cases in a process of their own. When that dies, the cases in flight are run one by one in a new one, and the
/// one that kills it again is recorded as a crash.
fn supervise(cases: &[Case], start: Instant) -> Result<Vec<Outcome>> {
    let program = std::env::current_exe().context("finding this program")?;
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(cases.len());
    let mut alone = 0;
    let mut current = String::new();
    loop {
        let mut child = process::Command::new(&program)
            .args(&arguments)
            .arg("--worker")
            .arg(format!("--skip={}", outcomes.len()))
            .arg(format!("--alone={alone}"))
            .stdout(process::Stdio::piped())
            .spawn()
            .context("starting a worker")?;
        let lines = child.stdout.take().context("reading from the worker")?;
        let mut in_flight = 0;
        let mut ended = false;
        for line in BufReader::new(lines).lines() {
            let line = line.context("reading from the worker")?;
            // Drivers may print lines of their own.
            match serde_json::from_str(&line) {
                Ok(Line::Started(n)) => in_flight = n,
                Ok(Line::Done(outcome)) => {
                    if outcome.op != current {
                        current.clone_from(&outcome.op);
                        eprintln!("{:7.1} s  {current}", start.elapsed().as_secs_f64());
                    }
                    in_flight = in_flight.saturating_sub(1);
                    outcomes.push(*outcome);
                }
                Ok(Line::End) => ended = true,
                Err(_) => {}
            }
        }
        let status = child.wait().context("waiting for the worker")?;
        if ended {
            return Ok(outcomes);
        }
        if in_flight == 0 {
            bail!("the worker ended before it ran a case: {status}");
        }
        alone = in_flight;
        if in_flight == 1 {
            let case = &cases[outcomes.len()];
            eprintln!(
                "{:7.1} s  {} killed the process",
                start.elapsed().as_secs_f64(),
                case.id
            );
            outcomes.push(Outcome {
                status: Status::Crash,
                message: format!("killed the process: {status}"),
                ..Outcome::new(case, "")
            });
            alone = 0;
            if outcomes.len() == cases.len() {
                return Ok(outcomes);
            }
        }
    }
}

fn header(runner: &Runner, on: &On) -> Header {
    Header {
        device: on.device.clone(),
        description: runner.device().description(),
        class: runner.caps().class.name().to_owned(),
        seed: on.seed,
        version: env!("CARGO_PKG_VERSION"),
    }
}

fn slowest_compiles(runner: &Runner) {
    let mut compiled: Vec<_> = runner.compiled.iter().collect();
    if compiled.is_empty() {
        return;
    }
    compiled.sort_by_key(|compiled| std::cmp::Reverse(compiled.time));
    let total: f64 = compiled
        .iter()
        .map(|compiled| compiled.time.as_secs_f64())
        .sum();
    eprintln!(
        "\n{} first compilations in {total:.1} s, the slowest:",
        compiled.len()
    );
    for compiled in compiled.iter().take(10) {
        eprintln!(
            "{:9.1} ms  {}",
            compiled.time.as_secs_f64() * 1e3,
            compiled.kernel
        );
    }
}

fn bench(args: &Bench) -> Result<bool> {
    let selection = &args.selection;
    let mut cases = selection.cases().unwrap_or_default();
    if selection.tag.is_none() && selection.case.is_none() {
        cases = cases::all();
        cases.retain(|case| {
            case.has(Tag::Bench)
                && (selection.op.is_empty() || selection.op.iter().any(|op| op == case.op.name()))
        });
    }
    let runner = Runner::with(Options {
        sources: with_peaks(&args.on),
        ..args.on.options()
    })
    .context("opening the device")?;
    println!("{}", runner.device().description());
    let peak = peak::measure(&runner).context("measuring the device's limits")?;
    let effort = Effort::of(&runner);
    println!("{peak}\n");
    if effort == Effort::SMOKE {
        println!("This device is emulated: its times say nothing about a GPU.\n");
    }
    println!(
        "{:<64} {:>11} {:>11} {:>8} {:>8} {:>7}",
        "case", "device us", "wall us", "GB/s", "GFLOP/s", "of peak"
    );
    for case in cases {
        let recorded = runner.record(&case).with_context(|| case.id.clone())?;
        let timing = bench::time(&**runner.device(), &recorded.recording, effort)
            .with_context(|| case.id.clone())?;
        let seconds = timing.best_s();
        let cost = recorded.cost;
        println!(
            "{:<64} {:>11.1} {:>11.1} {:>8.2} {:>8.2} {:>6.1}%",
            case.id,
            timing.device_s.unwrap_or(f64::NAN) * 1e6,
            timing.wall_s * 1e6,
            cost.bytes as f64 / seconds / 1e9,
            cost.flops as f64 / seconds / 1e9,
            100.0 * peak.share(case.op.roof(), cost, seconds)
        );
    }
    Ok(true)
}

fn cliffs(args: &Cliffs) -> Result<bool> {
    let runner = Runner::with(Options {
        sources: with_peaks(&args.on),
        ..args.on.options()
    })
    .context("opening the device")?;
    println!("{}", runner.device().description());
    let peak = peak::measure(&runner).context("measuring the device's limits")?;
    println!("{peak}");
    let effort = match Effort::of(&runner) {
        Effort::SMOKE => Effort::SMOKE,
        _ => Effort::BRIEF,
    };
    for &dtype in &args.types {
        let (d_out, d_in) = args.shape;
        if d_in % dtype.block_elems() != 0 {
            bail!(
                "rows of {d_in} columns are no whole blocks of {dtype}, which have {}",
                dtype.block_elems()
            );
        }
        let product = cliffs::Product {
            dtype,
            d_out,
            d_in,
            max_tokens: usize::from(args.tokens),
        };
        let points = cliffs::measure(&runner, &peak, product, effort)
            .with_context(|| format!("{dtype} {d_out} x {d_in}"))?;
        println!(
            "\n{dtype} {d_out} x {d_in}\n{:>7} {:>10} {:>10} {:>8}",
            "tokens", "us", "us/token", "of peak"
        );
        for point in &points {
            println!(
                "{:>7} {:>10.1} {:>10.2} {:>7.1}%",
                point.n_tokens,
                point.seconds * 1e6,
                point.seconds * 1e6 / point.n_tokens as f64,
                100.0 * point.share
            );
        }
        for (n_tokens, ratio) in cliffs::cliffs(&points, cliffs::CLIFF) {
            println!(
                "a cliff: {n_tokens} tokens take {ratio:.2} times as long as {}",
                n_tokens - 1
            );
        }
    }
    Ok(true)
}

fn estimate(args: &Estimate) -> Result<bool> {
    let compiler = compile::compiler().context("looking for the kernel compiler")?;
    let text = estimate::document(&compiler, &args.gpu, &args.model)?;
    let stale = generated(
        &text,
        args.output.as_deref(),
        args.check.as_deref(),
        "estimate",
    )?;
    if let Some(fault) = &stale {
        eprintln!("{fault}");
    }
    Ok(stale.is_none())
}

/// Writes a generated document, or prints it, or compares it with the one that is there: then what is wrong with that.
fn generated(
    text: &str,
    output: Option<&Path>,
    check: Option<&Path>,
    verb: &str,
) -> Result<Option<String>> {
    if let Some(path) = output {
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        return Ok(None);
    }
    let Some(path) = check else {
        print!("{text}");
        return Ok(None);
    };
    let old = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    if old == text {
        return Ok(None);
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), text.lines().collect());
    let gone = old.iter().filter(|line| !new.contains(line));
    let came = new.iter().filter(|line| !old.contains(line));
    for (sign, line) in gone
        .map(|line| ('-', line))
        .chain(came.map(|line| ('+', line)))
    {
        eprintln!("{sign} {line}");
    }
    Ok(Some(format!(
        "{} is stale: run `gemel-conformance {verb} -o {0}`",
        path.display()
    )))
}

fn golden(args: &GoldenModels) -> Result<bool> {
    let device = run::open(&args.on.options()).context("opening the device")?;
    println!("{}", device.description());
    let mut good = true;
    for name in &args.models {
        let start = Instant::now();
        let published = match name.as_str() {
            "smollm2" => Some((golden::Published::smollm2()?, 0.005)),
            // Its golden engine looks GELU up in a table of f16 values.
            "gemma3" => Some((golden::Published::gemma3()?, 0.01)),
            _ => None,
        };
        let verdict = match published {
            Some((model, tolerance)) => model.check(&device, tolerance, &[], args.tokens)?,
            None => golden::Golden::tiny(name)?.check(&device, args.tokens)?,
        };
        for line in verdict.ties.iter().chain(&verdict.problems) {
            println!("{name}: {line}");
        }
        println!(
            "{name}: {} greedy tokens and the logits before them, {} problems, {:.1} s",
            verdict.n_tokens,
            verdict.problems.len(),
            start.elapsed().as_secs_f64()
        );
        good &= verdict.problems.is_empty() && verdict.n_tokens > 0;
    }
    Ok(good)
}

fn compile(args: &Compile) -> Result<bool> {
    for op in &args.op {
        if !cases::TABLES.iter().any(|(name, _)| name == op) {
            bail!("there is no op `{op}`");
        }
    }
    let start = Instant::now();
    let compiler = compile::compiler().context("looking for the kernel compiler")?;
    let targets = if args.arch.is_empty() {
        &TARGETS[..]
    } else {
        &args.arch
    };
    let extent = if args.all {
        compile::Extent::All
    } else {
        compile::Extent::Subset
    };
    let jobs = compile::jobs(targets, extent, &args.op)?;
    let n = jobs.len();
    if let Some(folder) = &args.keep {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let (kernels, failures) = compile::compile(jobs, args.keep.as_deref(), &|done| {
        if done.is_multiple_of(50) {
            eprintln!("{:7.1} s  {done} of {n}", start.elapsed().as_secs_f64());
        }
    });
    let mut faults: Vec<String> = failures;
    faults.extend(kernels.iter().filter_map(compile::Kernel::fault));
    let text = compile::document(&compiler, targets, &kernels);
    faults.extend(generated(
        &text,
        args.output.as_deref(),
        args.check.as_deref(),
        "compile",
    )?);
    for fault in &faults {
        eprintln!("{fault}");
    }
    eprintln!(
        "{n} kernels for {} architectures in {:.1} s, {} faults",
        targets.len(),
        start.elapsed().as_secs_f64(),
        faults.len()
    );
    Ok(faults.is_empty())
}

fn bisect(args: &Bisect) -> Result<bool> {
    let device = run::open(&args.on.options()).context("opening the device")?;
    let file =
        GgufFile::open(&args.model).with_context(|| format!("reading {}", args.model.display()))?;
    let n_ctx = 4 * gemel_core::PAGE;
    let mut context = golden::open_file(&file, &device, golden::Setting::default(), n_ctx)?;
    let seq = context.create()?;
    let n_tokens = args.tokens as usize;
    let mut good = true;
    let mut len = 0;
    for n in [n_tokens, 1] {
        let tokens: Vec<StepToken> = (0..n)
            .map(|i| StepToken {
                seq,
                id: (7 * (len + i) + 3) as u32,
                output: i + 1 == n,
            })
            .collect();
        len += n;
        // Once as a whole, which fills the step buffer and the caches; then step by step.
        context.step(&tokens, Head::Logits)?;
        let recording = context.plan(StepShape {
            n_tokens: n,
            n_outputs: 1,
            max_len: len_bucket(len, n_ctx),
            head: Head::Logits,
        })?;
        println!(
            "{}: {} steps",
            recording.plan.label,
            recording.plan.steps.len()
        );
        let found = bisect::walk(&*device, &recording.plan, &mut |step| {
            if args.all || !step.problems.is_empty() {
                println!("{step}");
            }
            args.all || step.problems.is_empty()
        })?;
        good &= found == 0;
    }
    println!(
        "{}",
        if good {
            "no step differs"
        } else {
            "device and reference differ"
        }
    );
    Ok(good)
}

fn write_support(output: Option<PathBuf>) -> Result<bool> {
    let table = support::table();
    match output {
        Some(path) => {
            fs::write(&path, table).with_context(|| format!("writing {}", path.display()))?;
        }
        None => std::io::stdout().write_all(table.as_bytes())?,
    }
    Ok(true)
}

fn source(selection: &Selection, class: DeviceClass) -> Result<bool> {
    let mut seen = std::collections::BTreeSet::new();
    for case in selection.cases()? {
        let launches = case
            .launches(&least_caps(class))
            .with_context(|| format!("launches of {}", case.id))?;
        for launch in &launches.list {
            let name = kernel_name(case.op.name(), launch);
            if seen.insert(name.clone()) {
                let text = gemel_wgpu::source::assemble(case.op.name(), launch)?;
                println!("// ---- {name}, first used by {}\n{text}", case.id);
            }
        }
    }
    Ok(true)
}

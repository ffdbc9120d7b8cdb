//! `gemel-conformance`: lists, tests and times the cases of every op on a device.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use gemel_conformance::cases::{self, Case, Tag};
use gemel_conformance::report::{self, Format, Header, Outcome};
use gemel_conformance::run::{Options, Runner, kernel_name, least_caps};
use gemel_conformance::support;
use gemel_core::op::DeviceClass;

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
    /// Print the support table.
    Support {
        /// Write to this file.
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
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
}

#[derive(Debug, Args)]
struct Bench {
    #[command(flatten)]
    selection: Selection,
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
            let regex = fancy_regex::Regex::new(wanted)
                .with_context(|| format!("no case has the id `{wanted}`, and as a regular expression it is wrong"))?;
            selected.retain(|case| regex.is_match(&case.id).unwrap_or(false));
        }
        if let Some(dtype) = &self.dtype {
            selected.retain(|case| {
                case.operands().any(|operand| operand.desc.dtype.name() == dtype)
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

impl On {
    fn options(&self) -> Options {
        Options {
            class: self.class.map(Into::into),
            least_limits: self.limits,
            seed: self.seed,
            ..Options::new(&self.device)
        }
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::List(selection) => list(&selection),
        Command::Test(args) => test(&args),
        Command::Bench(args) => bench(&args),
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
    let options = Options {
        thorough: args.thorough,
        ..args.on.options()
    };
    let mut runner = Runner::with(options).context("opening the device")?;
    let header = header(&runner, &args.on);
    // Failures of kernels arrive as outcomes; the default hook would print them twice.
    std::panic::set_hook(Box::new(|_| {}));
    let start = Instant::now();
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(cases.len());
    let mut current = String::new();
    runner.test_each(&cases, |outcome| {
        if outcome.op != current {
            current.clone_from(&outcome.op);
            eprintln!("{:7.1} s  {current}", start.elapsed().as_secs_f64());
        }
        outcomes.push(outcome);
    });
    let text = report::write(args.to.format.into(), &header, &outcomes);
    match &args.to.output {
        Some(path) => {
            fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
            print!("{}", report::write(Format::Table, &header, &outcomes));
        }
        None => print!("{text}"),
    }
    slowest_compiles(&runner);
    eprintln!("{:.1} s in all", start.elapsed().as_secs_f64());
    Ok(outcomes.iter().all(Outcome::is_good))
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
    let total: f64 = compiled.iter().map(|compiled| compiled.time.as_secs_f64()).sum();
    eprintln!("\n{} first compilations in {total:.1} s, the slowest:", compiled.len());
    for compiled in compiled.iter().take(10) {
        eprintln!("{:9.1} ms  {}", compiled.time.as_secs_f64() * 1e3, compiled.kernel);
    }
}

fn bench(args: &Bench) -> Result<bool> {
    let _ = args;
    bail!("not yet")
}

fn write_support(output: Option<PathBuf>) -> Result<bool> {
    let table = support::table();
    match output {
        Some(path) => fs::write(&path, table).with_context(|| format!("writing {}", path.display()))?,
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

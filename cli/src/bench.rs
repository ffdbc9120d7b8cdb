//! `gemel bench`: prefill and decode speed, in the shape of llama-bench's table.

mod measure;
mod table;

use std::io::Write;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use gemel_engine::forward::Context;
use gemel_engine::load::LoadOptions;

use crate::options::{ModelArgs, count};
use crate::session;
use measure::{Kind, Test};

/// Arguments of `gemel bench`.
#[derive(Args, Debug)]
#[command(
    after_help = "-p, -n, -d, --parallel and --verify take lists: -p 128,512. The context size (-c) is what the tests need unless given.\n\
    A depth is assumed, not computed: the caches are filled with random rows of the right size.\n\
    Every test runs once more than -r says; the first run compiles kernels and does not count."
)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompt lengths to measure, 0 for none
    #[arg(
        short = 'p',
        long,
        value_delimiter = ',',
        default_value = "512",
        value_name = "N"
    )]
    n_prompt: Vec<usize>,
    /// Numbers of decode steps to measure, 0 for none
    #[arg(
        short = 'n',
        long,
        value_delimiter = ',',
        default_value = "128",
        value_name = "N"
    )]
    n_gen: Vec<usize>,
    /// Tokens already cached when a test starts
    #[arg(
        short = 'd',
        long,
        value_delimiter = ',',
        default_value = "0",
        value_name = "N"
    )]
    depth: Vec<usize>,
    /// Sequences that decode side by side, each at the depth (-np)
    #[arg(
        long,
        value_parser = count,
        value_delimiter = ',',
        default_value = "1",
        value_name = "N"
    )]
    parallel: Vec<usize>,
    /// Tokens of a sequence in each decode step, as when a draft is verified; all but one are taken back after it
    #[arg(
        long,
        value_parser = count,
        value_delimiter = ',',
        default_value = "1",
        value_name = "N"
    )]
    verify: Vec<usize>,
    /// Take the repetitions of all tests in turn, for comparing depths on a machine whose speed varies; the caches of
    /// all depths then exist at once
    #[arg(long)]
    interleave: bool,
    /// Repetitions of each test
    #[arg(short, long, default_value_t = 5, value_parser = count, value_name = "N")]
    repetitions: usize,
    /// Table format
    #[arg(short, long, value_enum, default_value_t = Format::Md, value_name = "FORMAT")]
    output: Format,
    /// Show what a decode step costs: its median time and that before the wait, uploads, submissions, read-back; bytes
    /// and launches on the device by op; and what takes up the device's memory
    #[arg(long)]
    explain: bool,
    /// Time every launch of one decode step on the device, that of the most tokens at the greatest depth: medians of -r
    /// runs, summed over layers
    #[arg(long)]
    profile: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Md,
    Csv,
    Json,
}

/// The tests that the arguments ask for, by depth.
fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut tests = Vec::new();
    for &depth in &args.depth {
        let prompts = args.n_prompt.iter().filter(|&&n| n > 0);
        tests.extend(prompts.map(|&n| Test {
            depth,
            kind: Kind::Prefill(n),
        }));
        for &n in args.n_gen.iter().filter(|&&n| n > 0) {
            for &n_seqs in &args.parallel {
                tests.extend(args.verify.iter().map(|&n_verify| Test {
                    depth,
                    kind: Kind::Decode {
                        n,
                        n_seqs,
                        n_verify,
                    },
                }));
            }
        }
    }
    tests
}

/// Runs the command.
pub(crate) fn bench(args: &BenchArgs) -> Result<()> {
    if args.profile && args.output != Format::Md {
        bail!("--profile prints a table of its own; leave -o out");
    }
    if args.explain && args.output == Format::Csv {
        bail!("--explain has no place in the csv; use -o json or leave -o out");
    }
    let tests = tests(args);
    let most = |list: &[usize]| list.iter().copied().max().unwrap_or(0);
    let profiled = Test {
        depth: most(&args.depth),
        kind: Kind::Decode {
            n: 2,
            n_seqs: most(&args.parallel),
            n_verify: most(&args.verify),
        },
    };
    if tests.is_empty() {
        bail!("nothing to measure: -p and -n are both 0");
    }
    let mut needed = tests.iter().map(Test::longest).max().unwrap_or(0);
    if args.profile {
        needed = needed.max(profiled.longest());
    }
    if args.model.ctx_size.is_some_and(|n_ctx| n_ctx < needed) {
        bail!("a context of {needed} tokens is needed for these tests; raise -c or leave it out");
    }
    let n_seqs = tests.iter().map(Test::n_seqs).max().unwrap_or(1);
    let n_depths = measure::depths(&tests).len();
    let options = LoadOptions {
        n_ctx: Some(args.model.ctx_size.unwrap_or(needed.max(64))),
        n_seqs: if args.interleave {
            n_seqs * n_depths
        } else {
            n_seqs
        },
        ..args.model.load_options()
    };
    let mut loaded = session::open_as(&args.model, &args.model.open_file()?, &options)?;
    let context = &mut loaded.context;
    let rows = measure::measure(context, &tests, args.repetitions, args.interleave)?;
    let mut out = std::io::stdout().lock();
    table::print(args, &loaded, &rows, &mut out)?;
    if args.profile {
        profile(&mut loaded.context, &profiled, args.repetitions, &mut out)?;
    }
    let memory = loaded.context.device().memory();
    note!(
        "{} MiB of device memory in use, {} MiB at most",
        memory.used >> 20,
        memory.peak >> 20
    );
    Ok(())
}

/// Times the decode step of a test launch by launch.
fn profile(
    context: &mut Context,
    test: &Test,
    repetitions: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let seqs = (0..test.n_seqs()).map(|_| Ok(measure::at_depth(context, test.depth)?.0));
    let seqs = seqs.collect::<Result<Vec<_>>>()?;
    // What is timed is the last step again. After a filled cache the first one commits all that a record holds.
    measure::decode(context, &seqs, 2, test.n_verify())?;
    let n_tokens = test.n_seqs() * test.n_verify();
    let len = test.depth + 1 + test.n_verify();
    let Some(times) = context.profile_step(n_tokens, len, repetitions)? else {
        note!("this device cannot time launches");
        return Ok(());
    };
    let total: u64 = times.iter().map(|entry| entry.ns).sum();
    writeln!(
        out,
        "\n| op | node | launches | us | share | GB/s | GFLOP/s |"
    )?;
    writeln!(out, "| --- | --- | ---: | ---: | ---: | ---: | ---: |")?;
    for entry in &times {
        let seconds = entry.ns as f64 / 1e9;
        writeln!(
            out,
            "| {} | {} | {} | {:.0} | {:.1} % | {:.2} | {:.2} |",
            entry.work.op,
            entry.work.node,
            entry.work.launches,
            entry.ns as f64 / 1e3,
            100.0 * entry.ns as f64 / total as f64,
            entry.work.cost.bytes as f64 / seconds / 1e9,
            entry.work.cost.flops as f64 / seconds / 1e9
        )?;
    }
    writeln!(
        out,
        "| all | | {} | {:.0} | 100 % | | |",
        times.iter().map(|e| e.work.launches).sum::<usize>(),
        total as f64 / 1e3
    )?;
    for seq in seqs {
        context.remove(seq)?;
    }
    Ok(())
}

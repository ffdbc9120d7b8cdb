//! `gemel bench`: prefill and decode speed, in the shape of llama-bench's table.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use gemel_core::device::Traffic;
use gemel_engine::blocks::Head;
use gemel_engine::forward::{Context, OpWork, StepToken};
use gemel_engine::kv_cache::SeqId;
use gemel_engine::load::Loaded;
use serde_json::json;

use crate::options::{ModelArgs, count};
use crate::session;

/// Arguments of `gemel bench`.
#[derive(Args, Debug)]
#[command(
    after_help = "-p, -n and -d take lists: -p 128,512. The context size (-c) is what the tests need unless given.\n\
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
    /// Numbers of single-token steps to measure, 0 for none
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
    /// Repetitions of each test
    #[arg(short, long, default_value_t = 5, value_parser = count, value_name = "N")]
    repetitions: usize,
    /// Table format
    #[arg(short, long, value_enum, default_value_t = Format::Md, value_name = "FORMAT")]
    output: Format,
    /// Show what a decode step costs: uploads, submissions, read-back, median time before the wait; bytes and launches
    /// on the device by op
    #[arg(long)]
    explain: bool,
    /// Time every launch of one decode step on the device, summed over layers
    #[arg(long)]
    profile: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Md,
    Csv,
    Json,
}

/// One row of the table.
#[derive(Debug)]
struct Row {
    test: String,
    n_prompt: usize,
    n_gen: usize,
    depth: usize,
    /// Tokens per second of each repetition.
    rates: Vec<f64>,
    step: Option<StepCost>,
    /// What a decode step at the end of the test does on the device, by op.
    work: Vec<OpWork>,
}

/// Host side of a decode step, averaged.
#[derive(Clone, Copy, Debug)]
struct StepCost {
    host: Duration,
    submits: f64,
    uploaded: f64,
    downloaded: f64,
    launches: f64,
}

impl Row {
    fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }

    /// Bytes that a decode step cannot avoid moving on the device.
    fn device_bytes(&self) -> u64 {
        self.work.iter().map(|work| work.cost.bytes).sum()
    }

    fn deviation(&self) -> f64 {
        if self.rates.len() < 2 {
            return 0.0;
        }
        let mean = self.mean();
        let squares: f64 = self
            .rates
            .iter()
            .map(|rate| (rate - mean) * (rate - mean))
            .sum();
        (squares / (self.rates.len() - 1) as f64).sqrt()
    }
}

/// Token ids for measuring: any will do, and the same ones every time.
fn token_ids(n: usize, n_vocab: usize) -> Vec<u32> {
    (0..n as u64)
        .map(|i| (i.wrapping_mul(2_654_435_761) % n_vocab as u64) as u32)
        .collect()
}

fn prefill(context: &mut Context, seq: SeqId, n: usize) -> Result<Duration> {
    let ids = token_ids(n, context.info().n_vocab);
    let start = Instant::now();
    context.prefill(seq, &ids, Head::Argmax, &mut |_| true)?;
    Ok(start.elapsed())
}

/// `n` single-token steps; total time, and the median time before waiting for the device.
fn decode(context: &mut Context, seq: SeqId, n: usize) -> Result<(Duration, Duration)> {
    let ids = token_ids(n, context.info().n_vocab);
    let start = Instant::now();
    let mut host = Vec::with_capacity(n);
    for id in ids {
        let submit = Instant::now();
        let step = context.submit(
            &[StepToken {
                seq,
                id,
                output: true,
            }],
            Head::Argmax,
        )?;
        host.push(submit.elapsed());
        context.finish(step)?;
    }
    let time = start.elapsed();
    // The median: where the device is the same processor, its threads push some submissions aside.
    host.sort_unstable();
    Ok((time, host.get(n / 2).copied().unwrap_or_default()))
}

fn at_depth(context: &mut Context, depth: usize) -> Result<SeqId> {
    let seq = context.create()?;
    context.assume(seq, depth)?;
    Ok(seq)
}

/// Brings a sequence back to `depth` tokens; filled anew where what it needs is gone, as with a window.
fn rewind(context: &mut Context, seq: SeqId, depth: usize) -> Result<SeqId> {
    if context.truncate(seq, depth).is_ok() {
        return Ok(seq);
    }
    context.remove(seq)?;
    at_depth(context, depth)
}

fn measure(args: &BenchArgs, loaded: &mut Loaded) -> Result<Vec<Row>> {
    let context = &mut loaded.context;
    let bar = session::count_bar("measuring");
    let n_tests = |list: &[usize]| list.iter().filter(|&&n| n > 0).count();
    let n_tests = args.depth.len() * (n_tests(&args.n_prompt) + n_tests(&args.n_gen));
    bar.set_length((n_tests * (args.repetitions + 1)) as u64);
    let mut rows = Vec::new();
    let suffix = |depth: usize| {
        if depth == 0 {
            String::new()
        } else {
            format!(" @ d{depth}")
        }
    };
    for &depth in &args.depth {
        let mut seq = at_depth(context, depth)?;
        for &n in args.n_prompt.iter().filter(|&&n| n > 0) {
            let mut rates = Vec::new();
            // The first run compiles kernels and is not counted.
            for repetition in 0..=args.repetitions {
                let time = prefill(context, seq, n)?;
                seq = rewind(context, seq, depth)?;
                bar.inc(1);
                if repetition > 0 {
                    rates.push(session::rate(n, time));
                }
            }
            rows.push(Row {
                test: format!("pp{n}{}", suffix(depth)),
                n_prompt: n,
                n_gen: 0,
                depth,
                rates,
                step: None,
                work: Vec::new(),
            });
        }
        for &n in args.n_gen.iter().filter(|&&n| n > 0) {
            let mut rates = Vec::new();
            let mut step = None;
            for repetition in 0..=args.repetitions {
                if repetition == 0 {
                    decode(context, seq, 1)?;
                } else {
                    let before = context.device().traffic();
                    let (time, host) = decode(context, seq, n)?;
                    rates.push(session::rate(n, time));
                    step = Some(step_cost(before, context.device().traffic(), host, n));
                }
                seq = rewind(context, seq, depth)?;
                bar.inc(1);
            }
            rows.push(Row {
                test: format!("tg{n}{}", suffix(depth)),
                n_prompt: 0,
                n_gen: n,
                depth,
                rates,
                step,
                work: context.decode_work(depth + n)?,
            });
        }
        context.remove(seq)?;
    }
    bar.finish_and_clear();
    Ok(rows)
}

fn step_cost(before: Traffic, after: Traffic, host: Duration, n: usize) -> StepCost {
    let per_step = |after: u64, before: u64| (after - before) as f64 / n as f64;
    StepCost {
        host,
        submits: per_step(after.submits, before.submits),
        uploaded: per_step(after.uploaded, before.uploaded),
        downloaded: per_step(after.downloaded, before.downloaded),
        launches: per_step(after.launches, before.launches),
    }
}

fn print(args: &BenchArgs, loaded: &Loaded, rows: &[Row], out: &mut dyn Write) -> Result<()> {
    let device = loaded.context.device();
    let model = loaded.metadata.opt_str("general.name")?.unwrap_or("?");
    let arch = &loaded.context.info().arch;
    let size = loaded.weight_bytes as f64 / 1_048_576.0;
    let params = loaded.n_params as f64 / 1e6;
    match args.output {
        Format::Md => {
            writeln!(out, "| model | size | params | device | test | t/s |")?;
            writeln!(out, "| --- | ---: | ---: | --- | --- | ---: |")?;
            for row in rows {
                writeln!(
                    out,
                    "| {arch} {model} | {size:.1} MiB | {params:.1} M | {} | {} | {:.2} ± {:.2} |",
                    device.name(),
                    row.test,
                    row.mean(),
                    row.deviation()
                )?;
            }
        }
        Format::Csv => {
            writeln!(
                out,
                "arch,model,size_bytes,params,device,test,n_prompt,n_gen,depth,tokens_per_s,deviation"
            )?;
            for row in rows {
                writeln!(
                    out,
                    "{arch},\"{}\",{},{},{},{},{},{},{},{:.4},{:.4}",
                    model.replace('"', "\"\""),
                    loaded.weight_bytes,
                    loaded.n_params,
                    device.name(),
                    row.test,
                    row.n_prompt,
                    row.n_gen,
                    row.depth,
                    row.mean(),
                    row.deviation()
                )?;
            }
        }
        Format::Json => {
            let report = report(args, loaded, model, rows);
            writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
        }
    }
    if args.explain && args.output == Format::Md {
        explain(rows, out)?;
    }
    Ok(())
}

/// Everything as JSON.
fn report(args: &BenchArgs, loaded: &Loaded, model: &str, rows: &[Row]) -> serde_json::Value {
    let device = loaded.context.device();
    let results: Vec<_> = rows
        .iter()
        .map(|row| {
            let mut result = json!({
                "test": row.test, "n_prompt": row.n_prompt, "n_gen": row.n_gen, "depth": row.depth,
                "tokens_per_s": row.mean(), "deviation": row.deviation(), "samples": row.rates,
            });
            if let Some(step) = row.step.filter(|_| args.explain) {
                let ops: Vec<_> = row
                    .work
                    .iter()
                    .map(|work| {
                        json!({
                            "op": work.op, "node": work.node, "launches": work.launches,
                            "bytes": work.cost.bytes, "flops": work.cost.flops,
                        })
                    })
                    .collect();
                result["step"] = json!({
                    "host_us": step.host.as_secs_f64() * 1e6, "submits": step.submits,
                    "uploaded_bytes": step.uploaded, "read_back_bytes": step.downloaded,
                    "launches": step.launches, "device_bytes": row.device_bytes(), "ops": ops,
                });
            }
            result
        })
        .collect();
    let part = |row: Option<&Row>, n: fn(&Row) -> usize| {
        row.map(|row| json!({"tokens": n(row), "tokens_per_s": row.mean()}))
    };
    let memory = device.memory();
    json!({
        "model": model, "arch": loaded.context.info().arch, "device": device.name(),
        "description": device.description(), "params": loaded.n_params, "weight_bytes": loaded.weight_bytes,
        "cache_bytes": loaded.cache_bytes, "memory_bytes": memory.used, "peak_memory_bytes": memory.peak,
        "prefill": part(rows.iter().find(|row| row.n_prompt > 0), |row| row.n_prompt),
        "decode": part(rows.iter().find(|row| row.n_gen > 0), |row| row.n_gen),
        "results": results,
    })
}

/// What a decode step costs host and device, as tables.
fn explain(rows: &[Row], out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "\n| test | host us/step | submits/step | uploaded B/step | read back B/step | launches/step | device MB/step |"
    )?;
    writeln!(out, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |")?;
    for row in rows {
        if let Some(step) = row.step {
            writeln!(
                out,
                "| {} | {:.0} | {:.2} | {:.0} | {:.0} | {:.0} | {:.3} |",
                row.test,
                step.host.as_secs_f64() * 1e6,
                step.submits,
                step.uploaded,
                step.downloaded,
                step.launches,
                row.device_bytes() as f64 / 1e6
            )?;
        }
    }
    writeln!(
        out,
        "\n| test | op | node | launches/step | device MB/step | share |"
    )?;
    writeln!(out, "| --- | --- | --- | ---: | ---: | ---: |")?;
    for row in rows {
        for work in &row.work {
            writeln!(
                out,
                "| {} | {} | {} | {} | {:.3} | {:.1} % |",
                row.test,
                work.op,
                work.node,
                work.launches,
                work.cost.bytes as f64 / 1e6,
                100.0 * work.cost.bytes as f64 / row.device_bytes() as f64
            )?;
        }
    }
    Ok(())
}

/// Runs the command.
pub(crate) fn bench(args: &BenchArgs) -> Result<()> {
    if args.profile && args.output != Format::Md {
        bail!("--profile prints a table of its own; leave -o out");
    }
    if args.explain && args.output == Format::Csv {
        bail!("--explain has no place in the csv; use -o json or leave -o out");
    }
    let longest = |list: &[usize]| list.iter().copied().max().unwrap_or(0);
    if longest(&args.n_prompt).max(longest(&args.n_gen)) == 0 {
        bail!("nothing to measure: -p and -n are both 0");
    }
    let needed = longest(&args.depth) + longest(&args.n_prompt).max(longest(&args.n_gen));
    if args.model.ctx_size.is_some_and(|n_ctx| n_ctx < needed) {
        bail!("a context of {needed} tokens is needed for these tests; raise -c or leave it out");
    }
    let model = ModelArgs {
        ctx_size: Some(args.model.ctx_size.unwrap_or(needed.max(64))),
        ..args.model.clone()
    };
    let mut loaded = session::open(&model, &model.open_file()?)?;
    let rows = measure(args, &mut loaded)?;
    let mut out = std::io::stdout().lock();
    print(args, &loaded, &rows, &mut out)?;
    if args.profile {
        let depth = longest(&args.depth);
        profile(&mut loaded.context, depth, &mut out)?;
    }
    let memory = loaded.context.device().memory();
    note!(
        "{} MiB of device memory in use, {} MiB at most",
        memory.used >> 20,
        memory.peak >> 20
    );
    Ok(())
}

/// Times one decode step launch by launch.
fn profile(context: &mut Context, depth: usize, out: &mut dyn Write) -> Result<()> {
    let seq = at_depth(context, depth)?;
    decode(context, seq, 1)?;
    let Some(times) = context.profile_decode(depth + 2)? else {
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
    context.remove(seq)?;
    Ok(())
}

//! The results as a table, csv or JSON.

use std::io::Write;

use anyhow::Result;
use gemel_engine::load::Loaded;
use serde_json::json;

use super::measure::Row;
use super::{BenchArgs, Format};

pub(super) fn print(
    args: &BenchArgs,
    loaded: &Loaded,
    rows: &[Row],
    out: &mut dyn Write,
) -> Result<()> {
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
                    row.test.name(),
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
                    row.test.name(),
                    row.test.n_prompt(),
                    row.test.n_gen(),
                    row.test.depth,
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
        memory(loaded, out)?;
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
                "test": row.test.name(), "n_prompt": row.test.n_prompt(), "n_gen": row.test.n_gen(), "depth": row.test.depth,
                "parallel": row.test.n_seqs(), "verify": row.test.n_verify(),
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
                    "median_us": row.median_step().as_secs_f64() * 1e6,
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
        "cache_bytes": loaded.cache_bytes, "scratch_bytes": loaded.context.scratch_bytes(),
        "memory_bytes": memory.used, "peak_memory_bytes": memory.peak,
        "prefill": part(rows.iter().find(|row| row.test.n_prompt() > 0), |row| row.test.n_prompt()),
        "decode": part(rows.iter().find(|row| row.test.n_gen() > 0), |row| row.test.n_gen()),
        "results": results,
    })
}

/// What a decode step costs host and device, as tables.
fn explain(rows: &[Row], out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "\n| test | ms/step | host us/step | submits/step | uploaded B/step | read back B/step | launches/step | device MB/step |"
    )?;
    writeln!(
        out,
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )?;
    for row in rows {
        if let Some(step) = row.step {
            writeln!(
                out,
                "| {} | {:.2} | {:.0} | {:.2} | {:.0} | {:.0} | {:.0} | {:.3} |",
                row.test.name(),
                row.median_step().as_secs_f64() * 1e3,
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
                row.test.name(),
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

/// What takes up the device's memory, in MiB.
fn memory(loaded: &Loaded, out: &mut dyn Write) -> Result<()> {
    let mib = |n_bytes: u64| n_bytes as f64 / 1_048_576.0;
    let memory = loaded.context.device().memory();
    let (weights, caches) = (loaded.weight_bytes, loaded.cache_bytes);
    let scratch = loaded.context.scratch_bytes();
    writeln!(
        out,
        "\n| weights MiB | caches MiB | activations MiB | in use MiB | peak MiB | peak beyond weights and caches MiB |"
    )?;
    writeln!(out, "| ---: | ---: | ---: | ---: | ---: | ---: |")?;
    writeln!(
        out,
        "| {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
        mib(weights),
        mib(caches),
        mib(scratch),
        mib(memory.used),
        mib(memory.peak),
        mib(memory.peak.saturating_sub(weights + caches))
    )?;
    Ok(())
}

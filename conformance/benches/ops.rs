//! Criterion over the cases tagged `bench`: from submission to finish by the host's clock, on every device.
//!
//! Under each case stand GB/s and GFLOP/s of the op's cost in the fastest sample, and their share of what the device
//! was measured to reach. `GEMEL_DEVICE` selects the device (default `wgpu`). For a launch of microseconds that time is
//! mostly the submission's; `gemel-conformance bench` prints what the device's own clock says of the same cases.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::cell::Cell;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gemel_conformance::cases::{self, Tag};
use gemel_conformance::peak;
use gemel_conformance::run::{Options, Runner};
use gemel_core::device::submit;

fn ops(criterion: &mut Criterion) {
    let name = std::env::var("GEMEL_DEVICE").unwrap_or_else(|_| "wgpu".to_owned());
    let options = Options {
        sources: peak::sources(),
        ..Options::new(name)
    };
    let runner = match Runner::with(options) {
        Ok(runner) => runner,
        Err(error) => {
            eprintln!("{error}");
            return;
        }
    };
    let peak = match peak::measure(&runner) {
        Ok(peak) => peak,
        Err(error) => {
            eprintln!("measuring the device's limits: {error}");
            return;
        }
    };
    println!("{peak}");
    for (op, table) in cases::TABLES {
        let mut group = criterion.benchmark_group(*op);
        group.sample_size(10);
        for case in table().iter().filter(|case| case.has(Tag::Bench)) {
            let recorded = match runner.record(case) {
                Ok(recorded) => recorded,
                Err(error) => {
                    eprintln!("{}: {error}", case.id);
                    continue;
                }
            };
            group.throughput(Throughput::Bytes(recorded.cost.bytes));
            let fastest = Cell::new(Duration::MAX);
            group.bench_function(&case.id, |bencher| {
                bencher.iter_custom(|n| {
                    let device = &**runner.device();
                    let start = Instant::now();
                    for _ in 0..n {
                        let done = submit(device, &recorded.recording, &[], None)
                            .and_then(|pending| device.finish(pending));
                        if let Err(error) = done {
                            eprintln!("{}: {error}", case.id);
                        }
                    }
                    let time = start.elapsed();
                    fastest.set(
                        fastest
                            .get()
                            .min(time / u32::try_from(n).unwrap_or(u32::MAX)),
                    );
                    time
                });
            });
            // A filter on the command line leaves cases out.
            if fastest.get() < Duration::MAX {
                let seconds = fastest.get().as_secs_f64();
                println!(
                    "    {:.2} GB/s, {:.2} GFLOP/s, {:.1} % of peak",
                    recorded.cost.bytes as f64 / seconds / 1e9,
                    recorded.cost.flops as f64 / seconds / 1e9,
                    100.0 * peak.share(case.op.roof(), recorded.cost, seconds)
                );
            }
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default();
    targets = ops
}
criterion_main!(benches);

//! Criterion over the cases tagged `bench`: from submission to finish, in bytes a second of the op's cost.
//!
//! `GEMEL_DEVICE` selects the device (default `wgpu`). `gemel-conformance bench` prints the device's own timestamps
//! and the share of its measured peak beside the same cases.

use std::time::Instant;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gemel_conformance::cases::{self, Tag};
use gemel_conformance::run::Runner;
use gemel_core::device::submit;

fn ops(criterion: &mut Criterion) {
    let name = std::env::var("GEMEL_DEVICE").unwrap_or_else(|_| "wgpu".to_owned());
    let runner = match Runner::open(&name) {
        Ok(runner) => runner,
        Err(error) => {
            eprintln!("{error}");
            return;
        }
    };
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
                    start.elapsed()
                });
            });
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

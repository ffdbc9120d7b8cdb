//! CUDA kernels compile with NVRTC, without a GPU: the first of every entry, for the oldest and the newest architecture.
//! The command-line tool compiles more of them for all and reports what they take (`gemel-conformance compile`).
//!
//! Needs NVRTC (`scripts/setup-nvrtc.sh`, or its path in `$GEMEL_NVRTC`); says so and passes where there is none.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeSet;
use std::process::Command;

use gemel_conformance::compile::{self, Extent, Job};
use gemel_conformance::targets::{TARGETS, Target};
use gemel_core::ops;
use gemel_cuda::cubin;

/// The first kernel of each entry for these architectures.
fn jobs(targets: &[Target]) -> Vec<Job> {
    let mut known = BTreeSet::new();
    let mut jobs = compile::jobs(targets, Extent::Subset, &[]).unwrap();
    jobs.retain(|job| known.insert((job.target, job.op, job.launch.entry)));
    jobs
}

#[test]
fn every_entry_is_compiled_for_every_architecture() {
    let jobs = jobs(&TARGETS);
    for target in TARGETS {
        let compiled: BTreeSet<&str> = (jobs.iter())
            .filter(|job| job.target == target)
            .map(|job| job.op)
            .collect();
        for op in ops::NAMES.iter().filter(|op| compile::has_kernel(op)) {
            assert!(compiled.contains(op), "{op} for {target}");
        }
    }
}

#[test]
fn kernels_compile() {
    if let Err(error) = compile::compiler() {
        println!("left out: {error}");
        return;
    }
    let ends = [TARGETS[0], TARGETS[TARGETS.len() - 1]];
    let (kernels, failures) = compile::compile(jobs(&ends), None, &|_| {});
    assert!(failures.is_empty(), "{failures:#?}");
    for kernel in kernels {
        assert!(
            kernel.resources.registers > 0 && kernel.occupancy.blocks > 0,
            "{kernel:?}"
        );
    }
}

/// Our reader of cubins against NVIDIA's (`scripts/setup-nvrtc.sh cuobjdump`, or its path in `$GEMEL_CUOBJDUMP`).
#[test]
fn cubins_say_what_cuobjdump_says() {
    let tool = std::env::var_os("GEMEL_CUOBJDUMP").filter(|path| !path.is_empty());
    let (Some(tool), Ok(_)) = (tool, compile::compiler()) else {
        println!("left out: $GEMEL_CUOBJDUMP or NVRTC is missing");
        return;
    };
    let file = std::env::temp_dir().join(format!("gemel-{}.cubin", std::process::id()));
    for target in TARGETS {
        for job in compile::jobs(&[target], Extent::Subset, &["argmax".to_owned()]).unwrap() {
            let image = gemel_cuda::check(job.op, &job.launch, target.compute).unwrap();
            std::fs::write(&file, &image).unwrap();
            let output = Command::new(&tool)
                .arg("-res-usage")
                .arg(&file)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let usage = text
                .split(&format!("Function {}:", job.launch.entry))
                .nth(1)
                .unwrap_or_else(|| panic!("{} in {text}", job.launch.entry));
            let figure = |name: &str| -> u32 {
                let rest = usage.split(name).nth(1).unwrap_or_default();
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                digits
                    .parse()
                    .unwrap_or_else(|_| panic!("{name} in {usage}"))
            };
            let ours = cubin::resources(&image, job.launch.entry, target.compute).unwrap();
            // From 9.0 on the tool counts what the system keeps.
            let reserved = if target.compute.0 >= 9 { 1024 } else { 0 };
            assert_eq!(ours.registers, figure("REG:"), "registers, {target}");
            assert_eq!(ours.local_bytes, figure("STACK:"), "stack, {target}");
            assert!(ours.shared_bytes > 0, "argmax has shared memory");
            assert_eq!(
                ours.shared_bytes + reserved,
                figure("SHARED:"),
                "shared memory, {target}"
            );
        }
    }
    let _ = std::fs::remove_file(&file);
}

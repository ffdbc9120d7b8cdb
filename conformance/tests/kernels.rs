//! Every CUDA kernel compiles with NVRTC, without a GPU, in the specialisations of the quick cases.
//!
//! Needs NVRTC (`scripts/setup-nvrtc.sh`, or its path in `$GEMEL_NVRTC`); says so and passes where there is none.

use std::collections::BTreeSet;
use std::path::Path;

use gemel_conformance::cases::{self, Tag};
use gemel_core::device::reference_caps;
use gemel_core::error::DeviceError;
use gemel_core::op::{Caps, DeviceClass, Launch};
use rayon::prelude::*;

/// Oldest and newest architecture of each kind: all specialisations compile for the first, one of each entry for all.
const ARCHITECTURES: [(u32, u32); 6] = [(8, 0), (7, 5), (8, 6), (8, 9), (9, 0), (12, 0)];

/// One launch of each specialisation, with whether it is the first of its entry.
fn launches() -> Vec<(&'static str, Launch, bool)> {
    let caps = Caps {
        class: DeviceClass::Discrete,
        warp: Some(32),
        max_shared_bytes: 99 << 10,
        tensor_cores: true,
        ..reference_caps()
    };
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels");
    let (mut known, mut entries) = (BTreeSet::new(), BTreeSet::new());
    let mut list = Vec::new();
    for case in cases::all().into_iter().filter(|case| case.has(Tag::Quick)) {
        let op = case.op.name();
        if !kernels.join(format!("{op}.cu")).exists() {
            continue;
        }
        let made = case
            .launches(&caps)
            .unwrap_or_else(|error| panic!("{case:?}: {error}"));
        for launch in made.list {
            if known.insert((op, launch.entry, format!("{:?}", launch.spec))) {
                let first = entries.insert((op, launch.entry));
                list.push((op, launch, first));
            }
        }
    }
    list
}

#[test]
fn every_kernel_compiles_for_every_architecture() {
    let launches = launches();
    let (op, launch, _) = &launches[0];
    if let Err(DeviceError::NotFound { available, .. }) =
        gemel_cuda::check(op, launch, ARCHITECTURES[0])
    {
        println!("left out: {available}");
        return;
    }
    launches.par_iter().for_each(|(op, launch, first)| {
        let targets = if *first {
            &ARCHITECTURES[..]
        } else {
            &ARCHITECTURES[..1]
        };
        for &compute in targets {
            if let Err(error) = gemel_cuda::check(op, launch, compute) {
                panic!(
                    "{op}/{} {:?} for {compute:?}: {error}",
                    launch.entry, launch.spec
                );
            }
        }
    });
}

//! The support table: op x variant x backend, generated from the case tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gemel_core::op::{DeviceClass, Launch, Operands, Tolerance};
use gemel_core::{TensorDesc, ops};

use crate::cases::{self, Case, Tag};
use crate::run::{kernel_name, least_caps};
use crate::targets::TARGETS;

/// One row.
#[derive(Clone, Debug, Default)]
struct Row {
    cases: usize,
    /// Cases that have launches for adapters with the least limits, as software and as a discrete GPU.
    wgpu: usize,
    /// Cases that have launches for the oldest and the newest architecture, of entries that the op's kernel has.
    cuda: usize,
    tolerance: Option<Tolerance>,
}

fn tolerance(case: &Case) -> Option<Tolerance> {
    let class = DeviceClass::Reference;
    let descs = |operands: &[cases::Operand]| {
        operands
            .iter()
            .map(|operand| operand.device_desc(class))
            .collect::<Vec<_>>()
    };
    let (inputs, inouts) = (descs(&case.inputs), descs(&case.inouts));
    let outputs = case.outputs(class).ok()?;
    let refs = |descs: &'_ [TensorDesc]| -> Vec<TensorDesc> { descs.to_vec() };
    let (inputs, inouts, outputs) = (refs(&inputs), refs(&inouts), refs(&outputs));
    Some(case.op.tolerance(Operands {
        inputs: &inputs.iter().collect::<Vec<_>>(),
        inouts: &inouts.iter().collect::<Vec<_>>(),
        outputs: &outputs.iter().collect::<Vec<_>>(),
    }))
}

/// Kernels that were looked up, by whether they exist.
#[derive(Debug, Default)]
struct Kernels(BTreeMap<String, bool>);

impl Kernels {
    /// Whether CUDA can be asked to run a case.
    fn accept(&mut self, case: &Case) -> bool {
        let (oldest, newest) = (TARGETS[0], TARGETS[TARGETS.len() - 1]);
        [oldest, newest].into_iter().all(|target| {
            case.launches(&target.caps()).is_ok_and(|launches| {
                launches
                    .list
                    .iter()
                    .all(|launch| self.exists(case.op.name(), launch))
            })
        })
    }

    fn exists(&mut self, op: &'static str, launch: &Launch) -> bool {
        let name = kernel_name(op, launch);
        *self.0.entry(name).or_insert_with(|| {
            gemel_cuda::source::assemble(op, launch)
                .is_ok_and(|source| source.text.contains(&format!("KERNEL {}(", launch.entry)))
        })
    }
}

fn wider(a: Option<Tolerance>, b: Option<Tolerance>) -> Option<Tolerance> {
    match (a, b) {
        (Some(a), Some(b)) => Some(Tolerance {
            tau: a.tau.max(b.tau),
            alpha: a.alpha.max(b.alpha),
            nmse: a.nmse.max(b.nmse),
        }),
        (a, b) => a.or(b),
    }
}

/// The table as Markdown: the contents of `docs/ops.md`.
pub fn table() -> String {
    let mut out = String::from(
        "# Ops\n\n\
         Generated from the case tables by `gemel-conformance support -o docs/ops.md`; do not edit.\n\n\
         A cell of `wgpu` is the number of cases that its shaders accept within WebGPU's least limits, whatever the kind of device; software drivers run them in CI.\n\
         A cell of `cuda` is the number of cases that its kernels accept from compute capability 7.5 on. No CI has such a GPU: the backend's own code runs them on an emulated device (`gemel-conformance test --device cuda-emulated`), NVRTC compiles them (`gemel-conformance compile`), and `scripts/gpu-check.sh` runs them where there is one.\n\
         All of them must pass: `|z - y| <= tau * m + alpha` for each element, where `m` is the magnitude of its terms, and the squared error of each row of 32 or more elements over its squared reference at most `nmse`.\n\
         `tau` is given in units of f32 roundoff, 2^-24; the widest of the row's cases counts.\n",
    );
    let mut kernels = Kernels::default();
    for &(op, table) in cases::TABLES {
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        for case in table().iter().filter(|case| !case.has(Tag::Bench)) {
            let row = rows.entry(case.variant.clone()).or_default();
            row.cases += 1;
            let accepted = [DeviceClass::Software, DeviceClass::Discrete]
                .iter()
                .all(|&class| case.launches(&least_caps(class)).is_ok());
            row.wgpu += usize::from(accepted);
            row.cuda += usize::from(kernels.accept(case));
            row.tolerance = wider(row.tolerance, tolerance(case));
        }
        let total: usize = rows.values().map(|row| row.cases).sum();
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "\n## {op}\n\n{total} cases.\n\n| variant | reference | wgpu | cuda | tau | alpha | nmse |\n|---|---|---|---|---|---|---|"
        );
        for (variant, row) in rows {
            let figures = match row.tolerance {
                Some(t) if t == Tolerance::EXACT => "exact | exact | exact".to_owned(),
                Some(t) => format!(
                    "{:.1} u | {:.1e} | {:.1e}",
                    t.tau / Tolerance::U,
                    t.alpha,
                    t.nmse
                ),
                None => "- | - | -".to_owned(),
            };
            let _ = writeln!(
                out,
                "| {variant} | {} | {} | {} | {figures} |",
                row.cases, row.wgpu, row.cuda
            );
        }
    }
    let missing: Vec<&str> = ops::NAMES
        .iter()
        .copied()
        .filter(|name| !cases::TABLES.iter().any(|(known, _)| known == name))
        .collect();
    if !missing.is_empty() {
        let _ = writeln!(out, "\nWithout cases: {}.", missing.join(", "));
    }
    out
}

//! The support table: op x variant x backend, generated from the case tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gemel_core::op::{DeviceClass, Operands, Tolerance};
use gemel_core::{TensorDesc, ops};

use crate::cases::{self, Case, Tag};
use crate::run::least_caps;

/// One row.
#[derive(Clone, Debug, Default)]
struct Row {
    cases: usize,
    /// Cases that have launches for adapters with the least limits, as software and as a discrete GPU.
    wgpu: usize,
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
         A cell of a backend is the number of cases that its kernels accept within WebGPU's least limits, whatever the kind of device.\n\
         All of them must pass: `|z - y| <= tau * m + alpha` for each element, where `m` is the magnitude of its terms, and the squared error of each row of 32 or more elements over its squared reference at most `nmse`.\n\
         `tau` is given in units of f32 roundoff, 2^-24; the widest of the row's cases counts.\n",
    );
    for &(op, table) in cases::TABLES {
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        for case in table().iter().filter(|case| !case.has(Tag::Bench)) {
            let row = rows.entry(case.variant.clone()).or_default();
            row.cases += 1;
            let accepted = [DeviceClass::Software, DeviceClass::Discrete]
                .iter()
                .all(|&class| case.launches(&least_caps(class)).is_ok());
            row.wgpu += usize::from(accepted);
            row.tolerance = wider(row.tolerance, tolerance(case));
        }
        let total: usize = rows.values().map(|row| row.cases).sum();
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "\n## {op}\n\n{total} cases.\n\n| variant | reference | wgpu | tau | alpha | nmse |\n|---|---|---|---|---|---|"
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
                "| {variant} | {} | {} | {figures} |",
                row.cases, row.wgpu
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

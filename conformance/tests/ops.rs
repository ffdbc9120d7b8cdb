//! The fixed quick set on the default adapter, and on the reference. The command-line tool runs all cases.

use gemel_conformance::cases::{self, Case, Tag};
use gemel_conformance::report::{self, Format, Header, Outcome};
use gemel_conformance::run::{Options, Runner};
use gemel_core::op::DeviceClass;

fn quick() -> Vec<Case> {
    cases::all()
        .into_iter()
        .filter(|case| case.has(Tag::Quick))
        .collect()
}

/// Runs cases and prints the report of those that do not pass.
fn check(options: Options, cases: &[Case]) {
    let device = options.device.clone();
    let mut runner = Runner::with(options).unwrap_or_else(|error| panic!("{device}: {error}"));
    let outcomes = runner.test(cases);
    let header = Header {
        device,
        description: runner.device().description(),
        class: runner.caps().class.name().to_owned(),
        seed: 0,
        version: env!("CARGO_PKG_VERSION"),
    };
    assert_eq!(outcomes.len(), cases.len(), "every case has an outcome");
    assert!(
        outcomes.iter().all(Outcome::is_good),
        "{}",
        report::write(Format::Table, &header, &outcomes)
    );
}

#[test]
fn every_op_has_quick_cases() {
    for (op, _) in cases::TABLES {
        let n = quick().iter().filter(|case| case.op.name() == *op).count();
        assert!(n > 0, "{op} has none");
    }
}

#[test]
fn the_reference_agrees_with_itself() {
    let reduced: Vec<Case> = cases::all()
        .into_iter()
        .filter(|case| case.has(Tag::Reduced))
        .collect();
    check(Options::new("reference"), &reduced);
}

#[test]
fn the_default_adapter_agrees_with_the_reference() {
    check(Options::new("wgpu"), &quick());
}

#[test]
fn launches_of_a_gpu_agree_with_the_reference() {
    // One type of each family: the launches of a discrete GPU, with little shared memory and small grids.
    let cases: Vec<Case> = quick()
        .into_iter()
        .filter(|case| {
            !case.operands().any(|operand| operand.weight)
                || ["q8_0", "q4_k", "f16"].contains(&case.variant.as_str())
        })
        .filter(|case| case.op.name() != "attention" || case.variant == "k q8_0 v q8_0")
        .collect();
    check(
        Options {
            class: Some(DeviceClass::Discrete),
            least_limits: true,
            ..Options::new("wgpu")
        },
        &cases,
    );
}

/// Counts that the tables must not fall below.
const LEAST: &[(&[&str], usize)] = &[
    (&["matmul", "matmul_q8"], 1_681),
    (&["matmul_by_id"], 962),
    (&["moe_route", "moe_combine"], 416 + 6),
    (&["attention"], 5_284),
    (&["kv_write", "scatter_rows", "copy_cast"], 1_403),
    (&["gather_rows"], 240),
    (&["rope"], 470),
    (&["rms_norm", "add_rms_norm"], 76),
    (&["add"], 90),
    (&["mul"], 90),
    (&["scale"], 4),
    (&["argmax"], 7),
    (&["top_k_logits"], 98),
    (&["glu"], 5 * 24),
    (&["sparse_attention"], 21),
    (&["index_score"], 156),
    (&["topk_blocks"], 359 + 4),
    (&["l2_norm"], 30 + 30),
    (&["causal_conv"], 45 + 90),
    (&["delta_rule_step", "delta_rule_chunk"], 36 + 5),
];

#[test]
fn the_tables_are_broad() {
    for (ops, least) in LEAST {
        let n: usize = ops
            .iter()
            .map(|op| {
                cases::of(op)
                    .iter()
                    .filter(|case| !case.has(Tag::Bench))
                    .count()
            })
            .sum();
        assert!(
            n >= *least,
            "{ops:?} have {n} cases, at least {least} are wanted"
        );
    }
}

#[test]
fn every_pair_of_cache_types_decodes_verifies_and_prefills() {
    use std::collections::BTreeSet;
    let mut seen: BTreeSet<(String, &str)> = BTreeSet::new();
    let mut groups = BTreeSet::new();
    for case in cases::of("attention") {
        let [q, k] = [&case.inputs[0].desc, &case.inputs[1].desc];
        groups.insert(q.shape[1] / k.shape[1]);
        let step = match q.shape[0] {
            1 => "decode",
            2..=8 => "verify",
            _ => "prefill",
        };
        seen.insert((case.variant.clone(), step));
    }
    assert_eq!(seen.len(), 64 * 3, "pairs and steps");
    for group in [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 64, 128] {
        assert!(groups.contains(&group), "{group} query heads per KV head");
    }
}

#[test]
fn sparse_attention_meets_every_pair_of_cache_types_group_and_batch() {
    use std::collections::BTreeSet;
    let (mut pairs, mut shapes, mut batches) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for case in cases::of("sparse_attention") {
        let [q, k] = [&case.inputs[0].desc, &case.inputs[1].desc];
        shapes.insert((q.shape[1], k.shape[1]));
        batches.insert(q.shape[0]);
        pairs.insert(case.variant.clone());
    }
    let apart = pairs.iter().filter(|variant| !variant.ends_with("of k"));
    assert_eq!(apart.count(), 64, "pairs of cache types: {pairs:?}");
    for group in 1..=16 {
        let has = shapes
            .iter()
            .any(|&(heads, kv_heads)| heads == group * kv_heads);
        assert!(has, "{group} query heads per KV head: {shapes:?}");
    }
    assert!(shapes.contains(&(24, 2)), "24 heads over 2: {shapes:?}");
    for batch in (1..=16).chain([64]) {
        assert!(batches.contains(&batch), "{batch} tokens: {batches:?}");
    }
}

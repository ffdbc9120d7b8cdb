//! The judge rejects every mutant of a correct result: for each op, results of the reference are spoilt in the ways in
//! which kernels go wrong.

use gemel_conformance::cases::{self, Case, Tag};
use gemel_conformance::compare::{Expected, judge, judge_state};
use gemel_conformance::prepare::{self, Reference};
use gemel_core::DType;
use gemel_core::format::cache_row::CacheRow;
use gemel_core::tensor::Layout;

/// The reference's values as a device would store them.
fn stored(expected: &Expected) -> Vec<f64> {
    expected
        .values
        .iter()
        .map(|&v| match expected.desc.dtype {
            DType::F32 => f64::from(v as f32),
            _ => v,
        })
        .collect()
}

/// Wrong versions of an output, by name. Those that change nothing that matters are left out.
fn mutants(reference: &Reference, expected: &Expected) -> Vec<(&'static str, Vec<f64>)> {
    let good = stored(expected);
    let n = expected.desc.last();
    let rows = good.len() / n;
    let bound =
        |i: usize| reference.tolerance.tau * expected.magnitudes[i] + reference.tolerance.alpha;
    // Whether element `i` would be wrong with another value.
    let differs = |i: usize, value: f64| (value - expected.values[i]).abs() > 2.0 * bound(i);
    let mut out: Vec<(&'static str, Vec<f64>)> = Vec::new();
    let mut add = |name: &'static str, bad: Vec<f64>| {
        let matters = bad
            .iter()
            .enumerate()
            .any(|(i, &v)| v.is_nan() || differs(i, v));
        if matters {
            out.push((name, bad));
        }
    };
    let with = |change: &dyn Fn(&mut [f64])| {
        let mut bad = good.clone();
        change(&mut bad);
        bad
    };
    for i in [0, good.len() / 2, good.len() - 1] {
        add("a NaN", with(&|z| z[i] = f64::NAN));
        add("an infinity", with(&|z| z[i] = f64::INFINITY));
        add(
            "an element ten bounds off",
            with(&|z| z[i] += 10.0 * bound(i) + f64::from(f32::EPSILON) * z[i].abs()),
        );
        add("a flipped sign", with(&|z| z[i] = -z[i]));
    }
    let last = (rows - 1) * n;
    add("a zeroed row", with(&|z| z[last..].fill(0.0)));
    if rows > 1 {
        add(
            "two rows exchanged",
            with(&|z| {
                for i in 0..n {
                    z.swap(i, last + i);
                }
            }),
        );
        add("rows one too far", with(&|z| z.rotate_right(n)));
    }
    if n > 1 {
        add("elements one too far", with(&|z| z[last..].rotate_right(1)));
        add(
            "neighbours exchanged",
            with(&|z| z.swap(last + n - 1, last + n - 2)),
        );
    }
    out
}

/// The judge's verdicts on one case: mutants tried, mutants accepted.
fn check(case: &Case) -> (usize, Vec<String>) {
    let reference = prepare::reference(case, 0).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    let mut accepted = Vec::new();
    let mut n = 0;
    for expected in &reference.outputs {
        if expected.values.is_empty() {
            continue;
        }
        let verdict = judge(expected, &stored(expected), reference.tolerance);
        assert!(
            verdict.is_ok(),
            "{case:?}: the correct result is refused: {verdict:?}"
        );
        for (name, bad) in mutants(&reference, expected) {
            n += 1;
            if judge(expected, &bad, reference.tolerance).is_ok() {
                accepted.push(format!("{case:?}: {name}"));
            }
        }
    }
    for state in &reference.states {
        let state = state.state();
        assert!(
            judge_state(state, state.after, reference.tolerance).is_ok(),
            "{case:?}: the correct result is refused"
        );
        let row_bytes = match state.desc.layout {
            Layout::Pages => CacheRow::new(state.desc.dtype, state.desc.last()).n_words() * 4,
            _ => state.desc.strides[0] * 4,
        };
        let row =
            |index: usize| index * row_bytes..((index + 1) * row_bytes).min(state.after.len());
        let n_rows = state.after.len() / row_bytes;
        let written: Vec<usize> = (0..n_rows)
            .filter(|&r| state.before[row(r)] != state.after[row(r)])
            .collect();
        let untouched = (0..n_rows).find(|r| !written.contains(r));
        let mut try_one = |name: &str, bad: Vec<u8>| {
            if bad != state.after {
                n += 1;
                if judge_state(state, &bad, reference.tolerance).is_ok() {
                    accepted.push(format!("{case:?}: {name}"));
                }
            }
        };
        if written.is_empty() {
            continue;
        }
        try_one("nothing written", state.before.to_vec());
        let mut bad = state.after.to_vec();
        bad[row(written[0])].copy_from_slice(&state.before[row(written[0])]);
        try_one("a row not written", bad);
        let mut bad = state.after.to_vec();
        bad[row(written[0])].fill(0);
        // A row of zeros may be what was to be written.
        if state.exact.is_none_or(|exact| {
            let n = state.desc.last();
            exact[written[0] * n..(written[0] + 1) * n]
                .iter()
                .any(|&x| x.abs() > 1e-5)
        }) {
            try_one("a row of zeros", bad);
        }
        if let Some(other) = untouched {
            let mut bad = state.after.to_vec();
            bad[row(other)][0] ^= 1;
            try_one("a bit of another row", bad);
            let mut bad = state.after.to_vec();
            bad[row(other)].copy_from_slice(&state.after[row(written[0])]);
            bad[row(written[0])].copy_from_slice(&state.before[row(written[0])]);
            try_one("a row in the wrong place", bad);
        }
    }
    (n, accepted)
}

#[test]
fn every_mutant_of_every_op_is_rejected() {
    for (op, table) in cases::TABLES {
        // The quick cases and a sample of the others.
        let all = table();
        let step = (all.len() / 12).max(1);
        let sample = all
            .iter()
            .enumerate()
            .filter(|(i, case)| !case.has(Tag::Bench) && (case.has(Tag::Quick) || i % step == 0))
            .map(|(_, case)| case)
            .take(24);
        let mut n = 0;
        let mut accepted = Vec::new();
        for case in sample {
            let (tried, passed) = check(case);
            n += tried;
            accepted.extend(passed);
        }
        assert!(n >= 10, "{op}: only {n} mutants");
        assert!(accepted.is_empty(), "{op}: accepted {accepted:#?}");
    }
}

/// A mistake planted in a source file, and the cases that must notice.
struct Fault {
    op: &'static str,
    /// Part of the ids of the cases, so that few kernels are compiled.
    ids: &'static str,
    /// A shader without its extension, or a kernel file with it.
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

const FAULTS: &[Fault] = &[
    // The oldest row that the ring holds is not kept.
    Fault {
        op: "causal_conv",
        ids: "step=prompt,n_channels=7",
        file: "causal_conv",
        from: "p.depth >= run.n_rows",
        to: "p.depth > run.n_rows",
    },
    // The record of this step overwrites the one that is being committed.
    Fault {
        op: "delta_rule_step",
        ids: "step=verify,heads=2:6",
        file: "lib/delta_rule",
        from: "run.slot * 2u + 1u - half",
        to: "run.slot * 2u + half",
    },
    // An output lacks what its own token adds.
    Fault {
        op: "delta_rule_chunk",
        ids: "step=prompt,n_tokens=50,heads=2:6",
        file: "delta_rule_chunk",
        from: "j <= vec4<u32>(i)",
        to: "j < vec4<u32>(i)",
    },
    // Decays of the token before.
    Fault {
        op: "delta_rule_chunk",
        ids: "n_tokens=50,heads=2:6",
        file: "delta_rule_chunk",
        from: "sum += gs[i];",
        to: "sum += gs[i - 1u];",
    },
    Fault {
        op: "rope",
        ids: "mode=neox",
        file: "lib/rotate",
        from: "coarse.x * fine.x - coarse.y * fine.y",
        to: "coarse.x * fine.x + coarse.y * fine.y",
    },
    Fault {
        op: "kv_write",
        ids: "type=q8_0",
        file: "lib/kv_encode",
        from: "abs(largest) / 127.0",
        to: "abs(largest) / 128.0",
    },
    // The scale of the second of two blocks comes from another thread.
    Fault {
        op: "kv_write",
        ids: "type=q4_0",
        file: "lib/kv_encode",
        from: "    workgroupBarrier();\n    if (cell == NONE",
        to: "    if (cell == NONE",
    },
    // Keys are taken from among the queries.
    Fault {
        op: "rope_kv_write",
        ids: "type=f16",
        file: "rope_kv_write",
        from: "(p.n_heads + row % p.n_kv_heads)",
        to: "(row % p.n_kv_heads)",
    },
    Fault {
        op: "gather_rows",
        ids: "type=q8_0",
        file: "gather_rows",
        from: "g_quad(id - p.row0, quad)",
        to: "g_quad(id - p.row0 + 1u, quad)",
    },
    Fault {
        op: "glu",
        ids: "kind=geglu,",
        file: "lib/activation",
        from: "0.044715",
        to: "0.044615",
    },
    Fault {
        op: "matmul",
        ids: "type=q4_0",
        file: "lib/tile_q4_0",
        from: "255u, 8.0",
        to: "255u, 7.0",
    },
    Fault {
        op: "rms_norm",
        ids: "class=",
        file: "lib/reduce",
        from: "n = lanes / 2u",
        to: "n = lanes / 4u",
    },
    Fault {
        op: "top_k_logits",
        ids: "class=C",
        file: "top_k_logits",
        from: "other == key && j < i",
        to: "other == key && j > i",
    },
    Fault {
        op: "softmax_stats",
        ids: "2x8193,class=H",
        file: "softmax_stats",
        from: "x[x_row + i], 1.0",
        to: "x[x_row + i + 1u], 1.0",
    },
    Fault {
        op: "attention",
        ids: "k=f32,v=f32,dk=64",
        file: "attention",
        from: "vec4<i32>(i32(p.window) - 1)",
        to: "vec4<i32>(i32(p.window))",
    },
    // The cell behind the last one.
    Fault {
        op: "sparse_attention",
        ids: "k=f32,v=f32,dk=64",
        file: "sparse_attention",
        from: "j >= end",
        to: "j > end",
    },
    // The last of equals instead of the first.
    Fault {
        op: "topk_blocks",
        ids: "scores=equal",
        file: "topk_blocks",
        from: "min(equal, max(bound.y, equal_before) - equal_before)",
        to: "select(0u, equal, equal_before + bound.y >= end - first)",
    },
    Fault {
        op: "index_score",
        ids: "type=f16,n_heads=4,",
        file: "index_score",
        from: "vec4<u32>(a) < ends",
        to: "vec4<u32>(a) <= ends",
    },
    // The second operand begins where the first one ends.
    Fault {
        op: "concat_channels",
        ids: "n_a=33",
        file: "concat_channels",
        from: "at + column - p.n_first",
        to: "at + column",
    },
    // Neighbouring rows of a token instead of those of one matrix.
    Fault {
        op: "matmul_by_id",
        ids: "type=q8_0,n_tokens=17,experts=2,k=2,ids=batched",
        file: "matmul_by_id",
        from: "work.first + j * p.n_experts",
        to: "work.first + j",
    },
    // The last tokens of a step are a whole slot.
    Fault {
        op: "matmul_by_id",
        ids: "type=q8_0,n_tokens=3,experts=4,k=4,ids=batched",
        file: "matmul_by_id",
        from: "work.n = min(SLOT, p.n_items / p.n_experts - token);",
        to: "work.n = SLOT;",
    },
    Fault {
        op: "index_pool",
        ids: "raw=f16",
        file: "index_pool",
        from: "first % PAGE + i",
        to: "first % PAGE + min(i, 1u)",
    },
];

/// Mistakes that CUDA kernels make, on the emulated device.
const CUDA_FAULTS: &[Fault] = &[
    // A reduction without its barrier.
    Fault {
        op: "argmax",
        ids: "class=",
        file: "argmax.cu",
        from: "        block_sync();\n        if (thread < n) {",
        to: "        if (thread < n) {",
    },
    // Neighbouring rows of a token instead of those of one matrix.
    Fault {
        op: "matmul_by_id",
        ids: "type=q8_0,n_tokens=17,experts=2,k=2,ids=batched",
        file: "matmul_by_id.cu",
        from: "work.first + j * p.n_experts",
        to: "work.first + j",
    },
    Fault {
        op: "softmax_stats",
        ids: "2x8193,class=H",
        file: "softmax_stats.cu",
        from: "        block_sync();\n        if (thread < n) {",
        to: "        if (thread < n) {",
    },
    // Partial sums are read before the warps have stored them.
    Fault {
        op: "rms_norm",
        ids: "d_model=4096,class=",
        file: "lib/reduce.cuh",
        from: "    block_sync();\n    unsigned first",
        to: "    unsigned first",
    },
    // Right sides are replaced by results while others still read them.
    Fault {
        op: "delta_rule_chunk",
        ids: "n_tokens=50,heads=2:6",
        file: "delta_rule_chunk.cu",
        from: "                block_sync();\n                if (mine) {",
        to: "                if (mine) {",
    },
    // The state decays from the chunk's last token to its end.
    Fault {
        op: "delta_rule_chunk",
        ids: "n_tokens=50,heads=2:6",
        file: "delta_rule_chunk.cu",
        from: "factors[chunk.n_rows - 1u].x",
        to: "factors[chunk.n_rows - 1u].y",
    },
    // Half of the lanes are left out.
    Fault {
        op: "rms_norm",
        ids: "d_model=1757,class=",
        file: "lib/reduce.cuh",
        from: "n /= 2u",
        to: "n /= 4u",
    },
    // Keys that are still on their way are multiplied.
    Fault {
        op: "attention",
        ids: "k=f16,v=f16,dk=64",
        file: "attention.cu",
        from: "            copy_wait<0>();\n",
        to: "",
    },
    // Fragments of a matrix are taken by the neighbour's lane.
    Fault {
        op: "attention",
        ids: "k=f16,v=f16,dk=64",
        file: "attention.cu",
        from: "unsigned t = lane % 4u;",
        to: "unsigned t = (lane + 1u) % 4u;",
    },
    // The last lane of a cache block is never asked.
    Fault {
        op: "kv_write",
        ids: "type=q4_0",
        file: "lib/kv_encode.cuh",
        from: "shuffle(high, first_lane + i)",
        to: "shuffle(high, first_lane + i - 1u)",
    },
    // A read behind the end of a row.
    Fault {
        op: "softmax_stats",
        ids: "2x8193,class=H",
        file: "softmax_stats.cu",
        from: "{x_row[i], 1.0f}",
        to: "{x_row[i + 1u], 1.0f}",
    },
    // The neighbour's row.
    Fault {
        op: "gather_rows",
        ids: "type=q8_0",
        file: "gather_rows.cu",
        from: "id - p.row0, quad",
        to: "id - p.row0 + 1u, quad",
    },
    // A code of a block format is centred wrongly.
    Fault {
        op: "gather_rows",
        ids: "type=q4_0",
        file: "lib/tile_q4_0.cuh",
        from: "255u, 8.0f",
        to: "255u, 7.0f",
    },
    // Of equal logits the later one.
    Fault {
        op: "top_k_logits",
        ids: "class=C",
        file: "top_k_logits.cu",
        from: "other == key && j < i",
        to: "other == key && j > i",
    },
    // Turned the other way.
    Fault {
        op: "rope",
        ids: "mode=neox",
        file: "lib/rotate.cuh",
        from: "coarse.x * fine.x - coarse.y * fine.y",
        to: "coarse.x * fine.x + coarse.y * fine.y",
    },
    Fault {
        op: "glu",
        ids: "kind=geglu,",
        file: "lib/activation.cuh",
        from: "0.044715f",
        to: "0.044615f",
    },
];

#[test]
fn planted_faults_turn_the_suite_red() {
    plant(FAULTS, "wgpu", "shaders", 80);
}

#[test]
fn planted_faults_turn_the_emulated_device_red() {
    plant(CUDA_FAULTS, "cuda-emulated", "kernels", 12);
}

/// Runs cases with each fault in turn.
fn plant(faults: &[Fault], device: &str, folder: &str, most_cases: usize) {
    use gemel_conformance::report::{Outcome, Status};
    use gemel_conformance::run::{Options, Runner};
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(folder);
    for fault in faults {
        let file = match fault.file.split_once('.') {
            Some(_) => fault.file.to_owned(),
            None => format!("{}.wgsl", fault.file),
        };
        let path = folder.join(file);
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(
            text.contains(fault.from),
            "{} no longer says `{}`",
            fault.file,
            fault.from
        );
        let sources = [(
            fault.file.to_owned(),
            text.replacen(fault.from, fault.to, 1),
        )]
        .into();
        let cases: Vec<Case> = cases::of(fault.op)
            .into_iter()
            .filter(|case| case.id.contains(fault.ids) && !case.has(Tag::Bench))
            .take(most_cases)
            .collect();
        assert!(
            !cases.is_empty(),
            "no case of {} matches `{}`",
            fault.op,
            fault.ids
        );
        let options = Options {
            sources,
            ..Options::new(device)
        };
        let mut runner = Runner::with(options).unwrap_or_else(|error| panic!("{error}"));
        let outcomes = runner.test(&cases);
        assert!(
            !outcomes.iter().all(Outcome::is_good),
            "{}: nothing noticed `{}` instead of `{}`",
            fault.op,
            fault.to,
            fault.from
        );
        // A kernel that the device stopped ran as well; one that did not compile did not.
        let ran = outcomes.iter().any(|outcome| match outcome.status {
            Status::Fail => true,
            Status::Error => !outcome.message.contains("did not compile"),
            Status::Pass | Status::Unsupported | Status::Crash => false,
        });
        assert!(
            ran,
            "{}: the faulty kernel did not run: {}",
            fault.op, outcomes[0].message
        );
    }
}

//! What must hold for a model of delta nets, attention to selected blocks, several streams and n-grams, on every device:
//! however a sequence came to be, it goes on as if it had been computed alone and token by token.
//!
//! `recurrent.rs` runs on this model too; here is what only this one can get wrong. Full sweeps run on the reference.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::Arc;

use common::{bits, devices, same, single_steps, step, step_of};
use gemel_conformance::golden::{Golden, Setting, max_difference, open_file};
use gemel_core::Device;
use gemel_core::device::Buffer;
use gemel_core::op::DeviceClass;
use gemel_core::reference::ReferenceDevice;
use gemel_engine::blocks::{Head, StepShape};
use gemel_engine::forward::{Context, StepOutput};
use gemel_engine::gguf::{Array, Metadata, Value};
use gemel_engine::kv_cache::SeqId;
use gemel_engine::load::{LoadError, LoadOptions, Loaded, TablePlacement, load};
use gemel_engine::models;
use gemel_engine::synthetic::Spec;
use gemel_engine::weights::Requests;
use gemel_wgpu::{LimitOverrides, WgpuDevice, WgpuOptions};

/// Tokens of a block of the model that most tests run.
const RATIO: usize = 4;

/// Tokens that it selects.
const BUDGET: usize = 16;

/// Steps of up to so many tokens, the longest draft, have the bits of single ones.
const DRAFT: usize = 16;

/// Steps of other lengths sum in another order. A block selected otherwise moves logits by units.
const ROUNDING: f32 = 2e-4;

fn setting(n_seqs: usize) -> Setting {
    Setting {
        n_seqs,
        n_ubatch: 64,
        ..Setting::default()
    }
}

/// The model and its long prompt.
fn open(device: &Arc<dyn Device>, n_seqs: usize) -> (Context, Vec<u32>) {
    let golden = Golden::tiny("qwen4exp").unwrap();
    let ids = golden.tokens("long").unwrap();
    (golden.open(device, setting(n_seqs)).unwrap(), ids)
}

fn is_reference(device: &Arc<dyn Device>) -> bool {
    device.caps().class == DeviceClass::Reference
}

/// Logits after each token of a new sequence, in steps of `n`.
fn chunks(context: &mut Context, ids: &[u32], n: usize) -> Vec<Vec<f32>> {
    let seq = context.create().unwrap();
    let rows = (ids.chunks(n))
        .flat_map(|chunk| step(context, seq, chunk))
        .collect();
    context.remove(seq).unwrap();
    rows
}

#[test]
fn steps_of_any_size_give_the_same() {
    for device in devices() {
        let (mut context, ids) = open(&device, 1);
        // 64 and 6 tokens: over a page, with taps of the n-grams' convolution 9 tokens back across the cut.
        let ids = &ids[..70];
        let expected = chunks(&mut context, ids, 64);
        for n in [1, 2, 3, 5, 7] {
            let found = chunks(&mut context, ids, n);
            let worst = max_difference(&found, &expected);
            assert!(
                worst <= ROUNDING,
                "steps of {n} on {} differ by {worst}",
                device.name()
            );
        }
    }
}

#[test]
fn a_table_in_the_file_gives_the_bits_of_one_in_device_memory() {
    for device in devices() {
        // The second has its n-grams in the first layer, whose streams are all alike.
        for name in ["qwen4exp", "qwen4exp-mtp"] {
            if name == "qwen4exp-mtp" && !is_reference(&device) {
                continue;
            }
            let golden = Golden::tiny(name).unwrap();
            let ids = golden.tokens("long").unwrap();
            let run = |tables_in_file: bool| {
                let setting = Setting {
                    tables_in_file,
                    ..setting(2)
                };
                let mut context = golden.open(&device, setting).unwrap();
                let in_file =
                    (context.model().ngrams()).is_some_and(|table| table.in_file().is_some());
                assert_eq!(in_file, tables_in_file, "{name}: where it is");
                let (a, b) = (context.create().unwrap(), context.create().unwrap());
                // 64 rows, 13 with padding behind them, single ones, and one from before a text ends.
                let mut rows = step(&mut context, a, &ids[..64]);
                rows.extend(step_of(&mut context, &[(a, &ids[64..70]), (b, &ids[..7])]));
                context.truncate(a, 66).unwrap();
                rows.extend(single_steps(&mut context, a, &[5, 2, 7, 9, 2, 2]));
                // A prompt of several steps, read ahead.
                context.truncate(b, 0).unwrap();
                let mut going_on = |_| true;
                let last = context.prefill(b, &ids[..150], Head::Logits, &mut going_on);
                match last.unwrap() {
                    Some(StepOutput::Logits(row)) => rows.push(row),
                    other => panic!("{other:?}"),
                }
                rows
            };
            assert!(
                bits(&run(true)) == bits(&run(false)),
                "{name} on {}",
                device.name()
            );
        }
    }
}

#[test]
fn rows_of_any_type_are_the_same_from_the_file() {
    for device in devices() {
        // Rows of 32 channels take the small-block type that stands in for each.
        let types = ["f16", "q4_k", "bf16", "q8_0", "iq4_nl"];
        let n_types = if is_reference(&device) { 5 } else { 2 };
        for dtype in &types[..n_types] {
            let spec: Spec = format!("qwen4exp:tiny:{dtype}").parse().unwrap();
            let file = spec.open().unwrap();
            let run = |tables_in_file: bool| {
                let setting = Setting {
                    tables_in_file,
                    ..setting(1)
                };
                let mut context = open_file(&file, &device, setting, 256).unwrap();
                let seq = context.create().unwrap();
                step(&mut context, seq, &[300, 7, 300, 301, 12])
            };
            let (found, expected) = (run(true), run(false));
            assert!(
                bits(&found) == bits(&expected),
                "{dtype} on {}: {}",
                device.name(),
                max_difference(&found, &expected)
            );
        }
    }
}

/// Goes back at `start` from a draft of which `right` of `n_draft` tokens are accepted, and once more; then goes on as
/// `expected`, the logits after each token.
fn goes_back(
    (device, context): (&Arc<dyn Device>, &mut Context),
    (ids, wrong, expected): (&[u32], &[u32], &[Vec<f32>]),
    start: usize,
    [n_draft, right]: [usize; 2],
) {
    let seq = context.create().unwrap();
    for chunk in ids[..start].chunks(DRAFT) {
        step(context, seq, chunk);
    }
    let draft = [&ids[start..start + right], &wrong[..n_draft - right]].concat();
    step(context, seq, &draft);
    context.truncate(seq, start + right).unwrap();
    // Other tokens over the same block, gone again.
    step(context, seq, &wrong[8..=8 + RATIO]);
    context.truncate(seq, start + right).unwrap();
    let after = start + right;
    let found = single_steps(context, seq, &ids[after..=after + RATIO]);
    context.remove(seq).unwrap();
    assert!(
        same(device, &found, &expected[after..=after + RATIO]),
        "{right} of {n_draft} at {start} on {}",
        device.name()
    );
}

#[test]
fn going_back_at_any_phase_of_a_block_leaves_no_trace() {
    for device in devices() {
        let (mut context, ids) = open(&device, 2);
        let (wrong, ids) = (ids[200..220].to_vec(), &ids[..48]);
        let seq = context.create().unwrap();
        let expected: Vec<_> = (ids.chunks(DRAFT))
            .flat_map(|chunk| step(&mut context, seq, chunk))
            .collect();
        context.remove(seq).unwrap();
        let numbers = (ids, &wrong[..], &expected[..]);
        // From where blocks are dropped on.
        let first = BUDGET + RATIO;
        let n_starts = if is_reference(&device) {
            2 * RATIO
        } else {
            RATIO
        };
        for start in first..first + n_starts {
            for n_draft in 1..=8 {
                for right in 0..=n_draft {
                    // On devices every width and every phase, but not all acceptances of each.
                    if is_reference(&device) || (n_draft + right + start) % 8 == 0 {
                        goes_back((&device, &mut context), numbers, start, [n_draft, right]);
                    }
                }
            }
        }
    }
}

#[test]
fn the_first_tokens_have_a_block_before_they_complete_one() {
    for device in devices() {
        let (mut context, ids) = open(&device, 1);
        let rows = chunks(&mut context, &ids[..RATIO], 1);
        let finite = rows.iter().flatten().all(|logit| logit.is_finite());
        assert!(finite, "on {}", device.name());
    }
}

#[test]
fn five_sequences_of_unequal_lengths_do_not_meet() {
    for device in devices() {
        let (mut context, ids) = open(&device, 6);
        let lengths = [23, 1, 40, 7, 30];
        let of = |index: usize| &ids[31 * index..31 * index + lengths[index]];
        let alone: Vec<_> = (0..5)
            .map(|index| chunks(&mut context, of(index), 64))
            .collect();
        let seqs: Vec<SeqId> = (0..6).map(|_| context.create().unwrap()).collect();
        // An idle slot between them.
        step(&mut context, seqs[2], &ids[..9]);
        let seqs = [seqs[5], seqs[0], seqs[3], seqs[1], seqs[4]];
        let mut found = vec![Vec::new(); 5];
        // Sequences begin and end in different steps, and take part with different numbers of tokens.
        for turn in 0..9_usize {
            let parts: Vec<(usize, &[u32])> = (0..5)
                .filter_map(|index| {
                    let n = 2 * index + 3;
                    let from = (n * turn).saturating_sub(index).min(lengths[index]);
                    let to = (n * (turn + 1)).saturating_sub(index).min(lengths[index]);
                    (from < to).then(|| (index, &of(index)[from..to]))
                })
                .collect();
            if parts.is_empty() {
                continue;
            }
            let step: Vec<_> = parts
                .iter()
                .map(|&(index, ids)| (seqs[index], ids))
                .collect();
            let mut rows = step_of(&mut context, &step).into_iter();
            for (index, ids) in parts {
                found[index].extend(rows.by_ref().take(ids.len()));
            }
        }
        for (index, (found, alone)) in found.iter().zip(&alone).enumerate() {
            let worst = max_difference(found, alone);
            assert!(
                worst <= ROUNDING && found.len() == lengths[index],
                "sequence {index} on {} differs by {worst}",
                device.name()
            );
        }
    }
}

#[test]
fn pages_in_any_order_give_the_same_bits() {
    for device in devices() {
        let (mut context, ids) = open(&device, 2);
        let parts: Vec<&[u32]> = ids[..200].chunks(40).collect();
        let alone = context.create().unwrap();
        let expected: Vec<_> = (parts.iter())
            .flat_map(|ids| step(&mut context, alone, ids))
            .collect();
        context.remove(alone).unwrap();
        // Pages are taken in turn by two sequences, from a list that the removal has reversed.
        let (other, seq) = (context.create().unwrap(), context.create().unwrap());
        let mut found = Vec::new();
        for ids in &parts {
            step(&mut context, other, &ids[..33]);
            found.extend(step(&mut context, seq, ids));
        }
        assert!(bits(&found) == bits(&expected), "on {}", device.name());
    }
}

#[test]
fn forks_and_saved_sequences_diverge_at_every_phase_of_a_block() {
    for device in devices() {
        let (mut context, ids) = open(&device, 3);
        for len in 24..24 + RATIO {
            let (this, that) = (&ids[100..106], &ids[150..156]);
            let alone = |context: &mut Context, after: &[u32]| {
                let seq = context.create().unwrap();
                step(context, seq, &ids[..len]);
                let rows = single_steps(context, seq, after);
                context.remove(seq).unwrap();
                rows
            };
            let expected = [this, that].map(|after| alone(&mut context, after));
            let check = |what: &str, found: &[Vec<f32>], expected: &[Vec<f32>]| {
                let name = device.name();
                assert!(same(&device, found, expected), "{what} at {len} on {name}");
            };
            let origin = context.create().unwrap();
            step(&mut context, origin, &ids[..len]);
            let saved = context.save(origin).unwrap();
            let fork = context.fork(origin).unwrap();
            let both = step_of(&mut context, &[(origin, this), (fork, &that[..2])]);
            check("the origin", &both[..6], &expected[0]);
            check("the fork", &both[6..], &expected[1][..2]);
            // What the origin shared with it stays.
            context.remove(origin).unwrap();
            let found = step(&mut context, fork, &that[2..]);
            check("the fork alone", &found, &expected[1][2..]);
            // Into another slot, and pages that others have used.
            let restored = [(); 2].map(|()| context.load(&saved).unwrap());
            let found = step(&mut context, restored[1], that);
            check("the second restored", &found, &expected[1]);
            let found = step(&mut context, restored[0], this);
            check("the first restored", &found, &expected[0]);
            for seq in [restored[0], restored[1], fork] {
                context.remove(seq).unwrap();
            }
        }
    }
}

#[test]
fn a_sequence_saved_by_another_model_is_refused_and_changes_nothing() {
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice::new());
    let (mut context, ids) = open(&device, 1);
    let other = Golden::tiny("qwen4exp-r2").unwrap();
    let mut other = other.open(&device, setting(1)).unwrap();
    let seq = other.create().unwrap();
    step(&mut other, seq, &ids[..9]);
    let error = context.load(&other.save(seq).unwrap()).unwrap_err();
    assert!(error.to_string().contains("another model"), "{error}");
    let seq = context.create().unwrap();
    assert!(context.cache().ids(seq).is_empty(), "nothing is left of it");
}

/// Metadata of a golden model with one value replaced.
fn with(golden: &Golden, key: &str, value: Value) -> Metadata {
    let mut metadata = golden.file().metadata().clone();
    metadata.insert(format!("qwen4exp.{key}"), value);
    metadata
}

#[test]
fn a_budget_that_holds_everything_is_dense_attention() {
    let golden = Golden::tiny("qwen4exp").unwrap();
    let ids = golden.tokens("long").unwrap();
    let ids = &ids[..100];
    for device in devices() {
        let run = |key: &str, value: Value| {
            let metadata = with(&golden, key, value);
            let mut context = golden.open_as(&metadata, &device, setting(1)).unwrap();
            let shape = StepShape {
                n_tokens: 1,
                n_outputs: 1,
                max_len: 256,
                head: Head::Logits,
            };
            let plan = context.plan(shape).unwrap().plan.clone();
            let is_sparse = (plan.steps.iter()).any(|step| step.op.name() == "sparse_attention");
            (is_sparse, chunks(&mut context, ids, 64))
        };
        let ratios = Value::Array(Array::I32(vec![0; 8]));
        let (none, dense) = run("attention.compress_ratios", ratios);
        let (all, whole) = run("attention.indexer.top_k", Value::U32(1024));
        let (some, sparse) = run("attention.indexer.top_k", Value::U32(192));
        let (_, selected) = run("attention.indexer.top_k", Value::U32(BUDGET as u32));
        assert_eq!((none, all, some), (false, false, true), "which kernels run");
        let name = device.name();
        assert!(bits(&whole) == bits(&dense), "the same kernel on {name}");
        let worst = max_difference(&sparse, &dense);
        assert!(worst <= ROUNDING, "everything selected on {name}: {worst}");
        // All blocks and a tail are everything; one more block is not.
        let fits = BUDGET + RATIO - 1;
        let worst = max_difference(&selected[..fits], &dense[..fits]);
        assert!(worst <= ROUNDING, "the first {fits} on {name}: {worst}");
        let differs = max_difference(&selected[60..], &dense[60..]);
        assert!(differs > 0.1, "it does select on {name}: {differs}");
    }
}

#[test]
fn nothing_of_a_decode_step_grows_with_the_length() {
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice::new());
    for tables_in_file in [false, true] {
        let golden = Golden::tiny("qwen4exp").unwrap();
        let setting = Setting {
            tables_in_file,
            ..setting(1)
        };
        let mut context = golden.open(&device, setting).unwrap();
        let mut of = |n_tokens: usize, max_len: usize| {
            let shape = StepShape {
                n_tokens,
                n_outputs: 1,
                max_len,
                head: Head::Argmax,
            };
            let plan = context.plan(shape).unwrap().plan.clone();
            let ops: Vec<_> = plan.steps.iter().map(|step| step.op.name()).collect();
            let uploaded = plan.step_buffer.as_ref().map_or(0, Buffer::n_bytes);
            (ops, uploaded)
        };
        for n_tokens in [1, 5, 64] {
            let (ops, uploaded) = of(n_tokens, 256);
            // Of two sums in each of eight layers, all but the last and the one before the n-grams run with a norm.
            let fused = ops.iter().filter(|&&op| op == "hc_combine_norm").count();
            assert_eq!(fused, 14, "{n_tokens} tokens: {ops:?}");
            assert_eq!(of(n_tokens, 1024), (ops, uploaded), "{n_tokens} tokens");
        }
    }
}

fn load_on(device: &Arc<dyn Device>, ngram_table: TablePlacement) -> Result<Loaded, LoadError> {
    let golden = Golden::tiny("qwen4exp").unwrap();
    let options = LoadOptions {
        n_ctx: Some(256),
        ngram_table,
        ..LoadOptions::default()
    };
    load(golden.file(), device.clone(), &options, &mut |_, _| {})
}

#[test]
fn a_table_goes_where_it_fits_and_says_so() {
    // A GPU's geometry on whatever adapter there is, with so much memory.
    let with_memory = |bytes: Option<u64>| -> Arc<dyn Device> {
        let mut options = WgpuOptions::new("wgpu");
        options.class = Some(DeviceClass::Discrete);
        options.limits = Some(LimitOverrides {
            memory_bytes: bytes,
            ..LimitOverrides::default()
        });
        Arc::new(WgpuDevice::open(&options).unwrap())
    };
    let in_file = |loaded: &Loaded| {
        let table = loaded.context.model().ngrams();
        table.is_some_and(|table| table.in_file().is_some())
    };
    let roomy = with_memory(None);
    let loaded = load_on(&roomy, TablePlacement::Auto).unwrap();
    let note = loaded.ngram_table.clone().unwrap();
    assert!(!in_file(&loaded) && note.contains("has room"), "{note}");
    let needed = loaded.weight_bytes + loaded.cache_bytes;
    drop(loaded);
    let loaded = load_on(&roomy, TablePlacement::File).unwrap();
    let note = loaded.ngram_table.clone().unwrap();
    assert!(in_file(&loaded) && note.contains("asked for"), "{note}");
    let without = loaded.weight_bytes + loaded.cache_bytes;
    assert_eq!(needed - without, 448 * 16 * 4, "the table");
    drop(loaded);

    let tight = with_memory(Some(needed - 1));
    match load_on(&tight, TablePlacement::Device) {
        Err(error @ LoadError::TableTooLarge { .. }) => {
            assert!(error.to_string().contains("--ngram-table file"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let loaded = load_on(
        &with_memory(Some(needed + (needed >> 4))),
        TablePlacement::Auto,
    )
    .unwrap();
    let note = loaded.ngram_table.clone().unwrap();
    assert!(in_file(&loaded) && note.contains("MiB free"), "{note}");

    let host: Arc<dyn Device> = Arc::new(ReferenceDevice::new());
    let loaded = load_on(&host, TablePlacement::Auto).unwrap();
    let note = loaded.ngram_table.clone().unwrap();
    assert!(
        in_file(&loaded) && note.contains("the host itself"),
        "{note}"
    );
}

#[test]
fn contradicting_metadata_are_refused_by_name() {
    let golden = Golden::tiny("qwen4exp").unwrap();
    let u64s = |values: &[u64]| Value::Array(Array::U64(values.to_vec()));
    let ratios = |values: [i32; 8]| Value::Array(Array::I32(values.to_vec()));
    let i32s = |values: &[i32]| Value::Array(Array::I32(values.to_vec()));
    for (key, value, expected) in [
        ("hyper_connection.count", Value::U32(1), "2 or more"),
        ("hyper_connection.count", Value::U32(0), "in 1..=64"),
        ("hyper_connection.low_rank", Value::U32(0), "in 1..=65536"),
        ("attention.indexer.head_count", Value::U32(0), "in 1..=1024"),
        ("attention.indexer.key_length", Value::U32(0), "in 1..=512"),
        ("attention.indexer.key_length", Value::U32(6), "8 rotated"),
        ("attention.indexer.top_k", Value::U32(0), "in 1..="),
        ("attention.indexer.top_k", Value::U32(18), "divides"),
        (
            "attention.compress_ratios",
            ratios([0, 0, 0, 4, 0, 0, 0, 2]),
            "the same power of two",
        ),
        (
            "attention.compress_ratios",
            ratios([0, 0, 0, 1, 0, 0, 0, 1]),
            "the same power of two",
        ),
        ("attention.compress_ratios", i32s(&[4]), "8 layers"),
        ("attention.value_length", Value::U32(16), "32 channels"),
        ("ssm.inner_size", Value::U32(95), "6 heads of 16"),
        ("ssm.group_count", Value::U32(4), "a divisor of the 6"),
        ("nextn_predict_layers", Value::U32(2), "at most one"),
        ("expert_count", Value::U32(0), "expert_count` is 0"),
        ("ple.layers", i32s(&[1, 2]), "one layer"),
        ("ple.layers", i32s(&[3]), "a delta net"),
        ("ple.layers", Value::U32(8), "a delta net"),
        ("ple.layers", i32s(&[-1]), "ple.layers"),
        ("ple.ngram_size", Value::U32(1), "in 2..=8"),
        ("ple.ngram_size", Value::U32(9), "in 1..=8"),
        ("ple.ngram_size", Value::U32(4), "a list of 4"),
        ("ple.heads_per_ngram", Value::U32(33), "at most 32"),
        ("ple.heads_per_ngram", Value::U32(3), "a list of 6"),
        ("ple.conv_kernel", Value::U32(0), "in 1..=64"),
        ("ple.layer_multipliers", u64s(&[3, 5]), "a list of 3"),
        ("ple.head_offsets", u64s(&[0, 101]), "a list of 4"),
        (
            "ple.head_vocab_sizes",
            u64s(&[101, 0, 107, 109]),
            "1 row or more",
        ),
        (
            "ple.head_offsets",
            u64s(&[0, 101, 204, 1 << 31]),
            "2147483648",
        ),
        (
            "ple.head_offsets",
            u64s(&[0, 101, 204, u64::MAX]),
            "2147483648",
        ),
        (
            "ple.head_offsets",
            u64s(&[0, 101, 204, 340]),
            "per_layer_token_embd",
        ),
        ("ple.eos_token_id", Value::U32(1 << 31), "below 2147483648"),
        ("embedding_length_per_layer_input", Value::U32(0), "in 1..="),
        (
            "embedding_length_per_layer_input",
            Value::U32(8),
            "per_layer_token_embd",
        ),
    ] {
        let metadata = with(&golden, key, value);
        for leave_tables in [false, true] {
            let mut requests = Requests::new(golden.file(), "qwen4exp");
            if leave_tables {
                requests.leave_tables_in_file();
            }
            let error = models::load(&metadata, &mut requests)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{key}: {error}");
        }
    }
    // A table beyond 32 bits is read as such: all bits of the multipliers count.
    let mut metadata = golden.file().metadata().clone();
    metadata.insert("qwen4exp.ple.layer_multipliers", u64s(&[u64::MAX; 3]));
    let mut requests = Requests::new(golden.file(), "qwen4exp");
    let model = models::load(&metadata, &mut requests).unwrap();
    assert_eq!(model.ngrams().unwrap().hashes.multipliers, [u64::MAX; 3]);
}

//! What must hold for models of latent attention to selected tokens, on every device: however a sequence came to be, it
//! goes on as if it had been computed alone and token by token, and the selection does not show where it is everything.
//!
//! Full sweeps run on the reference.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::Arc;

use common::{bits, devices, same, single_steps, step, step_of};
use gemel_conformance::golden::{
    Golden, Setting, last_logits, max_difference, open_file, tiny_dir,
};
use gemel_core::op::DeviceClass;
use gemel_core::reference::ReferenceDevice;
use gemel_core::{DType, Device};
use gemel_engine::blocks::{Head, StepShape};
use gemel_engine::forward::Context;
use gemel_engine::gguf::{Array, GgufFile, Value};
use gemel_engine::kv_cache::SeqId;
use gemel_engine::models;
use gemel_engine::weights::Requests;

/// In the first every layer selects, in the second layer 1 attends to what layer 0 selected.
const MODELS: [&str; 2] = ["deepseek32", "glm-dsa"];

/// Steps of other lengths sum in another order. A token selected otherwise moves logits by units.
const ROUNDING: f32 = 2e-4;

fn setting(n_seqs: usize) -> Setting {
    Setting {
        n_seqs,
        n_ubatch: 64,
        ..Setting::default()
    }
}

/// A model and its long prompt.
fn open(name: &str, device: &Arc<dyn Device>, n_seqs: usize) -> (Context, Vec<u32>) {
    let golden = Golden::tiny(name).unwrap();
    let ids = golden.tokens("long").unwrap();
    (golden.open(device, setting(n_seqs)).unwrap(), ids)
}

fn is_reference(device: &Arc<dyn Device>) -> bool {
    device.caps().class == DeviceClass::Reference
}

/// Logits after each token of a new sequence, in steps of `n`.
fn chunks(context: &mut Context, ids: &[u32], n: usize) -> Vec<Vec<f32>> {
    let seq = context.create().unwrap();
    let rows = ids
        .chunks(n)
        .flat_map(|chunk| step(context, seq, chunk))
        .collect();
    context.remove(seq).unwrap();
    rows
}

#[test]
fn steps_of_any_size_give_the_same() {
    for device in devices() {
        for name in MODELS {
            let (mut context, ids) = open(name, &device, 1);
            // Over the end of a page.
            let ids = &ids[..70];
            let expected = chunks(&mut context, ids, 64);
            for n in [1, 3, 7, 17] {
                let found = chunks(&mut context, ids, n);
                let worst = max_difference(&found, &expected);
                assert!(
                    worst <= ROUNDING,
                    "{name}: steps of {n} on {} differ by {worst}",
                    device.name()
                );
            }
        }
    }
}

#[test]
fn a_verified_draft_gives_the_bits_of_single_steps() {
    for device in devices() {
        for name in MODELS {
            let (mut context, ids) = open(name, &device, 2);
            let (a, b) = (context.create().unwrap(), context.create().unwrap());
            let mut at = 0;
            for n in [5, 1, 2, 3, 8, 16, 4, 16, 13, 1] {
                let part = &ids[at..at + n];
                let found = step(&mut context, a, part);
                let expected = single_steps(&mut context, b, part);
                assert!(
                    same(&device, &found, &expected),
                    "{name}: {n} tokens at {at} on {}",
                    device.name()
                );
                at += n;
            }
        }
    }
}

/// Goes back to `start` from tokens that were wrong, and on: nothing of them shows.
fn goes_back(
    (device, context): (&Arc<dyn Device>, &mut Context),
    seq: SeqId,
    (ids, wrong, expected): (&[u32], &[u32], &[Vec<f32>]),
    start: usize,
) {
    context.truncate(seq, start).unwrap();
    step(context, seq, wrong);
    context.truncate(seq, start).unwrap();
    let end = (start + 2).min(ids.len());
    let found = single_steps(context, seq, &ids[start..end]);
    assert!(
        same(device, &found, &expected[start..end]),
        "at {start} on {}",
        device.name()
    );
}

#[test]
fn going_back_to_any_position_is_computing_anew() {
    for device in devices() {
        for name in MODELS {
            let (mut context, ids) = open(name, &device, 2);
            let (wrong, ids) = (ids[200..205].to_vec(), &ids[..72]);
            let seq = context.create().unwrap();
            let expected = single_steps(&mut context, seq, ids);
            let every = if is_reference(&device) { 1 } else { 9 };
            // From the end to the start, so that each position is reached with all before it in place.
            for start in (0..ids.len()).rev().step_by(every) {
                let case = (ids, &wrong[..], &expected[..]);
                goes_back((&device, &mut context), seq, case, start);
            }
        }
    }
}

#[test]
fn sequences_in_one_step_do_not_meet() {
    for device in devices() {
        for name in MODELS {
            let (mut context, ids) = open(name, &device, 4);
            let alone = context.create().unwrap();
            let expected = single_steps(&mut context, alone, &ids[..24]);
            context.remove(alone).unwrap();
            // Slots in any order, of which some are idle and one is used again.
            let [x, y, z] = [(); 3].map(|()| context.create().unwrap());
            step(&mut context, y, &ids[50..110]);
            context.remove(x).unwrap();
            let x = context.create().unwrap();
            let mut found = Vec::new();
            for i in 0..24 {
                let parts = [
                    (z, &ids[200 + i..=200 + i]),
                    (x, &ids[i..=i]),
                    (y, &ids[110 + 2 * i..112 + 2 * i]),
                ];
                found.push(step_of(&mut context, &parts)[1].clone());
            }
            assert!(
                bits(&found) == bits(&expected),
                "{name}: as alone on {}",
                device.name()
            );
        }
    }
}

#[test]
fn forks_and_saved_sequences_go_on_as_their_origin() {
    for device in devices() {
        for name in MODELS {
            let (mut context, ids) = open(name, &device, 3);
            let seq = context.create().unwrap();
            step(&mut context, seq, &ids[..64]);
            step(&mut context, seq, &ids[64..80]);
            context.truncate(seq, 75).unwrap();
            let saved = context.save(seq).unwrap();
            let fork = context.fork(seq).unwrap();
            let expected = step(&mut context, seq, &ids[75..90]);
            let found = step(&mut context, fork, &ids[75..90]);
            assert!(
                bits(&found) == bits(&expected),
                "{name}: a fork on {}",
                device.name()
            );
            // Into memory that others have used.
            context.remove(fork).unwrap();
            let other = context.create().unwrap();
            step(&mut context, other, &ids[100..164]);
            context.remove(other).unwrap();
            let loaded = context.load(&saved).unwrap();
            let found = step(&mut context, loaded, &ids[75..90]);
            assert!(
                bits(&found) == bits(&expected),
                "{name}: loaded on {}",
                device.name()
            );
        }
    }
}

/// A model that selects another number of tokens, with caches of this type.
fn with_budget(name: &str, device: &Arc<dyn Device>, budget: usize, kv_type: DType) -> Context {
    let mut file = GgufFile::open(&tiny_dir().join(format!("{name}.gguf"))).unwrap();
    let spec = format!("{name}.attention.indexer.top_k=int:{budget}");
    file.metadata_mut().apply_override(&spec).unwrap();
    let setting = Setting {
        kv_type,
        ..setting(1)
    };
    open_file(&file, device, setting, 1024).unwrap()
}

/// The ops of a step of one token in a bucket of this length.
fn ops(context: &mut Context, max_len: usize) -> Vec<&'static str> {
    let shape = StepShape {
        n_tokens: 1,
        n_outputs: 1,
        max_len,
        head: Head::Logits,
    };
    let recording = context.plan(shape).unwrap();
    recording.plan.steps.iter().map(|s| s.op.name()).collect()
}

#[test]
fn a_selection_of_everything_is_dense_attention() {
    for device in devices() {
        for name in MODELS {
            for kv_type in [DType::F32, DType::F16, DType::Q8_0] {
                // A sum in another order rounds a cached number to its neighbour now and then, which is no f32's matter
                // and hardly that of the reference, whose sums are in f64.
                if kv_type != DType::F32 && !is_reference(&device) {
                    continue;
                }
                // The bucket of 256 cells fits the first budget and not the second.
                let mut dense = with_budget(name, &device, 256, kv_type);
                let mut sparse = with_budget(name, &device, 255, kv_type);
                let (a, b) = (ops(&mut dense, 256), ops(&mut sparse, 256));
                assert!(
                    a.contains(&"attention") && !a.contains(&"index_score"),
                    "{a:?}"
                );
                assert!(
                    b.contains(&"sparse_attention") && !b.contains(&"attention"),
                    "{b:?}"
                );
                let (_, ids) = open(name, &device, 1);
                let expected = chunks(&mut dense, &ids[..80], 64);
                let found = chunks(&mut sparse, &ids[..80], 64);
                let worst = max_difference(&found, &expected);
                assert!(
                    worst <= ROUNDING,
                    "{name} with {kv_type} on {} differs by {worst}",
                    device.name()
                );
            }
        }
    }
}

#[test]
fn a_layer_without_an_indexer_has_no_keys_of_one() {
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice::new());
    let count = |name: &str| {
        let (mut context, _) = open(name, &device, 1);
        let ops = ops(&mut context, 1024);
        let n = |op: &str| ops.iter().filter(|name| **name == op).count();
        let writes = n("kv_write") + n("rope_kv_write");
        (n("index_score"), n("sparse_attention"), writes)
    };
    // A row of the latent a layer, and a key a layer with an indexer.
    assert_eq!(count("deepseek32"), (3, 3, 6), "three of three");
    assert_eq!(count("glm-dsa"), (2, 3, 5), "two of three");
    let (context, _) = open("glm-dsa", &device, 1);
    let found = context.model().found().join("; ");
    assert!(
        found.contains("1 of 3 attention layers without an indexer"),
        "{found}"
    );
    assert!(found.contains("blk.3"), "the prediction block: {found}");
}

/// Narrow caches against the golden logits of f32 ones, within 2 and 10 percent of their standard deviation. Among the
/// 300 tokens of the long prompt `q8_0` turns choices, of tokens and of experts, which moves logits by units.
#[test]
fn narrow_caches_stay_near_the_golden_logits() {
    for device in devices() {
        for name in MODELS {
            let golden = Golden::tiny(name).unwrap();
            let (prompt, long) = (
                golden.tokens("prompt").unwrap(),
                golden.tokens("long").unwrap(),
            );
            let expected = [
                golden.block("prompt_all").unwrap().pop().unwrap(),
                golden.block("long_last4").unwrap().pop().unwrap(),
            ];
            for (kv_type, n, tolerance) in [(DType::F16, 2, 0.05), (DType::Q8_0, 1, 0.25)] {
                let setting = Setting {
                    kv_type,
                    ..setting(1)
                };
                let mut context = golden.open(&device, setting).unwrap();
                let found: Vec<_> = [&prompt, &long][..n]
                    .iter()
                    .map(|ids| last_logits(&mut context, ids, 1).unwrap().remove(0))
                    .collect();
                let worst = max_difference(&found, &expected[..n]);
                assert!(
                    worst <= tolerance,
                    "{name} with {kv_type} on {} differs by {worst}",
                    device.name()
                );
            }
        }
    }
}

#[test]
fn contradicting_sizes_are_refused_by_name() {
    let types = |list: &[i32]| Value::Array(Array::I32(list.to_vec()));
    for (arch, key, value, expected) in [
        (
            "deepseek32",
            "attention.head_count_kv",
            Value::U32(2),
            "1: all heads",
        ),
        (
            "deepseek32",
            "attention.kv_lora_rank",
            Value::U32(0),
            "in 1..=576",
        ),
        (
            "deepseek32",
            "attention.kv_lora_rank",
            Value::U32(30),
            "multiple of 4",
        ),
        (
            "deepseek32",
            "attention.kv_lora_rank",
            Value::U32(560),
            "makes 576",
        ),
        (
            "deepseek32",
            "attention.key_length",
            Value::U32(96),
            "64, the channels",
        ),
        (
            "deepseek32",
            "attention.value_length",
            Value::U32(64),
            "32, the channels",
        ),
        (
            "deepseek32",
            "attention.key_length_mla",
            Value::U32(32),
            "more than the 32",
        ),
        (
            "deepseek32",
            "attention.q_lora_rank",
            Value::U32(0),
            "in 1..=65536",
        ),
        (
            "deepseek32",
            "attention.value_length_mla",
            Value::U32(0),
            "in 1..=1024",
        ),
        (
            "deepseek32",
            "attention.indexer.head_count",
            Value::U32(0),
            "in 1..=1024",
        ),
        (
            "deepseek32",
            "attention.indexer.key_length",
            Value::U32(16),
            "32 rotated",
        ),
        (
            "deepseek32",
            "attention.indexer.top_k",
            Value::U32(0),
            "in 1..=65536",
        ),
        (
            "deepseek32",
            "leading_dense_block_count",
            Value::U32(4),
            "at most the 3",
        ),
        ("deepseek32", "expert_count", Value::U32(0), "at least 1"),
        (
            "deepseek32",
            "expert_shared_count",
            Value::U32(1 << 30),
            "1048576 wide",
        ),
        (
            "deepseek32",
            "nextn_predict_layers",
            Value::U32(3),
            "at most one",
        ),
        ("deepseek32", "rope.dimension_count", Value::U32(31), "even"),
        (
            "glm-dsa",
            "attention.indexer.types",
            types(&[0, 1, 1]),
            "1 for the first",
        ),
        (
            "glm-dsa",
            "attention.indexer.types",
            types(&[1, 2, 1]),
            "or 0 (none)",
        ),
        (
            "glm-dsa",
            "attention.indexer.types",
            types(&[1, 1]),
            "each of 3 layers",
        ),
    ] {
        let golden = Golden::tiny(arch).unwrap();
        let mut metadata = golden.file().metadata().clone();
        metadata.insert(format!("{arch}.{key}"), value);
        let mut requests = Requests::new(golden.file(), arch);
        let error = models::load(&metadata, &mut requests)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{arch}.{key}: {error}");
    }
}

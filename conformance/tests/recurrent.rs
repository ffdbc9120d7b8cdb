//! What must hold for the memory of recurrent layers, on every device: going back, sharing steps, reusing slots.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::Arc;

use common::{bits, devices, same, single_steps, step, step_of};
use gemel_conformance::golden::{Golden, Setting, max_difference};
use gemel_core::Device;
use gemel_core::reference::ReferenceDevice;
use gemel_engine::blocks::Head;
use gemel_engine::forward::{Context, StepError, StepToken};
use gemel_engine::gguf::Value;
use gemel_engine::kv_cache::CacheError;
use gemel_engine::models;
use gemel_engine::weights::Requests;

/// Models with three value heads to a key head; the second also has sparse attention, two rings and n-grams.
const MODELS: [&str; 2] = ["qwen35-r3", "qwen4exp"];

/// Every model on every device.
fn benches() -> impl Iterator<Item = (Arc<dyn Device>, &'static str)> {
    let devices = devices().into_iter();
    devices.flat_map(|device| MODELS.map(|name| (device.clone(), name)))
}

/// A model and its long prompt.
fn open(device: &Arc<dyn Device>, name: &str, n_seqs: usize) -> (Context, Vec<u32>) {
    let golden = Golden::tiny(name).unwrap();
    let setting = Setting {
        n_seqs,
        n_ubatch: 64,
        ..Setting::default()
    };
    let ids = golden.tokens("long").unwrap();
    (golden.open(device, setting).unwrap(), ids)
}

#[test]
fn a_verified_draft_gives_the_bits_of_single_steps() {
    for (device, name) in benches() {
        let (mut context, ids) = open(&device, name, 2);
        let (a, b) = (context.create().unwrap(), context.create().unwrap());
        let mut at = 0;
        // A prompt, then drafts of every length that a step may verify.
        for n in [5, 1, 2, 3, 8, 16, 4, 1] {
            let part = &ids[at..at + n];
            let found = step(&mut context, a, part);
            let expected = single_steps(&mut context, b, part);
            assert!(
                same(&device, &found, &expected),
                "{n} tokens at {at}, {name} on {}",
                device.name()
            );
            at += n;
        }
    }
}

#[test]
fn going_back_forgets_the_rejected_tokens() {
    for (device, name) in benches() {
        let (mut context, ids) = open(&device, name, 2);
        let plain = context.create().unwrap();
        let expected = single_steps(&mut context, plain, &ids[..14]);
        let wrong: Vec<u32> = ids[100..116].to_vec();
        // A draft of up to 16 tokens at each position, of which the first few are right.
        for (start, n_draft, n_right) in [
            (1, 1, 0),
            (2, 4, 0),
            (3, 4, 2),
            (5, 16, 1),
            (6, 16, 0),
            (7, 3, 3),
            (9, 2, 1),
        ] {
            let seq = context.create().unwrap();
            step(&mut context, seq, &ids[..start]);
            let right = n_right.min(n_draft);
            let draft = [&ids[start..start + right], &wrong[..n_draft - right]].concat();
            step(&mut context, seq, &draft);
            context.truncate(seq, start + right).unwrap();
            // Once more: what was rejected twice leaves no trace either.
            step(&mut context, seq, &wrong[3..5]);
            context.truncate(seq, start + right).unwrap();
            let found = single_steps(&mut context, seq, &ids[start + right..14]);
            assert!(
                same(&device, &found, &expected[start + right..]),
                "{n_right} of {n_draft} at {start}, {name} on {}",
                device.name()
            );
            context.remove(seq).unwrap();
        }
    }
}

#[test]
fn a_prompt_may_be_cut_anywhere_and_forgotten_in_part() {
    for (device, name) in benches() {
        let (mut context, ids) = open(&device, name, 2);
        let plain = context.create().unwrap();
        let expected = single_steps(&mut context, plain, &ids[..54]);
        context.remove(plain).unwrap();
        // In steps that go token by token and in such that go by chunks; then back, up to all that is recorded.
        for (parts, n_forgotten) in [(&[54][..], 16), (&[17, 37], 15), (&[3, 33, 16, 2], 1)] {
            let seq = context.create().unwrap();
            let mut found = Vec::new();
            for &n in parts {
                found.extend(step(&mut context, seq, &ids[found.len()..found.len() + n]));
            }
            let kept = 54 - n_forgotten;
            context.truncate(seq, kept).unwrap();
            let again = step(&mut context, seq, &ids[kept..54]);
            for (what, rows, from) in [("prompt", &found, 0), ("again", &again, kept)] {
                let error = max_difference(rows, &expected[from..]);
                assert!(
                    error <= 1e-4,
                    "{what} in {parts:?}: {error}, {name} on {}",
                    device.name()
                );
            }
            context.remove(seq).unwrap();
        }
    }
}

#[test]
fn sequences_in_one_step_do_not_meet() {
    for (device, name) in benches() {
        let (mut context, ids) = open(&device, name, 4);
        let alone = context.create().unwrap();
        let expected = single_steps(&mut context, alone, &ids[..12]);
        context.remove(alone).unwrap();
        // Slots in any order, of which some are idle and one is used again.
        let [x, y, z] = [(); 3].map(|()| context.create().unwrap());
        step(&mut context, y, &ids[50..90]);
        context.remove(x).unwrap();
        let x = context.create().unwrap();
        let mut found = Vec::new();
        for i in 0..12 {
            let rows = step_of(
                &mut context,
                &[
                    (z, &ids[200 + i..201 + i]),
                    (x, &ids[i..=i]),
                    (y, &ids[90 + 2 * i..92 + 2 * i]),
                ],
            );
            found.push(rows[1].clone());
        }
        assert!(
            bits(&found) == bits(&expected),
            "as alone, {name} on {}",
            device.name()
        );
    }
}

#[test]
fn a_slot_does_not_remember_its_last_owner() {
    for (device, name) in benches() {
        let (mut context, ids) = open(&device, name, 1);
        let first = context.create().unwrap();
        let expected = step(&mut context, first, &ids[..40]);
        step(&mut context, first, &ids[100..110]);
        context.truncate(first, 0).unwrap();
        let again = step(&mut context, first, &ids[..40]);
        assert!(
            bits(&again) == bits(&expected),
            "emptied, {name} on {}",
            device.name()
        );
        context.remove(first).unwrap();
        let second = context.create().unwrap();
        let again = step(&mut context, second, &ids[..40]);
        assert!(
            bits(&again) == bits(&expected),
            "reused, {name} on {}",
            device.name()
        );
    }
}

#[test]
fn checkpoints_go_back_further_than_the_record() {
    for (device, name) in benches() {
        let (mut context, ids) = open(&device, name, 2);
        let seq = context.create().unwrap();
        step(&mut context, seq, &ids[..30]);
        step(&mut context, seq, &ids[30..33]);
        context.truncate(seq, 32).unwrap();
        // With a rollback pending.
        let checkpoint = context.checkpoint(seq).unwrap();
        assert_eq!(checkpoint.len(), 32, "tokens");
        let expected = step(&mut context, seq, &ids[32..60]);
        step(&mut context, seq, &ids[100..140]);
        match context.truncate(seq, 32) {
            Err(CacheError::StateGone { len: 32, kept_from }) => {
                assert_eq!(kept_from, 84, "all but 16 of 100 tokens are committed");
            }
            other => panic!("{other:?}"),
        }
        context.restore(seq, &checkpoint).unwrap();
        let found = step(&mut context, seq, &ids[32..60]);
        assert!(
            bits(&found) == bits(&expected),
            "{name} on {}",
            device.name()
        );
        context.truncate(seq, 0).unwrap();
        step(&mut context, seq, &ids[..4]);
        let ahead = context.restore(seq, &checkpoint).unwrap_err();
        assert!(ahead.to_string().contains("only 4"), "{ahead}");
    }
}

#[test]
fn a_saved_sequence_goes_on_as_if_nothing_had_happened() {
    for (device, name) in benches() {
        let (mut context, ids) = open(&device, name, 2);
        let seq = context.create().unwrap();
        step(&mut context, seq, &ids[..64]);
        step(&mut context, seq, &ids[64..80]);
        // With a rollback pending.
        context.truncate(seq, 70).unwrap();
        let saved = context.save(seq).unwrap();
        let expected = step(&mut context, seq, &ids[70..90]);
        context.remove(seq).unwrap();
        // Into memory that others have used.
        let others = [(); 2].map(|()| context.create().unwrap());
        for other in others {
            step(&mut context, other, &ids[100..164]);
        }
        let full = context.load(&saved).unwrap_err();
        assert!(full.to_string().contains("slots are in use"), "{full}");
        context.remove(others[0]).unwrap();
        let again = context.load(&saved).unwrap();
        let found = step(&mut context, again, &ids[70..90]);
        assert!(
            bits(&found) == bits(&expected),
            "{name} on {}",
            device.name()
        );
    }
}

#[test]
fn a_fork_goes_on_as_its_origin_and_apart_from_it() {
    for (device, name) in benches() {
        let (mut context, ids) = open(&device, name, 3);
        let seq = context.create().unwrap();
        step(&mut context, seq, &ids[..64]);
        step(&mut context, seq, &ids[64..80]);
        context.truncate(seq, 75).unwrap();
        let fork = context.fork(seq).unwrap();
        assert_eq!(context.cache().len(fork).unwrap(), 75, "as long");
        let found = step(&mut context, fork, &ids[75..90]);
        let expected = step(&mut context, seq, &ids[75..90]);
        assert!(
            bits(&found) == bits(&expected),
            "{name} on {}",
            device.name()
        );
        // Each has its own pages and state.
        let second = context.fork(fork).unwrap();
        step(&mut context, fork, &ids[200..230]);
        context.remove(fork).unwrap();
        let found = step(&mut context, second, &ids[90..95]);
        let expected = step(&mut context, seq, &ids[90..95]);
        assert!(
            bits(&found) == bits(&expected),
            "{name} on {}",
            device.name()
        );
        let third = context.fork(seq).unwrap();
        let full = context.fork(third).unwrap_err();
        assert!(full.to_string().contains("slots are in use"), "{full}");
    }
}

#[test]
fn interleaved_tokens_are_refused_and_change_nothing() {
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice::new());
    let (mut context, ids) = open(&device, "qwen35-r3", 2);
    let (a, b) = (context.create().unwrap(), context.create().unwrap());
    step(&mut context, a, &ids[..3]);
    let tokens = [a, b, a].map(|seq| StepToken {
        seq,
        id: 1,
        output: true,
    });
    match context.step(&tokens, Head::Logits) {
        Err(StepError::Cache(CacheError::Scattered { seq })) => assert_eq!(seq, a.0, "named"),
        other => panic!("{other:?}"),
    }
    assert_eq!(context.cache().len(a).unwrap(), 3, "unchanged");
    let found = step(&mut context, a, &ids[3..6]);
    context.truncate(a, 0).unwrap();
    step(&mut context, a, &ids[..3]);
    let expected = step(&mut context, a, &ids[3..6]);
    assert!(bits(&found) == bits(&expected), "the state too");
}

#[test]
fn a_prediction_block_is_found_and_changes_nothing() {
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice::new());
    let run = |name: &str| {
        let golden = Golden::tiny(name).unwrap();
        let mut context = golden.open(&device, Setting::default()).unwrap();
        let seq = context.create().unwrap();
        let rows = step(&mut context, seq, &golden.tokens("prompt").unwrap());
        (rows, context.model().found().to_vec())
    };
    let (plain, none) = run("qwen35-r3");
    let (with, found) = run("qwen35-r3-mtp");
    assert!(bits(&plain) == bits(&with), "the trunk is the same");
    assert!(none.is_empty(), "{none:?}");
    assert!(
        matches!(&found[..], [only] if only.contains("blk.4")),
        "{found:?}"
    );
    // One that selects what it attends to, and one that does not.
    for (name, block) in [("qwen4exp-mtp", "blk.4"), ("qwen4exp-mtp-dense", "blk.2")] {
        let (_, found) = run(name);
        assert!(
            matches!(&found[..], [only] if only.contains(block)),
            "{name}: {found:?}"
        );
    }
}

#[test]
fn contradicting_sizes_are_refused_by_name() {
    let golden = Golden::tiny("qwen35-r3").unwrap();
    for (key, value, expected) in [
        ("ssm.group_count", Value::U32(4), "a divisor of the 6"),
        ("ssm.inner_size", Value::U32(95), "6 heads of 16"),
        ("ssm.conv_kernel", Value::U32(0), "in 1..=64"),
        ("ssm.state_size", Value::U32(1 << 20), "in 1..=1024"),
        ("nextn_predict_layers", Value::U32(2), "at most one"),
        ("full_attention_interval", Value::U32(0), "1 or more"),
        (
            "rope.dimension_sections",
            Value::U32(3),
            "dimension_sections",
        ),
        ("ssm.time_step_rank", Value::U32(8), "8 heads"),
        ("attention.value_length", Value::U32(16), "32 channels"),
    ] {
        let mut metadata = golden.file().metadata().clone();
        metadata.insert(format!("qwen35.{key}"), value);
        let mut requests = Requests::new(golden.file(), "qwen35");
        let error = models::load(&metadata, &mut requests)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{key}: {error}");
    }
}

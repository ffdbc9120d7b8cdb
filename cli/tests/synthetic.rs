//! `--synthetic` and `gemel synth`: the same model with and without a file, and what is answered to mistakes.

mod support;

use std::path::Path;

use support::{Outcome, finish, gemel, ok};

const TINY: &str = "llama:tiny:q4_k";

fn refused<S: AsRef<std::ffi::OsStr>>(args: &[S], parts: &[&str]) {
    let outcome: Outcome = finish(&mut gemel(args), "");
    assert!(matches!(outcome.code, Some(1 | 2)), "{outcome:?}");
    assert!(outcome.stdout.is_empty(), "{outcome:?}");
    for part in parts {
        assert!(outcome.stderr.contains(part), "{part}: {outcome:?}");
    }
}

/// A path in the folder that cargo gives tests, with nothing there.
fn fresh(name: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    path.to_str().expect("a UTF-8 path").to_owned()
}

#[test]
fn a_written_model_says_the_same() {
    for (spec, device) in [
        ("llama:tiny:q4_k", "reference"),
        ("llama:tiny:q4_k:9", "wgpu"),
        ("gemma3:tiny:iq3_s", "wgpu"),
    ] {
        let path = fresh(&format!("{}.gguf", spec.replace(':', "-")));
        let outcome = ok(&["synth", spec, "-o", &path]);
        assert!(outcome.stderr.contains("tensors"), "{outcome:?}");
        assert!(!Path::new(&format!("{path}.part")).exists());
        let run = |model: [&str; 2]| {
            let flags = "--raw -p the --temp 0 -n 12 -c 64 --ignore-eos --device";
            let flags = flags.split(' ').chain([device]);
            let args: Vec<&str> = ["run"].into_iter().chain(model).chain(flags).collect();
            ok(&args).text().to_owned()
        };
        let made_up = run(["--synthetic", spec]);
        assert!(made_up.len() > 12, "{spec}: {made_up:?}");
        assert_eq!(made_up, run(["-m", &path]), "{spec} on {device}");
        let inspect = |model: &[&str]| {
            let args = [&["inspect", "--json"], model].concat();
            ok(&args).json()
        };
        let (a, b) = (inspect(&["--synthetic", spec]), inspect(&[&path]));
        for key in ["metadata", "tensors", "verdict", "version"] {
            assert_eq!(a[key], b[key], "{spec}: {key}");
        }
    }
}

#[test]
fn another_seed_is_another_model() {
    let text = |spec: &str| {
        let args = "run --raw -p the --temp 0 -n 12 -c 64 --device reference --synthetic";
        let args: Vec<&str> = args.split(' ').chain([spec]).collect();
        ok(&args).text().to_owned()
    };
    assert_eq!(text(TINY), text("llama:tiny:q4_k:1"), "seed 1 by default");
    assert_ne!(text(TINY), text("llama:tiny:q4_k:2"));
}

#[test]
fn mistakes_are_answered_with_what_there_is() {
    for command in ["run", "bench"] {
        let with = |spec| [command, "--device", "reference", "--synthetic", spec];
        refused(&with("llama"), &["ARCH:SIZE:TYPE", "llama:8b:q4_k"]);
        refused(&with("lama:8b:q4_k"), &["lama", "qwen3 (tiny, 0.6b"]);
        refused(&with("llama:7b:q4_k"), &["7b", "8b"]);
        refused(&with("llama:8b:q4_k_m"), &["q4_k_m", "iq2_xxs"]);
        refused(&with("llama:8b:q4_k:x"), &["seed", "x"]);
    }
    refused(&["inspect", "--synthetic", "llama:tiny:i32"], &["i32"]);
    refused(
        &["run", "-m", "x.gguf", "--synthetic", TINY, "-p", "a"],
        &["cannot be used with"],
    );
    refused(&["run", "-p", "a"], &["--model"]);
    refused(&["synth", TINY], &["--output"]);
    let nowhere = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no/such/folder/x.gguf");
    let nowhere = nowhere.to_str().expect("a UTF-8 path");
    refused(
        &["synth", TINY, "-o", nowhere],
        &["creating", "x.gguf.part"],
    );
    let list = ok(&["synth", "--list"]);
    for part in ["llama:135m\n", "gemma3:27b\n", "iq1_s"] {
        assert!(list.text().contains(part), "{part}");
    }
}

#[test]
fn a_model_too_large_for_the_device_is_refused_before_it_is_made() {
    let args = "run --device wgpu --memory 64 -p a --synthetic llama:70b:f16";
    let args: Vec<&str> = args.split(' ').collect();
    refused(&args, &["synthetic llama:70b:f16:1", "64 MiB"]);
}

/// What a decode step costs.
#[derive(Debug)]
struct Step {
    /// Submissions, bytes up, bytes back.
    traffic: [u64; 3],
    /// Launches and bytes on the device.
    device: [u64; 2],
    /// The part of some ops.
    growing: [u64; 2],
    /// Everything else, op by op.
    others: String,
}

fn step_of(result: &serde_json::Value, growing: &[&str]) -> Step {
    let step = &result["step"];
    let counter = |key: &str| step[key].as_f64().expect("a counter") as u64;
    let ops = step["ops"].as_array().expect("ops");
    let grows = |op: &&serde_json::Value| growing.iter().any(|name| op["op"] == *name);
    let (growing, others): (Vec<_>, Vec<_>) = ops.iter().partition(grows);
    let sum = |key: &str| growing.iter().filter_map(|op| op[key].as_u64()).sum();
    let mut others: Vec<String> = others.iter().map(ToString::to_string).collect();
    others.sort();
    Step {
        traffic: ["submits", "uploaded_bytes", "read_back_bytes"].map(counter),
        device: ["launches", "device_bytes"].map(counter),
        growing: ["launches", "bytes"].map(sum),
        others: others.join("\n"),
    }
}

/// Decode steps at two depths: everything but some ops is equal, to the byte.
fn steps_at(flags: &str, device: &[&str], growing: &[&str]) -> ([Step; 2], serde_json::Value) {
    let args = format!("bench {flags} -p 0 -n 3 -r 1 --explain -o json");
    let args: Vec<&str> = args.split(' ').chain(device.iter().copied()).collect();
    let report = ok(&args).json();
    let results = report["results"].as_array().expect("results");
    assert_eq!(results.len(), 2, "{report}");
    let [shallow, deep] = [0, 1].map(|at| step_of(&results[at], growing));
    assert_eq!(shallow.traffic, deep.traffic, "{args:?}: traffic");
    assert_eq!(shallow.others, deep.others, "{args:?}: other ops");
    for counter in [0, 1] {
        assert_eq!(
            shallow.device[counter] - shallow.growing[counter],
            deep.device[counter] - deep.growing[counter],
            "{args:?}: {report}"
        );
    }
    ([shallow, deep], report)
}

#[test]
fn depth_costs_a_decode_step_attention_and_nothing_else() {
    for (model, device, cache_type) in [
        ("llama:tiny:q4_k", "reference", "f16"),
        ("llama:tiny:q4_k", "wgpu", "f16"),
        ("llama:tiny:q4_k", "wgpu", "q5_1"),
        ("qwen35:tiny:q4_k", "wgpu", "q8_0"),
    ] {
        let flags = format!("--synthetic {model} -d 256,2048");
        let device = ["--device", device, "-ctk", cache_type, "-ctv", cache_type];
        let ([shallow, deep], report) = steps_at(&flags, &device, &["attention"]);
        let peak = report["peak_memory_bytes"].as_u64();
        assert!(peak >= report["memory_bytes"].as_u64(), "{report}");
        let weights = report["weight_bytes"].as_u64().expect("a size");
        let cached = report["cache_bytes"].as_u64().expect("a size");
        let scratch = report["scratch_bytes"].as_u64().expect("a size");
        assert!(peak >= Some(weights + cached + scratch), "{report}");
        // What is cached is read.
        assert!(
            deep.growing[1] > 4 * shallow.growing[1],
            "{device:?}: {shallow:?} {deep:?}"
        );
        // Every weight but the embedding is read once a step.
        assert!(deep.device[1] - deep.growing[1] > weights / 2, "{report}");
    }
}

#[test]
fn depth_costs_sparse_attention_the_scores_of_its_blocks() {
    let scores = ["index_score", "topk_blocks"];
    for (arch, flags, cache_type) in [
        ("qwen4exp", "-d 8192,262144", "f16"),
        // A draft under verification, with caches in blocks.
        ("qwen4exp", "-d 8192,32768 --verify 5", "q8_0"),
        ("qwen4exp", "-d 8192,32768 --parallel 5", "f16"),
        ("deepseek32", "-d 8192,131072", "f16"),
        ("deepseek32", "-d 8192,32768 --verify 5", "q8_0"),
    ] {
        let flags = format!("--synthetic {arch}:tiny-deep:q4_k {flags}");
        let device = ["--device", "wgpu", "-ctk", cache_type, "-ctv", cache_type];
        let ([shallow, deep], report) = steps_at(&flags, &device, &scores);
        assert_eq!(shallow.growing[0], deep.growing[0], "launches: {report}");
        assert!(2 * deep.growing[1] > 3 * shallow.growing[1], "{report}");
        for (op, runs) in [
            ("sparse_attention", true),
            ("index_pool", arch == "qwen4exp"),
            ("attention", false),
        ] {
            let found = deep.others.contains(&format!("\"op\":\"{op}\""));
            assert_eq!(found, runs, "{op}: {report}");
        }
    }
}

#[test]
fn sequences_and_drafts_are_measured_in_turn() {
    let args = "bench --synthetic qwen35:tiny:q8_0 -p 0 -n 2 -r 2 -d 64,300 -np 1,3 --verify 1,4 --interleave --explain \
                --device reference -o json";
    let args: Vec<&str> = args.split(' ').collect();
    let report = ok(&args).json();
    let results = report["results"].as_array().expect("results");
    let tests: Vec<_> = results
        .iter()
        .map(|r| r["test"].as_str().unwrap_or(""))
        .collect();
    let kinds = ["tg2", "tg2 v4", "tg2 x3", "tg2 x3 v4"];
    let expected = [64, 300].map(|depth| kinds.map(|kind| format!("{kind} @ d{depth}")));
    assert_eq!(tests, expected.concat());
    for result in results {
        assert_eq!(result["samples"].as_array().map(Vec::len), Some(2));
        assert_eq!(
            result["step"]["submits"], 1.0,
            "however many tokens: {result}"
        );
        let rows = result["parallel"].as_u64().zip(result["verify"].as_u64());
        let rows = rows.map_or(0, |(n_seqs, n_verify)| n_seqs * n_verify);
        let ops = result["step"]["ops"].as_array().expect("ops");
        let argmax = ops
            .iter()
            .find(|op| op["op"] == "argmax")
            .expect("a choice");
        // The logits of every row, 512 of them, are looked at.
        assert!(argmax["bytes"].as_u64() >= Some(rows * 512 * 4), "{result}");
    }
    // 302 tokens and, while they are verified, 3 more: for 3 sequences at each of two depths.
    let plain = "bench --synthetic qwen35:tiny:q8_0 -p 0 -n 2 -r 1 -d 300 -c 305 --device reference -o json";
    let plain = ok(&plain.split(' ').collect::<Vec<_>>()).json();
    let cached = |report: &serde_json::Value| report["cache_bytes"].as_u64().expect("a size");
    assert_eq!(cached(&report), 6 * cached(&plain), "six sequences of 305");
    refused(
        &"bench --synthetic qwen35:tiny:q8_0 -n 1 -p 0 -d 64 -np 3 -ub 2 --device reference"
            .split(' ')
            .collect::<Vec<_>>(),
        &["3 tokens", "micro-batch of 2"],
    );
}

#[test]
fn inspect_tells_what_a_sequence_costs() {
    let verdict = |spec: &str| {
        let report = ok(&["inspect", "--json", "--synthetic", spec]).json();
        let lines = report["verdict"].as_array().expect("lines");
        let lines = lines.iter().filter_map(|line| line.as_str());
        lines.collect::<Vec<_>>().join("\n")
    };
    let hybrid = verdict("qwen35:27b:q4_k");
    // 16 layers of 2 * 4 heads of 256 channels of f16; 48 states of 48 * 128 * 128, records of 2 * 16 tokens and rings
    // of 19 rows.
    let record = 16 * 128 + 48 * 128 + 48;
    let state = 48 * 4 * (48 * 128 * 128 + 2 * 16 * record + 19 * 10_240);
    let state = f64::from(state) / f64::from(1 << 20);
    for part in [
        "65536 bytes a token".to_owned(),
        format!("48 layers keep {state:.1} MiB"),
        format!("{:.1} MiB with 4096 tokens", 256.0 + state),
    ] {
        assert!(hybrid.contains(&part), "{part}: {hybrid}");
    }
    let windowed = verdict("gemma3:1b:q4_k");
    // 4 of 26 layers see everything: 2 * 256 channels of f16 each.
    assert!(
        windowed.contains("4 layers see everything, 22 a window of 512"),
        "{windowed}"
    );
    assert!(windowed.contains(" 4096 bytes a token"), "{windowed}");
    let sparse = verdict("qwen4exp:177b-a7b:q4_k");
    // 12 layers of 2 * 2 heads of 256 channels of f16, a raw key of 128 and a quarter of a pooled one.
    let by_token = 12 * 2 * (2 * 2 * 256 + 128 + 32);
    let record = 16 * 128 + 48 * 128 + 48;
    let delta = 36 * 4 * (48 * 128 * 128 + 2 * 16 * record + 19 * 10_240);
    // The convolution along n-grams reads 9 tokens of 4 streams.
    let state = f64::from(delta + 4 * 25 * 4 * 2560) / f64::from(1 << 20);
    for part in [
        "12 of 12 attention layers select at most 2048 tokens, 512 blocks of 4".to_owned(),
        "up to 2051 tokens".to_owned(),
        "keys of 128 channels in f16 or the type of K, whichever has more bits, one for each token, and one for each block of 4".to_owned(),
        format!(" {by_token} bytes a token"),
        format!("37 layers keep {state:.1} MiB"),
    ] {
        assert!(sparse.contains(&part), "{part}: {sparse}");
    }
    let latent = verdict("deepseek32:671b-a37b:q4_k");
    // A row of 512 + 64 channels of f16 that is key and value, and an indexer's key of 128.
    let by_token = 61 * 2 * (512 + 64 + 128);
    for part in [
        "61 of 61 attention layers select at most 2048 tokens; all of them up to 2048".to_owned(),
        format!(" {by_token} bytes a token"),
    ] {
        assert!(latent.contains(&part), "{part}: {latent}");
    }
    assert!(
        !windowed.contains("recurrent") && !windowed.contains("sparse"),
        "{windowed}"
    );
}

#[test]
fn a_window_can_be_measured_at_any_depth() {
    let args = "bench --synthetic gemma3:tiny:q8_0 -p 8 -n 2 -r 2 -d 1000 -ub 64 --device reference -o json";
    let args: Vec<&str> = args.split(' ').collect();
    let report = ok(&args).json();
    let results = report["results"].as_array().expect("results");
    let tests: Vec<_> = results.iter().map(|r| r["test"].as_str()).collect();
    assert_eq!(tests, [Some("pp8 @ d1000"), Some("tg2 @ d1000")]);
}

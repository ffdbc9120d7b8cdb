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

/// Bytes, launches and traffic of a decode step, and bytes and launches of its attention.
fn step_of(result: &serde_json::Value) -> ([u64; 5], [u64; 2], String) {
    let step = &result["step"];
    let counters = [
        "submits",
        "uploaded_bytes",
        "read_back_bytes",
        "launches",
        "device_bytes",
    ];
    let counters = counters.map(|key| step[key].as_f64().expect("a counter") as u64);
    let ops = step["ops"].as_array().expect("ops");
    let (attention, others): (Vec<_>, Vec<_>) = ops.iter().partition(|op| op["op"] == "attention");
    let sum = |key: &str| attention.iter().filter_map(|op| op[key].as_u64()).sum();
    let mut others: Vec<String> = others.iter().map(ToString::to_string).collect();
    others.sort();
    (counters, [sum("launches"), sum("bytes")], others.join("\n"))
}

#[test]
fn depth_costs_a_decode_step_attention_and_nothing_else() {
    for (device, cache_type) in [("reference", "f16"), ("wgpu", "f16"), ("wgpu", "q5_1")] {
        let args = "bench --synthetic llama:tiny:q4_k -p 0 -n 3 -r 1 -d 256,2048 --explain -o json";
        let caches = ["--device", device, "-ctk", cache_type, "-ctv", cache_type];
        let args: Vec<&str> = args.split(' ').chain(caches).collect();
        let report = ok(&args).json();
        let peak = report["peak_memory_bytes"].as_u64();
        assert!(peak >= report["memory_bytes"].as_u64(), "{report}");
        let weights = report["weight_bytes"].as_u64().expect("a size");
        let cached = report["cache_bytes"].as_u64().expect("a size");
        assert!(peak >= Some(weights + cached), "{report}");
        let results = report["results"].as_array().expect("results");
        assert_eq!(results.len(), 2, "{report}");
        let (shallow, deep) = (step_of(&results[0]), step_of(&results[1]));
        assert_eq!(shallow.0[..3], deep.0[..3], "{device}: traffic");
        assert_eq!(shallow.2, deep.2, "{device}: other ops");
        // Without attention, launches and bytes are equal; attention reads what is cached.
        for (counter, what) in [(3, 0), (4, 1)] {
            assert_eq!(
                shallow.0[counter] - shallow.1[what],
                deep.0[counter] - deep.1[what],
                "{device}: {report}"
            );
        }
        assert!(
            deep.1[1] > 4 * shallow.1[1],
            "{device}: {shallow:?} {deep:?}"
        );
        // Every weight but the embedding is read once a step.
        assert!(deep.0[4] - deep.1[1] > weights / 2, "{report}");
    }
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

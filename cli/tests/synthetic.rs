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

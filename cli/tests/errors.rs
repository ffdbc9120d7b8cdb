//! Every failure that a user meets names the thing and the remedy on standard error, ends with an exit code that is not
//! 0, and leaves standard output empty.

mod support;

use gemel_engine::gguf::{Metadata, Value, write};
use support::{Outcome, file, finish, gemel, tiny};

/// Fails unless the command fails with one message that contains all `parts`.
fn refuses_with(outcome: &Outcome, what: &str, parts: &[&str]) {
    assert!(
        outcome.code.is_some_and(|code| code == 1 || code == 2),
        "{what}: {outcome:?}"
    );
    assert!(outcome.stdout.is_empty(), "{what}: output {outcome:?}");
    let messages = outcome.stderr.matches("error: ").count();
    assert_eq!(messages, 1, "{what}: {outcome:?}");
    assert!(!outcome.stderr.contains("panicked"), "{what}: {outcome:?}");
    let (_, message) = outcome.stderr.split_once("error: ").expect("counted above");
    for part in parts {
        assert!(
            message.contains(part),
            "{what}: `{part}` is not in: {message}"
        );
    }
}

/// The tiny model on the reference refuses to run with these arguments.
fn refuses(extra: &[&str], parts: &[&str]) {
    let model = tiny("llama");
    let mut args = vec!["run", "-m", &model, "--device", "reference", "-n", "2"];
    args.extend(extra);
    refuses_with(&finish(&mut gemel(&args), ""), &extra.join(" "), parts);
}

/// All commands that open a file refuse it.
fn refuses_model(path: &str, parts: &[&str]) {
    for args in [
        &["run", "--device", "reference", "-p", "hi", "-m", path][..],
        &["chat", "--device", "reference", "-m", path],
        &["bench", "--device", "reference", "-m", path],
        &["inspect", path],
    ] {
        refuses_with(&finish(&mut gemel(args), ""), &args.join(" "), parts);
    }
}

#[test]
fn files_that_are_no_model() {
    let golden = std::fs::read(tiny("llama")).expect("the golden model is there");
    refuses_model(
        "no/such/file.gguf",
        &["no/such/file.gguf", "not found", "check the path"],
    );
    refuses_model(
        env!("CARGO_MANIFEST_DIR"),
        &["cli", "is a directory", ".gguf"],
    );
    let text = file(
        "a-text.gguf",
        b"once upon a time there was no model in here",
    );
    refuses_model(&text, &["a-text.gguf", "\"once\"", "not a GGUF file"]);
    let header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let tensors = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
    let tensors = file("a.safetensors", &tensors);
    refuses_model(
        &tensors,
        &["a.safetensors", "looks like a safetensors file", "convert"],
    );
    let empty = file("empty.gguf", b"");
    refuses_model(&empty, &["empty.gguf", "0 bytes", "download"]);
    for (name, n) in [
        ("cut-key.gguf", 40),
        ("cut-array.gguf", 3000),
        ("cut-data.gguf", 300_000),
    ] {
        let path = file(name, &golden[..n]);
        refuses_model(&path, &[name, "damaged or its download incomplete"]);
    }
    let mut swapped = golden[..64].to_vec();
    swapped[4..8].reverse();
    let swapped = file("swapped.gguf", &swapped);
    refuses_model(&swapped, &["swapped.gguf", "big-endian", "convert"]);
}

#[test]
#[cfg(unix)]
fn a_file_that_may_not_be_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let path = file("secret.gguf", b"GGUF");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).expect("own file");
    // Root reads everything; then the file is refused for what is in it.
    refuses_model(&path, &["secret.gguf"]);
}

#[test]
fn architectures_and_tokenizers_that_are_not_known() {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", Value::String("mamba9".to_owned()));
    let bytes = write::to_vec::<Vec<u8>>(&metadata, &[]).expect("a small file");
    let path = file("mamba9.gguf", &bytes);
    let outcome = finish(
        &mut gemel(["run", "--device", "reference", "-p", "hi", "-m", &path]),
        "",
    );
    refuses_with(
        &outcome,
        "architecture",
        &["mamba9.gguf", "`mamba9`", "known are", "llama", "qwen3"],
    );
    let bytes = write::to_vec::<Vec<u8>>(&Metadata::new(), &[]).expect("a small file");
    let path = file("nameless.gguf", &bytes);
    let outcome = finish(
        &mut gemel(["run", "--device", "reference", "-p", "hi", "-m", &path]),
        "",
    );
    refuses_with(
        &outcome,
        "no architecture",
        &["nameless.gguf", "general.architecture"],
    );

    let unknown = [
        "-p",
        "hi",
        "--override-kv",
        "tokenizer.ggml.pre=str:martian",
    ];
    refuses(
        &unknown,
        &[
            "`martian`",
            "--override-kv tokenizer.ggml.pre=str:",
            "llama-bpe",
        ],
    );
    let model = tiny("llama");
    let known = [
        "run",
        "--device",
        "reference",
        "-m",
        &model,
        "-p",
        "hi",
        "-n",
        "2",
        "--override-kv",
    ];
    support::ok(&[&known[..], &["tokenizer.ggml.pre=str:qwen2"]].concat());
}

#[test]
fn prompts_that_cannot_be_answered() {
    refuses(
        &["-p", "a b c d e f g h i j", "-c", "8"],
        &["19 tokens", "context of 8", "-c"],
    );
    refuses(&["-p", ""], &["prompt is empty", "-p", "-f"]);
    refuses(&[], &["prompt is empty"]);
    refuses(&["--raw", "-p", ""], &["no tokens", "text"]);
    let latin = file("latin1.txt", b"caf\xe9");
    refuses(&["-f", &latin], &["latin1.txt", "not UTF-8"]);
    refuses(&["-f", "no-such.txt"], &["no-such.txt", "No such file"]);
    refuses(
        &["-p", "hi", "--system", "be short"],
        &["--system", "--chat-template", "chatml"],
    );
    refuses(
        &["-p", "hi", "--chat-template", "nope"],
        &["\"nope\"", "chatml", "no file"],
    );
    let broken = file("broken.jinja", b"{% for %}");
    refuses(&["-p", "hi", "--chat-template", &broken], &["template"]);
    let model = tiny("llama");
    let outcome = finish(
        &mut gemel(["chat", "--device", "reference", "-m", &model]),
        "hello\n",
    );
    refuses_with(
        &outcome,
        "chat",
        &["chat template", "--chat-template", "chatml"],
    );
    let chat = [
        "chat",
        "--device",
        "reference",
        "-m",
        &model,
        "--chat-template",
        "chatml",
        "-c",
        "8",
    ];
    let outcome = finish(
        &mut gemel(chat),
        "a question that is longer than eight tokens\n",
    );
    refuses_with(&outcome, "a long question", &["context of 8", "-c"]);
}

#[test]
fn flags_out_of_range() {
    refuses(&["-p", "hi", "-f", "x"], &["--prompt", "--file"]);
    refuses(
        &["-p", "hi", "-ctk", "nonsense"],
        &["nonsense", "--cache-type-k", "q8_0"],
    );
    refuses(
        &["-p", "hi", "-ctv", "q4_k"],
        &["q4_k", "--cache-type-v", "q8_0"],
    );
    for flag in ["--ctx-size", "--batch-size", "--ubatch-size", "--threads"] {
        refuses(&["-p", "hi", flag, "0"], &[flag, "'0'", "at least 1"]);
    }
    refuses(
        &["-p", "hi", "-c", "99999999"],
        &["-c", "99999999", "16777216"],
    );
    refuses(
        &["-p", "hi", "--temp", "-1"],
        &["temperature is -1", "not negative"],
    );
    refuses(&["-p", "hi", "--temp", "inf"], &["temperature", "finite"]);
    refuses(
        &["-p", "hi", "--top-p", "2"],
        &["top_p is 2", "between 0 and 1"],
    );
    refuses(
        &["-p", "hi", "--samplers", "nope"],
        &["\"nope\"", "known are", "top_k"],
    );
    refuses(&["-p", "hi", "-s", "x"], &["'x'", "--seed", "whole number"]);
    refuses(
        &["-p", "hi", "--override-kv", "x"],
        &["--override-kv", "KEY=TYPE:VALUE"],
    );
    refuses(&["-p", "hi", "--nonsense"], &["--nonsense"]);

    let model = tiny("llama");
    let bench = ["bench", "--device", "reference", "-m", &model];
    let text = file("short.txt", b"a short text");
    let perplexity = ["perplexity", "--device", "reference", "-m", &model, "-f"];
    for (head, tail, parts) in [
        (
            &bench[..],
            &["-r", "0"][..],
            &["--repetitions", "at least 1"][..],
        ),
        (&bench, &["-p", "0", "-n", "0"], &["nothing to measure"]),
        (
            &bench,
            &["-p", "8", "-d", "100", "-n", "0", "-c", "50"],
            &["108 tokens", "-c"],
        ),
        (
            &bench,
            &["-p", "1", "-n", "1", "-o", "csv", "--explain"],
            &["--explain", "-o"],
        ),
        (
            &perplexity,
            &[&text, "-c", "64"],
            &["11 tokens", "needs 64", "-c"],
        ),
        (&perplexity, &[&text, "-c", "3"], &["at least 4", "-c", "3"]),
        (&perplexity, &["no-such.txt"], &["no-such.txt"]),
    ] {
        let args = [head, tail].concat();
        refuses_with(&finish(&mut gemel(&args), ""), &args.join(" "), parts);
    }
}

#[test]
fn devices_that_are_not_there_or_too_small() {
    let model = tiny("llama");
    let run = ["run", "-m", &model, "-p", "hi", "-n", "2"];
    let with = |extra: &[&str], parts: &[&str]| {
        let args = [&run[..], extra].concat();
        refuses_with(&finish(&mut gemel(&args), ""), &args.join(" "), parts);
    };
    with(
        &["--device", "nosuch"],
        &["`nosuch`", "there are", "wgpu:0"],
    );
    with(
        &["--device", "wgpu:99"],
        &["`wgpu:99`", "there are", "wgpu:0"],
    );
    with(&["--device", "cuda:4000"], &["`cuda:4000`"]);
    with(
        &["--memory", "1"],
        &["--memory allows 1 MiB", "needs 2 MiB", "1 MiB free", "-c"],
    );

    let hidden = |args: &[&str]| {
        let mut command = gemel(args);
        command
            .env("VK_DRIVER_FILES", "/dev/null")
            .env("VK_ICD_FILENAMES", "/dev/null")
            .env("WGPU_BACKEND", "vulkan");
        finish(&mut command, "")
    };
    // Only the loader of Linux is told in this way what there is.
    if cfg!(target_os = "linux") {
        refuses_with(
            &hidden(&run),
            "no adapter",
            &["no graphics adapter", "install", "libvulkan1"],
        );
        let outcome = hidden(&["devices"]);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(outcome.text().contains("reference"), "{outcome:?}");
        assert!(!outcome.text().contains("wgpu"), "{outcome:?}");
        assert!(outcome.stderr.contains("libvulkan1"), "{outcome:?}");
    }
}

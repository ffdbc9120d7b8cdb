//! What the commands print and do, on tiny golden models; the reference is quick enough for most.
//!
//! Texts of tiny models are noise, so these tests compare runs with one another; what the text says is tested on a
//! published model where one was fetched.

mod support;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use support::{file, finish, gemel, ok, published, tiny};

/// Text of `run --raw` on the tiny model.
fn raw(device: &str, extra: &[&str]) -> String {
    let model = tiny("llama");
    let head = ["run", "-m", &model, "--device", device, "--raw"];
    let outcome = ok(&[&head[..], extra].concat());
    let text = outcome.text().to_owned();
    text.strip_suffix('\n')
        .expect("a last line break")
        .to_owned()
}

/// The numbers before a word of the closing lines: tokens of each prefill or decode.
fn counts(stderr: &str, word: &str) -> Vec<usize> {
    let lines = stderr.lines().filter(|line| line.contains("tok/s"));
    lines
        .map(|line| {
            let (_, rest) = line.split_once(word).expect("a closing line");
            let number = rest.split_whitespace().next().expect("a number");
            number.parse().expect("a number")
        })
        .collect()
}

#[test]
fn greedy_text_is_the_same_every_time() {
    // An f32 cache, so that devices differ by less than the logits of different tokens do.
    let args = "-p the --temp 0 -n 24 -ctk f32 -ctv f32";
    let args: Vec<&str> = args.split(' ').collect();
    let text = raw("reference", &args);
    assert!(!text.is_empty());
    assert_eq!(text, raw("reference", &args), "reference twice");
    assert_eq!(
        text,
        raw("reference", &[&args[..], &["-t", "1"]].concat()),
        "one thread"
    );
    assert_eq!(
        text,
        raw("reference", &[&args[..], &["-ub", "2"]].concat()),
        "micro-batches of 2"
    );
    assert_eq!(text, raw("wgpu", &args), "wgpu and reference");
}

#[test]
fn a_seed_fixes_the_text() {
    let draw = |device, seed| {
        raw(
            device,
            &["-p", "the thing", "--temp", "1.5", "-n", "24", "-s", seed],
        )
    };
    for device in ["reference", "wgpu"] {
        let text = draw(device, "7");
        assert_eq!(text, draw(device, "7"), "{device}");
        assert_ne!(text, draw(device, "8"), "{device}");
    }
    assert_ne!(
        draw("reference", "-1"),
        draw("reference", "-1"),
        "random seeds"
    );
}

#[test]
fn prompts_come_from_flags_files_and_standard_input() {
    let model = tiny("llama");
    let head = [
        "run",
        "-m",
        &model,
        "--device",
        "reference",
        "--temp",
        "0",
        "-n",
        "16",
    ];
    let flag = ok(&[&head[..], &["-p", "an é"]].concat());
    let path = file("prompt.txt", "an é\n".as_bytes());
    let from_file = ok(&[&head[..], &["-f", &path]].concat());
    let piped = finish(&mut gemel(head), "an é\n");
    assert_eq!(piped.code, Some(0), "{piped:?}");
    assert_eq!(flag.stdout, from_file.stdout, "-f");
    assert_eq!(flag.stdout, piped.stdout, "standard input");
    // A prompt may look like a flag.
    let dash = ok(&[&head[..], &["-p", "-ub"]].concat());
    let path = file("dash.txt", b"-ub");
    assert_eq!(
        dash.stdout,
        ok(&[&head[..], &["-f", &path]].concat()).stdout,
        "-p -ub"
    );
}

#[test]
fn the_closing_line_counts_what_was_done() {
    let model = tiny("llama");
    let head = [
        "run",
        "-m",
        &model,
        "--device",
        "reference",
        "--temp",
        "0",
        "--ignore-eos",
    ];
    let outcome = ok(&[&head[..], &["-p", "abc", "-n", "9"]].concat());
    assert_eq!(counts(&outcome.stderr, "prefill "), [3], "{outcome:?}");
    assert_eq!(counts(&outcome.stderr, "decode "), [9], "{outcome:?}");
    let outcome = ok(&[&head[..], &["-p", "abc", "-n", "0"]].concat());
    assert_eq!(outcome.text(), "\n");
    let outcome = ok(&[&head[..], &["-p", "abc", "-c", "16"]].concat());
    assert!(
        outcome.stderr.contains("context of 16 tokens is full"),
        "{outcome:?}"
    );
    assert_eq!(
        counts(&outcome.stderr, "decode "),
        [13],
        "3 + 13 = 16: {outcome:?}"
    );
    let outcome = ok(&[&head[..], &["-p", "abc", "-n", "1", "-v", "-s", "5"]].concat());
    for part in [
        "device: ",
        "model: llama, 2 layers",
        "cache: 4096 tokens",
        "seed 5",
    ] {
        assert!(outcome.stderr.contains(part), "{part}: {outcome:?}");
    }
}

#[test]
fn a_stop_text_ends_the_answer_and_is_left_out() {
    let args = ["-p", "the thing", "--temp", "0", "-n", "40", "--ignore-eos"];
    let text = raw("reference", &args);
    let characters: Vec<char> = text.chars().collect();
    let stop: String = characters[10..13].iter().collect();
    let stopped = raw(
        "reference",
        &[&args[..], &["--stop", "never said", "--stop", &stop]].concat(),
    );
    let kept = text.split(&stop).next().expect("a first part");
    assert_eq!(stopped, kept, "stop at {stop:?}");
}

#[test]
fn characters_are_never_cut() {
    // Random weights draw random bytes: whatever they are, standard output is UTF-8 (checked by `raw`), and a shorter
    // run prints a prefix of a longer one up to the character that was not finished.
    for seed in ["1", "2", "3", "4"] {
        let draw = |n| {
            raw(
                "reference",
                &[
                    "-p", "é", "--temp", "2", "--top-k", "0", "--min-p", "0", "-s", seed, "-n", n,
                ],
            )
        };
        let (long, short) = (draw("120"), draw("60"));
        let short = short.trim_end_matches(char::REPLACEMENT_CHARACTER);
        assert!(long.starts_with(short), "{short:?} {long:?}");
        assert!(long.chars().any(|c| c.len_utf8() == 2), "{long:?}");
    }
}

#[test]
fn inspect_as_text_and_json() {
    for name in ["llama", "gemma3", "qwen2", "qwen3", "llama-Q4_K"] {
        let model = tiny(name);
        let report = ok(&["inspect", "--json", &model]).json();
        let tensors = report["tensors"].as_array().expect("tensors");
        assert!(
            tensors.iter().any(|t| t["name"] == "token_embd.weight"),
            "{name}"
        );
        assert!(
            tensors.iter().all(|t| t["bytes"].as_u64() > Some(0)),
            "{name}"
        );
        let verdict = report["verdict"].to_string();
        assert!(!verdict.contains("not usable"), "{name}: {verdict}");
        let bytes = std::fs::metadata(&model).expect("the file").len();
        assert_eq!(report["bytes"], bytes, "{name}");
        let outcome = ok(&["inspect", "--tensors", &model]);
        for tensor in tensors {
            let tensor_name = tensor["name"].as_str().expect("a name");
            assert!(
                outcome.text().contains(tensor_name),
                "{name}: {tensor_name}"
            );
        }
    }
    let model = tiny("llama");
    let outcome = ok(&[
        "inspect",
        "--override-kv",
        "tokenizer.ggml.pre=str:martian",
        &model,
    ]);
    assert!(
        outcome.text().contains("tokenizer: not usable"),
        "{outcome:?}"
    );
}

#[test]
fn devices_as_text_and_json() {
    let list = ok(&["devices", "--json"]).json();
    let list = list.as_array().expect("a list");
    let text = ok(&["devices"]);
    for device in list {
        let name = device["name"].as_str().expect("a name");
        assert!(text.text().contains(name), "{name}: {text:?}");
        assert!(device["memory_bytes"].as_u64() > Some(0), "{device}");
    }
    assert!(text.text().contains("reference"), "{text:?}");
    // A device or the reason why there is none.
    assert!(text.text().contains("cuda:"), "{text:?}");
}

/// Two emulated GPUs, which the program takes for real ones.
#[test]
fn devices_tell_how_copies_go() {
    let (Ok(driver), Ok(_)) = (gemel_cuda::emulated::build_driver(), gemel_cuda::compiler()) else {
        println!("left out: there is no g++ to build the emulation of CUDA, or no NVRTC");
        return;
    };
    let folder = driver.parent().expect("a folder");
    for (peer, route) in [("yes", "peer"), ("no", "staged"), ("garbage", "staged")] {
        let mut command = gemel(["devices", "--json"]);
        command
            .env("LD_LIBRARY_PATH", folder)
            .env("GEMEL_EMULATION_DEVICES", "2")
            .env("GEMEL_EMULATION_PEER", peer);
        let outcome = finish(&mut command, "");
        let list = outcome.json();
        let copies = |name: &str| {
            let device = list.as_array().into_iter().flatten();
            let mut device = device.filter(|device| device["name"] == name);
            device.next().map(|device| device["copies"].clone())
        };
        for (from, to) in [("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")] {
            let copies = copies(from).unwrap_or_else(|| panic!("{from}: {outcome:?}"));
            assert_eq!(copies[0]["to"], to, "{peer}: {copies}");
            assert_eq!(copies[0]["route"], route, "{peer}: {copies}");
            assert_eq!(copies[0]["why"].is_string(), route == "staged", "{copies}");
        }
    }
}

#[test]
fn bench_in_every_format() {
    let model = tiny("llama");
    let head = [
        "bench",
        "-m",
        &model,
        "--device",
        "reference",
        "-p",
        "8",
        "-n",
        "4",
        "-r",
        "2",
        "-d",
        "0,16",
    ];
    let report = ok(&[&head[..], &["-o", "json", "--explain"]].concat()).json();
    assert_eq!(report["prefill"]["tokens"], 8);
    assert_eq!(report["decode"]["tokens"], 4);
    assert!(report["decode"]["tokens_per_s"].as_f64() > Some(0.0));
    let results = report["results"].as_array().expect("results");
    let tests: Vec<_> = results
        .iter()
        .map(|r| r["test"].as_str().expect("a name"))
        .collect();
    assert_eq!(tests, ["pp8", "tg4", "pp8 @ d16", "tg4 @ d16"]);
    for result in results {
        // What scripts/compare.sh reads.
        assert_eq!(
            result["samples"].as_array().map(Vec::len),
            Some(2),
            "{result}"
        );
        let n = result["n_prompt"].as_u64().zip(result["n_gen"].as_u64());
        assert!(n == Some((8, 0)) || n == Some((0, 4)), "{result}");
        assert_eq!(result["step"].is_object(), n == Some((0, 4)), "{result}");
    }
    let table = ok(&[&head[..], &["-o", "csv"]].concat());
    let lines: Vec<_> = table
        .text()
        .lines()
        .map(|line| line.split(',').count())
        .collect();
    assert_eq!(lines, [11; 5], "{table:?}");
    let table = ok(&[&head[..], &["-o", "md"]].concat());
    let lines: Vec<_> = table
        .text()
        .lines()
        .map(|line| line.matches('|').count())
        .collect();
    assert_eq!(lines, [7; 6], "{table:?}");
}

#[test]
fn a_decode_step_costs_the_host_the_same_at_every_depth() {
    let model = tiny("llama");
    for device in ["reference", "wgpu"] {
        let outcome = ok(&[
            "bench",
            "-m",
            &model,
            "--device",
            device,
            "-p",
            "0",
            "-n",
            "4",
            "-r",
            "1",
            "-d",
            "100,3000",
            "--explain",
        ]);
        let rows: Vec<Vec<&str>> = outcome
            .text()
            .lines()
            .skip_while(|line| !line.contains("submits/step"))
            .take_while(|line| !line.is_empty())
            .filter(|line| line.contains("tg4"))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        assert_eq!(rows.len(), 2, "{outcome:?}");
        for row in &rows {
            assert_eq!(row[3], "1.00", "{device}: submissions of a step: {row:?}");
            let uploaded: usize = row[4].parse().expect("bytes");
            assert!((1..=8192).contains(&uploaded), "{device}: {row:?}");
        }
        assert_eq!(
            rows[0][4..6],
            rows[1][4..6],
            "{device}: bytes up and down by depth"
        );
    }
}

#[test]
fn perplexity_of_a_small_text() {
    let model = tiny("llama");
    let path = file(
        "perplexity.txt",
        "the thing in the other hand, and on. "
            .repeat(12)
            .as_bytes(),
    );
    let head = ["perplexity", "-m", &model, "-f", &path, "-c", "64"];
    let run = |extra: &[&str]| {
        let outcome = ok(&[&head[..], extra].concat());
        let lines: Vec<String> = outcome.text().lines().map(str::to_owned).collect();
        let last = lines.last().expect("a result").clone();
        let value: f64 = last
            .split_whitespace()
            .nth(1)
            .and_then(|v| v.parse().ok())
            .expect("a value");
        assert!(value.is_finite() && value > 1.0, "{last}");
        (lines.len() - 1, value, last)
    };
    let (chunks, value, last) = run(&["--device", "reference"]);
    assert!(
        chunks >= 3 && last.contains(&format!("{chunks} of {chunks} chunks of 64")),
        "{last}"
    );
    assert!(
        last.contains(&format!("{} tokens scored", chunks * 31)),
        "{last}"
    );
    let (_, on_wgpu, _) = run(&["--device", "wgpu"]);
    assert!(
        (on_wgpu / value - 1.0).abs() < 1e-3,
        "{on_wgpu} on wgpu, {value} on the reference"
    );
    let (one, ..) = run(&["--device", "reference", "--chunks", "1"]);
    assert_eq!(one, 1);
}

#[test]
fn a_conversation_and_its_commands() {
    for (name, template) in [("llama", "chatml"), ("gemma3", "gemma")] {
        let model = tiny(name);
        let args = [
            "chat",
            "-m",
            &model,
            "--device",
            "reference",
            "--chat-template",
            template,
            "-n",
            "10",
            "-s",
            "3",
            "-c",
            "512",
        ];
        let script = "/history\nHello there friend\n/history\nAnd then?\n/undo\n/history\n/nope\n/reset\n/history\n\
                      Hello\n/exit\nnot read\n";
        let outcome = finish(&mut gemel(args), script);
        assert_eq!(outcome.code, Some(0), "{name}: {outcome:?}");
        assert!(
            outcome.stderr.contains("unknown command /nope"),
            "{name}: {outcome:?}"
        );
        let text = outcome.text();
        let users = |what: &str| text.matches(&format!("[user] {what}")).count();
        assert_eq!(users("Hello there friend"), 2, "two listings: {text}");
        assert_eq!(users("And then?"), 0, "undone: {text}");
        assert_eq!(text.matches("[assistant]").count(), 2, "{text}");
        let prefills = counts(&outcome.stderr, "prefill ");
        let decodes = counts(&outcome.stderr, "decode ");
        assert_eq!(prefills.len(), 3, "three answers: {outcome:?}");
        // The second turn reads what is new: less than the question before it, though the conversation is longer.
        let whole = prefills[0] + decodes[0];
        assert!(prefills[1] < whole, "{name}: {prefills:?} of {whole}");
    }
}

#[test]
fn a_second_turn_reads_only_what_is_new() {
    let model = tiny("llama");
    let args = |n| {
        [
            "chat",
            "-m",
            &model,
            "--device",
            "reference",
            "--chat-template",
            "chatml",
            "-n",
            n,
            "-s",
            "1",
        ]
        .map(str::to_owned)
    };
    // The same two questions with a short and a long answer between: what is read for the second does not depend on it.
    let second = |n| {
        let outcome = finish(&mut gemel(args(n)), "a first question\nand a second\n");
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        counts(&outcome.stderr, "prefill ")[1]
    };
    assert_eq!(second("4"), second("40"));
}

#[test]
fn a_published_model_answers() {
    let Some(model) = published("smollm2-135m-instruct-q4_1.gguf") else {
        eprintln!("not tested: SmolLM2 is not there; scripts/fetch-models.sh smollm2 fetches it");
        return;
    };
    let outcome = ok(&[
        "run",
        "-m",
        &model,
        "-p",
        "What is the capital of France?",
        "--temp",
        "0",
        "-n",
        "32",
    ]);
    assert!(outcome.text().contains("Paris"), "{outcome:?}");
    let chat = ["chat", "-m", &model, "--temp", "0", "-n", "32"];
    let outcome = finish(
        &mut gemel(chat),
        "What is the capital of France?\nAnd of Italy?\n",
    );
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("Paris"), "{outcome:?}");
    assert!(outcome.text().contains("Rome"), "{outcome:?}");
    let prefills = counts(&outcome.stderr, "prefill ");
    assert!(
        prefills[1] < prefills[0],
        "the second turn reads what is new: {prefills:?}"
    );
}

#[test]
#[cfg(unix)]
fn ctrl_c_keeps_what_was_said() {
    let model = tiny("llama");
    let args = [
        "run",
        "-m",
        &model,
        "--device",
        "reference",
        "-p",
        "go",
        "--ignore-eos",
        "-c",
        "1000000",
        "-s",
        "1",
        "--samplers",
        "top_k",
    ];
    let mut child = gemel(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    // The handler is there once text comes.
    let mut text = vec![0; 64];
    stdout.read_exact(&mut text).expect("text");
    // `kill` is built into the shell, a program of that name is not everywhere.
    let kill = Command::new("sh")
        .args(["-c", &format!("kill -INT {}", child.id())])
        .status();
    assert!(kill.expect("kill runs").success());
    stdout.read_to_end(&mut text).expect("the rest of the text");
    let status = child.wait().expect("the program ends");
    assert_eq!(status.code(), Some(0));
    let lines: Vec<String> = BufReader::new(child.stderr.take().expect("a pipe"))
        .lines()
        .map(|line| line.expect("a line"))
        .collect();
    assert!(
        lines.iter().any(|line| line.contains("stopped by request")),
        "{lines:?}"
    );
    let n = counts(&lines.join("\n"), "decode ")[0];
    assert!(n > 10, "{lines:?}");
    assert_eq!(text.last(), Some(&b'\n'), "the text ends with a line break");
    assert!(
        std::str::from_utf8(&text).is_ok(),
        "and with a whole character"
    );
}

#[test]
#[cfg(unix)]
fn a_reader_that_goes_away_is_no_error() {
    let model = tiny("llama");
    for args in [
        &[
            "run",
            "-m",
            &model,
            "--device",
            "reference",
            "-p",
            "go",
            "--ignore-eos",
        ][..],
        &["inspect", "--full", "--tensors", &model],
        &[
            "bench",
            "-m",
            &model,
            "--device",
            "reference",
            "-p",
            "1",
            "-n",
            "1",
        ],
        &["devices"],
    ] {
        let mut child = gemel(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("the program ends");
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !stderr.contains("panicked") && !stderr.contains("error"),
            "{args:?}: {stderr}"
        );
    }
}

#[test]
fn help_of_every_command() {
    for command in ["run", "chat", "devices", "inspect", "bench", "perplexity"] {
        let outcome = ok(&[command, "--help"]);
        assert!(outcome.text().contains("Usage: gemel"), "{outcome:?}");
        assert!(outcome.stderr.is_empty(), "{outcome:?}");
    }
}

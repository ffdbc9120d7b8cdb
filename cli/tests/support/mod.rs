//! Running the program and looking at what it prints.
#![allow(dead_code, reason = "every test file uses its part")]

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a run of the program left behind.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Exit code; `None` after a signal.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Standard output as text, which it must be.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("standard output is UTF-8")
    }

    /// Standard output as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(self.text()).expect("standard output is JSON")
    }
}

/// The program with arguments.
pub(crate) fn gemel<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gemel"));
    command.args(args);
    command
}

/// Runs a command with `input` on standard input.
pub(crate) fn finish(command: &mut Command, input: &str) -> Outcome {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // The program may end without reading.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("the program ends");
    Outcome {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).expect("standard error is UTF-8"),
    }
}

/// Runs the program, which must succeed.
pub(crate) fn ok<S: AsRef<OsStr> + std::fmt::Debug>(args: &[S]) -> Outcome {
    let outcome = finish(&mut gemel(args), "");
    assert_eq!(outcome.code, Some(0), "{args:?}: {outcome:?}");
    outcome
}

/// A tiny golden model.
pub(crate) fn tiny(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/golden/tiny");
    let path = dir.join(format!("{name}.gguf"));
    path.to_str().expect("a UTF-8 path").to_owned()
}

/// A published model that `scripts/fetch-models.sh` fetched.
pub(crate) fn published(file: &str) -> Option<String> {
    let var = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home = || var("HOME").unwrap_or_default().join(".cache/gemel");
    let cache = var("GEMEL_CACHE").or_else(|| Some(var("XDG_CACHE_HOME")?.join("gemel")));
    let models = var("GEMEL_MODELS").unwrap_or_else(|| cache.unwrap_or_else(home).join("models"));
    let path = models.join(file);
    path.is_file().then(|| path.to_string_lossy().into_owned())
}

/// Writes a file into the folder that cargo gives tests; the name must be the test's own.
pub(crate) fn file(name: &str, bytes: &[u8]) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // An earlier run may have left it unreadable.
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, bytes).expect("the file is written");
    path.to_str().expect("a UTF-8 path").to_owned()
}

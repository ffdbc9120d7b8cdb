//! Invariants of the source tree.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use gemel_conformance::{cases, support};
use gemel_core::ops;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files of a folder and its sub-folders with one of these extensions.
fn files(folder: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|e| extensions.iter().any(|x| e == *x))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The text without line comments and without what follows the first test module.
fn code(text: &str) -> String {
    text.split("#[cfg(test)]")
        .next()
        .unwrap_or_default()
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

/// Files beside the ops that several of them share.
const SHARED: &[&str] = &["device", "elementwise", "matrix", "runs", "testing"];

#[test]
fn every_op_has_all_its_files() {
    for op in ops::NAMES {
        for path in [
            format!("core/src/ops/{op}.rs"),
            format!("core/src/reference/{op}.rs"),
            format!("shaders/{op}.wgsl"),
            format!("kernels/{op}.cu"),
            format!("conformance/src/cases/{op}.rs"),
        ] {
            let text = read(&root().join(&path));
            assert!(text.lines().count() > 5, "{path} is a stub");
        }
    }
    let tables: Vec<&str> = cases::TABLES.iter().map(|(op, _)| *op).collect();
    assert_eq!(tables, ops::NAMES, "tables in the order of the catalogue");
}

#[test]
fn every_file_belongs_to_an_op() {
    for (folder, extension) in [
        ("core/src/ops", "rs"),
        ("core/src/reference", "rs"),
        ("conformance/src/cases", "rs"),
        ("shaders", "wgsl"),
    ] {
        for path in files(folder, &[extension]) {
            if path.parent().is_some_and(|parent| parent.ends_with("lib")) {
                continue;
            }
            let stem = path.file_stem().unwrap().to_str().unwrap();
            let known = ops::NAMES.contains(&stem) || SHARED.contains(&stem);
            assert!(known, "{} belongs to no op", path.display());
        }
    }
}

#[test]
fn an_entry_point_is_named_after_its_op() {
    for op in ops::NAMES {
        let text = read(&root().join(format!("shaders/{op}.wgsl")));
        let mut n_entries = 0;
        let mut after_compute = false;
        for line in text.lines() {
            after_compute |= line.contains("@compute");
            if let (true, Some(at)) = (after_compute, line.find("fn ")) {
                let name = line[at + 3..].split('(').next().unwrap_or_default();
                assert!(
                    name == *op || name.starts_with(&format!("{op}_")),
                    "{op}: entry `{name}`"
                );
                after_compute = false;
                n_entries += 1;
            }
        }
        assert!(n_entries > 0, "{op} has no entry point");
    }
}

#[test]
fn backends_name_no_op() {
    // Words that are also plain English or parts of the interface of wgpu.
    let common: BTreeSet<&str> = ["add", "mul", "scale"].into();
    for path in files("backend-wgpu/src", &["rs"]) {
        let text = code(&read(&path));
        for op in ops::NAMES {
            let quoted = format!("\"{op}\"");
            let path_to = format!("ops::{op}");
            let found = text.contains(&quoted)
                || text.contains(&path_to)
                || (!common.contains(op) && has_word(&text, op));
            assert!(!found, "{} names {op}", path.display());
        }
    }
}

#[test]
fn core_and_engine_name_no_backend() {
    for folder in ["core", "engine"] {
        let manifest = read(&root().join(folder).join("Cargo.toml"));
        let own = manifest
            .split("[dev-dependencies]")
            .next()
            .unwrap_or_default();
        for crate_name in [
            "wgpu",
            "cudarc",
            "gemel-wgpu",
            "gemel-cuda",
            "gemel-conformance",
            "gemel-server",
        ] {
            assert!(
                !has_word(own, crate_name),
                "{folder} depends on {crate_name}"
            );
        }
        for path in files(&format!("{folder}/src"), &["rs"]) {
            let text = code(&read(&path));
            for word in ["gemel_wgpu", "gemel_cuda", "wgpu", "cudarc"] {
                assert!(!has_word(&text, word), "{} names {word}", path.display());
            }
        }
    }
}

#[test]
fn core_does_no_io_and_has_no_unsafe() {
    assert!(
        read(&root().join("core/src/lib.rs")).contains("#![forbid(unsafe_code)]"),
        "core forbids unsafe"
    );
    for path in files("core/src", &["rs"]) {
        let text = code(&read(&path));
        for word in [
            "std::fs",
            "std::net",
            "std::io",
            "std::process",
            "std::env",
            "println!",
            "eprintln!",
            "std::time",
        ] {
            assert!(!text.contains(word), "{} uses {word}", path.display());
        }
    }
}

#[test]
fn models_are_named_in_their_folder_only() {
    for folder in [
        "core/src",
        "backend-wgpu/src",
        "shaders",
        "conformance/src/cases",
    ] {
        for path in files(folder, &["rs", "wgsl"]) {
            // Doc comments may say who uses an op.
            let text = code(&read(&path)).to_lowercase();
            for model in ["gemma", "qwen", "llama", "mistral", "deepseek", "smollm"] {
                assert!(!has_word(&text, model), "{} names {model}", path.display());
            }
        }
    }
}

#[test]
fn the_support_table_is_up_to_date() {
    let path = root().join("docs/ops.md");
    let table = support::table();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &table).unwrap();
    }
    assert!(
        read(&path) == table,
        "docs/ops.md is stale: run `UPDATE=1 cargo test -p gemel-conformance --test tree`"
    );
}

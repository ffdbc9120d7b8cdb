//! Embeds every file of `kernels/` whole, so that adding a kernel needs no registration.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../kernels");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, "", &mut files)?;
    files.sort();
    let mut text = String::from("pub(crate) static EMBEDDED: &[(&str, &str)] = &[\n");
    for (name, path) in &files {
        println!("cargo::rerun-if-changed={}", path.display());
        let path = fs::canonicalize(path)?;
        writeln!(
            text,
            "    ({name:?}, include_str!({:?})),",
            path.display().to_string()
        )
        .map_err(io::Error::other)?;
    }
    text.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    // Aside and renamed: a build folder may be a copy by hard links, whose other owners must keep their file.
    let aside = out.join("embedded.new");
    fs::write(&aside, text)?;
    fs::rename(&aside, out.join("embedded.rs"))
}

/// Names of source files relative to the folder, e.g. `lib/reduce.cuh`.
fn collect(folder: &Path, prefix: &str, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        // A tree without kernels builds a backend that says which kernel is missing.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let name = format!("{prefix}{name}");
        if path.is_dir() {
            collect(&path, &format!("{name}/"), files)?;
        } else if path
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| matches!(extension, "cu" | "cuh" | "cpp" | "hpp" | "h"))
        {
            files.push((name, path));
        }
    }
    Ok(())
}

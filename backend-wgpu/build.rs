//! Embeds every file of `shaders/` whole, so that adding a shader needs no registration.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../shaders");
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

/// Names of shader files without extension, relative to the folder, e.g. `lib/grid`.
fn collect(folder: &Path, prefix: &str, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else {
            continue;
        };
        let name = format!("{prefix}{stem}");
        if path.is_dir() {
            collect(&path, &format!("{name}/"), files)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "wgsl")
        {
            files.push((name, path));
        }
    }
    Ok(())
}

//! From a launch to CUDA text: prelude, pieces chosen by type, the op's file; and the headers that these include.
//!
//! The rules are in `kernels/README.md`. `#line` directives keep the compiler's messages true to file and line.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use gemel_core::op::{Const, Launch, Param};

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// What a specialised library piece calls itself before it gets its prefix.
const SELF: &str = "SELF_";

/// What every piece may use without including it.
const SEAM: &str = "lib/device.cuh";

/// A source text that cannot be put together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// No file has the op's name.
    #[error(
        "`kernels/{name}.cu` does not exist yet; run this model on another device (--device wgpu)"
    )]
    UnknownOp {
        /// The op.
        name: String,
    },
    /// An import that names no library file.
    #[error(
        "the specialisation of {from} imports `{name}`, but there is no `kernels/lib/{name}.cuh`"
    )]
    UnknownImport {
        /// The wanted file.
        name: String,
        /// Who wants it.
        from: String,
    },
    /// One prefix for two pieces.
    #[error("the specialisation imports both `{first}` and `{second}` as `{prefix}`")]
    PrefixTwice {
        /// The prefix.
        prefix: String,
        /// The piece that has it.
        first: String,
        /// The piece that wants it too.
        second: String,
    },
    /// A piece that is chosen by type in a place where no type is known.
    #[error(
        "{file}:{line}: `SELF_` stands for a prefix that only imports of a specialisation give"
    )]
    NoPrefix {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
    },
}

/// A complete text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The translation unit.
    pub text: String,
    /// The library files that it includes, directly or not, by the names that it includes them by.
    pub headers: BTreeMap<String, String>,
}

/// The kernel files: the embedded ones, and replacements for experiments and tests.
#[derive(Clone, Debug)]
pub struct Library {
    files: BTreeMap<Cow<'static, str>, Cow<'static, str>>,
}

impl Library {
    /// The files of `kernels/`.
    pub fn embedded() -> Self {
        Self {
            files: EMBEDDED
                .iter()
                .map(|(name, text)| (Cow::Borrowed(*name), Cow::Borrowed(*text)))
                .collect(),
        }
    }

    /// No files.
    pub fn empty() -> Self {
        Self {
            files: BTreeMap::new(),
        }
    }

    /// Adds or replaces a file: `NAME.cu` or `lib/NAME.cuh`.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.files
            .insert(Cow::Owned(name.into()), Cow::Owned(text.into()));
        self
    }

    /// Names and texts of all files, e.g. `lib/reduce.cuh`.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(name, text)| (name.as_ref(), text.as_ref()))
    }

    /// Puts the text of a launch together.
    ///
    /// # Errors
    /// Files that do not exist, one prefix for two pieces, a piece without prefix.
    pub fn assemble(&self, op: &str, launch: &Launch) -> Result<Source, SourceError> {
        let main = self
            .get(&format!("{op}.cu"))
            .ok_or_else(|| SourceError::UnknownOp {
                name: op.to_owned(),
            })?;
        let mut text = prelude(launch);
        let mut headers = BTreeMap::new();
        let mut prefixes: BTreeMap<&str, &str> = BTreeMap::new();
        for (prefix, file) in &launch.spec.imports {
            if let Some(first) = prefixes.insert(prefix, file) {
                if first == file {
                    continue;
                }
                return Err(SourceError::PrefixTwice {
                    prefix: (*prefix).to_owned(),
                    first: first.to_owned(),
                    second: file.clone(),
                });
            }
            let name = format!("lib/{file}.cuh");
            let piece = self.get(&name).ok_or_else(|| SourceError::UnknownImport {
                name: file.clone(),
                from: op.to_owned(),
            })?;
            if prefixes.len() == 1 && self.get(SEAM).is_some() {
                let _ = writeln!(text, "#include \"{SEAM}\"");
                self.headers(SEAM, &mut headers)?;
            }
            self.includes_of(piece, &mut headers)?;
            let _ = writeln!(text, "#line 1 \"kernels/{name}\"");
            for line in piece.lines() {
                // A piece may be there twice, under two prefixes.
                if line.trim() != "#pragma once" {
                    text.push_str(&line.replace(SELF, &format!("{prefix}_")));
                }
                text.push('\n');
            }
        }
        check_prefix(&format!("{op}.cu"), main)?;
        self.includes_of(main, &mut headers)?;
        let _ = writeln!(text, "#line 1 \"kernels/{op}.cu\"");
        text.push_str(main);
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(Source { text, headers })
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.files.get(name).map(AsRef::as_ref)
    }

    /// Adds the headers that a text includes. What is not ours is the compiler's to find or to miss.
    fn includes_of(
        &self,
        text: &str,
        headers: &mut BTreeMap<String, String>,
    ) -> Result<(), SourceError> {
        text.lines()
            .filter_map(included)
            .try_for_each(|name| self.headers(name, headers))
    }

    /// Adds a header and those that it includes.
    fn headers(
        &self,
        name: &str,
        headers: &mut BTreeMap<String, String>,
    ) -> Result<(), SourceError> {
        let Some(text) = self.get(name) else {
            return Ok(());
        };
        if headers.insert(name.to_owned(), text.to_owned()).is_some() {
            return Ok(());
        }
        check_prefix(name, text)?;
        self.includes_of(text, headers)
    }
}

/// The embedded source of a launch, e.g. to compile every specialisation without a device.
///
/// # Errors
/// As [`Library::assemble`].
pub fn assemble(op: &str, launch: &Launch) -> Result<Source, SourceError> {
    Library::embedded().assemble(op, launch)
}

/// The file that a line includes by `#include "..."`.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start();
    let rest = rest.strip_prefix("include")?.trim_start();
    rest.strip_prefix('"')?.split('"').next()
}

fn check_prefix(name: &str, text: &str) -> Result<(), SourceError> {
    let at = text.lines().position(|line| {
        let code = line.split("//").next().unwrap_or_default();
        code.contains(SELF)
    });
    match at {
        Some(index) => Err(SourceError::NoPrefix {
            file: format!("kernels/{name}"),
            line: index + 1,
        }),
        None => Ok(()),
    }
}

/// Constants of the specialisation and the parameter block.
fn prelude(launch: &Launch) -> String {
    let mut text = String::from("#line 1 \"prelude\"\n");
    for (name, value) in &launch.spec.consts {
        // Writing to a string cannot fail.
        let _ = match value {
            Const::U32(value) => writeln!(text, "constexpr unsigned {name} = {value}u;"),
            Const::Bool(value) => writeln!(text, "constexpr bool {name} = {value};"),
        };
    }
    text.push_str("struct Params {\n");
    for (name, value) in launch.params.fields() {
        let type_name = match value {
            Param::U32(_) => "unsigned",
            Param::I32(_) => "int",
            Param::F32(_) => "float",
        };
        let _ = writeln!(text, "    {type_name} {name};");
    }
    text.push_str("};\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemel_core::op::{Params, Spec};

    fn launch(spec: Spec) -> Launch {
        Launch {
            entry: "twice",
            spec,
            params: Params::new().u32("n", 7).f32("eps", 0.5).i32("shift", -1),
            grid: [1, 1, 1],
            bindings: Vec::new(),
        }
    }

    fn library() -> Library {
        Library::empty()
            .with("lib/device.cuh", "#pragma once\n")
            .with("lib/a.cuh", "#pragma once\n#include \"lib/b.cuh\"\n")
            .with("lib/b.cuh", "#pragma once\n  # include \"lib/a.cuh\"\n")
            .with("lib/unused.cuh", "int unused;\n")
            .with(
                "lib/typed.cuh",
                "#pragma once\n#include \"lib/b.cuh\"\nfloat SELF_load(const float* data);\n",
            )
            .with(
                "twice.cu",
                "// header, of SELF_ too\n#include <math.h>\n#include \"lib/a.cuh\"\nKERNEL twice() {}",
            )
            .with("bare.cu", "#include \"lib/typed.cuh\"\n")
    }

    #[test]
    fn prelude_spells_out_constants_and_parameters() {
        let spec = Spec::threads(64).with("TILE", 4).flag("BIAS", true);
        let source = library().assemble("twice", &launch(spec)).unwrap();
        assert!(
            source.text.starts_with(
                "#line 1 \"prelude\"\nconstexpr unsigned THREADS = 64u;\nconstexpr unsigned TILE = 4u;\n\
                 constexpr bool BIAS = true;\n\
                 struct Params {\n    unsigned n;\n    float eps;\n    int shift;\n};\n\
                 #line 1 \"kernels/twice.cu\"\n// header"
            ),
            "in order: {}",
            source.text
        );
        assert!(source.text.ends_with("{}\n"), "ends its last line");
    }

    #[test]
    fn headers_are_those_that_are_reached() {
        let source = library()
            .assemble("twice", &launch(Spec::threads(1)))
            .unwrap();
        let names: Vec<&str> = source.headers.keys().map(String::as_str).collect();
        assert_eq!(names, ["lib/a.cuh", "lib/b.cuh"], "through each other");
    }

    #[test]
    fn typed_pieces_get_their_prefix() {
        let spec = Spec::threads(1).import("w", "typed").import("x", "typed");
        let source = library().assemble("twice", &launch(spec)).unwrap();
        for part in [
            "float w_load(const float* data);",
            "float x_load(const float* data);",
            "#line 1 \"kernels/lib/typed.cuh\"",
        ] {
            assert!(source.text.contains(part), "{part}: {}", source.text);
        }
        assert!(!source.text.contains("#pragma"), "in the main file");
        let place = |what: &str| source.text.find(what).unwrap();
        assert!(
            place("lib/device.cuh") < place("w_load") && place("x_load") < place("twice()"),
            "the seam first, the op last"
        );
        assert!(source.headers.contains_key("lib/b.cuh"), "of the piece");
        assert!(source.headers.contains_key(SEAM), "the seam");
    }

    #[test]
    fn wrong_sources_are_refused() {
        let assemble = |op: &str, spec: Spec| {
            library()
                .assemble(op, &launch(spec))
                .unwrap_err()
                .to_string()
        };
        let plain = || Spec::threads(1);
        assert!(
            assemble("nothing", plain()).starts_with("`kernels/nothing.cu` does not exist yet"),
            "op"
        );
        assert!(
            assemble("bare", plain()).contains("kernels/lib/typed.cuh:3"),
            "no prefix"
        );
        let unknown = plain().import("w", "no_such");
        assert!(
            assemble("twice", unknown).contains("no_such"),
            "typed import"
        );
        let both = plain().import("w", "typed").import("w", "a");
        assert!(assemble("twice", both).contains("`w`"), "prefix twice");
    }

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels");
        let library = Library::embedded();
        for (folder, prefix) in [(root.to_owned(), ""), (format!("{root}/lib"), "lib/")] {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|e| e == "cu" || e == "cuh") {
                    let name = format!("{prefix}{}", path.file_name().unwrap().display());
                    assert!(library.get(&name).is_some(), "{name}");
                }
            }
        }
    }
}

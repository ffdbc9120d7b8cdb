//! From a launch to CUDA text: prelude, pieces chosen by type, the op's file; and the headers that these include.
//!
//! The rules are in `kernels/README.md`. `#line` directives keep the compiler's messages true to file and line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gemel_core::op::{Const, Launch, Param};
use gemel_core::source::{Library, Naming, SourceError};

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Names are those on disk: `rms_norm.cu`, `lib/reduce.cuh`.
const NAMING: Naming = Naming {
    folder: "kernels",
    op_suffix: ".cu",
    piece_suffix: ".cuh",
    hidden_suffix: "",
};

/// What every piece may use without including it.
const SEAM: &str = "lib/device.cuh";

/// The files of `kernels/`.
pub fn embedded() -> Library {
    Library::new(NAMING, EMBEDDED)
}

/// A complete text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The translation unit.
    pub text: String,
    /// The library files that it includes, directly or not, by the names that it includes them by.
    pub headers: BTreeMap<String, String>,
}

/// Puts the text of a launch together.
///
/// # Errors
/// Files that do not exist, one prefix for two pieces, a piece without prefix.
pub fn join(library: &Library, op: &str, launch: &Launch) -> Result<Source, SourceError> {
    let (name, main) = library.op(op)?;
    let pieces = library.pieces(op, launch)?;
    let mut text = prelude(launch);
    let mut headers = Headers {
        library,
        found: BTreeMap::new(),
    };
    if !pieces.is_empty() && library.get(SEAM).is_some() {
        let _ = writeln!(text, "#include \"{SEAM}\"");
        headers.add(SEAM)?;
    }
    for piece in pieces {
        headers.add_included(piece.text)?;
        let _ = writeln!(text, "#line 1 \"{}\"", NAMING.path(&piece.name));
        for line in piece.text.lines() {
            // A piece may be there twice, under two prefixes.
            if line.trim() != "#pragma once" {
                text.push_str(&piece.line(line));
            }
            text.push('\n');
        }
    }
    library.check_prefix(&name, main)?;
    headers.add_included(main)?;
    let _ = writeln!(text, "#line 1 \"{}\"", NAMING.path(&name));
    text.push_str(main);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(Source {
        text,
        headers: headers.found,
    })
}

/// The headers that a text includes, directly or not.
struct Headers<'a> {
    library: &'a Library,
    found: BTreeMap<String, String>,
}

impl Headers<'_> {
    /// Adds what a text includes. What is not ours is the compiler's to find or to miss.
    fn add_included(&mut self, text: &str) -> Result<(), SourceError> {
        text.lines()
            .filter_map(included)
            .try_for_each(|name| self.add(name))
    }

    /// Adds a header and those that it includes.
    fn add(&mut self, name: &str) -> Result<(), SourceError> {
        let Some(text) = self.library.get(name) else {
            return Ok(());
        };
        if self
            .found
            .insert(name.to_owned(), text.to_owned())
            .is_some()
        {
            return Ok(());
        }
        self.library.check_prefix(name, text)?;
        self.add_included(text)
    }
}

/// The embedded source of a launch, e.g. to compile every specialisation without a device.
///
/// # Errors
/// Files that do not exist, one prefix for two pieces, a piece without prefix.
pub fn assemble(op: &str, launch: &Launch) -> Result<Source, SourceError> {
    join(&embedded(), op, launch)
}

/// The file that a line includes by `#include "..."`.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start();
    let rest = rest.strip_prefix("include")?.trim_start();
    rest.strip_prefix('"')?.split('"').next()
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
        Library::new(NAMING, &[])
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
        let source = join(&library(), "twice", &launch(spec)).unwrap();
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
        let source = join(&library(), "twice", &launch(Spec::threads(1))).unwrap();
        let names: Vec<&str> = source.headers.keys().map(String::as_str).collect();
        assert_eq!(names, ["lib/a.cuh", "lib/b.cuh"], "through each other");
    }

    #[test]
    fn typed_pieces_get_their_prefix() {
        let spec = Spec::threads(1).import("w", "typed").import("x", "typed");
        let source = join(&library(), "twice", &launch(spec)).unwrap();
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
        let assemble =
            |op: &str, spec: Spec| join(&library(), op, &launch(spec)).unwrap_err().to_string();
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
        let library = embedded();
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

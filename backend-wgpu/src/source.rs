//! From a launch to WGSL text: prelude, library pieces, the op's file.
//!
//! The rules are in `shaders/README.md`. Lines of the files are kept, so that a message of the compiler can be
//! traced back to file and line.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use gemel_core::op::{Const, Launch};
use gemel_core::source::{Library, Naming, Piece, SourceError};

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Names have no extension: `rms_norm`, `lib/grid`.
const NAMING: Naming = Naming {
    folder: "shaders",
    op_suffix: "",
    piece_suffix: "",
    hidden_suffix: ".wgsl",
};

/// The files of `shaders/`.
pub fn embedded() -> Library {
    Library::new(NAMING, EMBEDDED)
}

/// A text and where its lines come from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The complete WGSL text.
    pub text: String,
    /// First line (from 1) and file name of each part, in order.
    parts: Vec<(usize, String)>,
}

impl Source {
    /// File and line of a line of the text, both counted from 1.
    pub fn locate(&self, line: usize) -> String {
        match self.parts.iter().rev().find(|(first, _)| *first <= line) {
            Some((first, file)) => format!("{file}:{}", line - first + 1),
            None => format!("line {line}"),
        }
    }

    /// The words of a line of the text.
    pub fn line(&self, line: usize) -> &str {
        self.text
            .lines()
            .nth(line.saturating_sub(1))
            .unwrap_or_default()
            .trim()
    }
}

/// Puts the text of a launch together.
///
/// # Errors
/// Files that do not exist, misplaced imports.
pub(crate) fn join(library: &Library, op: &str, launch: &Launch) -> Result<Source, SourceError> {
    let (name, main) = library.op(op)?;
    let mut assembly = Assembly {
        library,
        source: Source {
            text: String::new(),
            parts: Vec::new(),
        },
        imported: BTreeSet::new(),
    };
    for piece in library.pieces(op, launch)? {
        assembly.add(&piece.name, piece.text, Some(&piece))?;
    }
    assembly.add(&name, main, None)?;

    let Source { text, parts } = assembly.source;
    let prelude = prelude(launch, has_word(&text, "f16"));
    let n_lines = prelude.lines().count();
    let mut all = vec![(1, "prelude".to_owned())];
    all.extend(
        parts
            .into_iter()
            .map(|(line, file)| (line + n_lines, NAMING.path(&file))),
    );
    Ok(Source {
        text: prelude + &text,
        parts: all,
    })
}

/// The embedded text of a launch, e.g. to validate every specialisation without a device.
///
/// # Errors
/// Files that do not exist, misplaced imports.
pub fn assemble(op: &str, launch: &Launch) -> Result<String, SourceError> {
    Ok(join(&embedded(), op, launch)?.text)
}

struct Assembly<'a> {
    library: &'a Library,
    source: Source,
    imported: BTreeSet<String>,
}

impl Assembly<'_> {
    /// Adds a file after the pieces it imports; `chosen` if it is one chosen by type.
    fn add(
        &mut self,
        name: &str,
        text: &str,
        chosen: Option<&Piece<'_>>,
    ) -> Result<(), SourceError> {
        if chosen.is_none() {
            self.library.check_prefix(name, text)?;
        }
        let mut body = String::with_capacity(text.len());
        let mut top = true;
        for (index, line) in text.lines().enumerate() {
            if let Some(import) = line.strip_prefix("#import") {
                if !top {
                    return Err(SourceError::LateImport {
                        file: NAMING.path(name),
                        line: index + 1,
                    });
                }
                let import = import.split("//").next().unwrap_or_default().trim();
                if self.imported.insert(import.to_owned()) {
                    let library = self.library;
                    let (name, text) = library.piece(import, || NAMING.path(name))?;
                    self.add(&name, text, None)?;
                }
                // The line stays, so that lines keep their numbers.
                body.push_str("//");
                body.push_str(line);
            } else {
                top &= line.trim().is_empty() || line.starts_with("//");
                match chosen {
                    Some(piece) => body.push_str(&piece.line(line)),
                    None => body.push_str(line),
                }
            }
            body.push('\n');
        }
        let first = self.source.text.lines().count() + 1;
        self.source.parts.push((first, name.to_owned()));
        self.source.text.push_str(&body);
        Ok(())
    }
}

/// Constants of the specialisation and the parameter block.
fn prelude(launch: &Launch, f16: bool) -> String {
    let mut text = String::new();
    if f16 {
        text.push_str("enable f16;\n");
    }
    for (name, value) in &launch.spec.consts {
        // Writing to a string cannot fail.
        let _ = match value {
            Const::U32(value) => writeln!(text, "const {name} = {value}u;"),
            Const::Bool(value) => writeln!(text, "const {name} = {value};"),
        };
    }
    text.push_str("struct Params {\n");
    for (name, value) in launch.params.fields() {
        let _ = writeln!(text, "    {name}: {},", value.type_name());
    }
    if launch.params.fields().is_empty() {
        // WGSL has no empty structs.
        text.push_str("    nothing: u32,\n");
    }
    text.push_str("}\n");
    text
}

/// Whether the code (not the comments) has this identifier.
fn has_word(text: &str, word: &str) -> bool {
    text.lines().any(|line| {
        line.split("//")
            .next()
            .unwrap_or_default()
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|found| found == word)
    })
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
            .with("lib/a", "// a\n#import b\nfn a() {}\n")
            .with("lib/b", "// b\nfn b() {}\n")
            .with(
                "lib/typed",
                "#import b\nfn SELF_load() -> f32 { return SELF_data[0]; }\n",
            )
            .with(
                "twice",
                "// header\n#import a\n#import b // shared\n\nfn twice() {}\n",
            )
            .with("late", "fn late() {}\n#import a\n")
            .with("missing", "#import c\n")
            .with("bare", "#import typed\n")
            .with("half", "// f16 here is a comment\nvar<private> x: f16;\n")
    }

    #[test]
    fn prelude_spells_out_constants_and_parameters() {
        let spec = Spec::threads(64).with("TILE", 4).flag("BIAS", true);
        let source = join(&library(), "twice", &launch(spec)).unwrap();
        assert!(
            source.text.starts_with(
                "const THREADS = 64u;\nconst TILE = 4u;\nconst BIAS = true;\n\
                 struct Params {\n    n: u32,\n    eps: f32,\n    shift: i32,\n}\n"
            ),
            "in order: {}",
            source.text
        );
    }

    #[test]
    fn empty_parameter_blocks_are_legal_structs() {
        let launch = Launch {
            params: Params::new(),
            ..launch(Spec::threads(1))
        };
        let source = join(&library(), "twice", &launch).unwrap();
        naga::front::wgsl::parse_str(&source.text).expect("parses");
    }

    #[test]
    fn imports_come_once_and_before_their_users() {
        let source = join(&library(), "twice", &launch(Spec::threads(1))).unwrap();
        assert_eq!(source.text.matches("fn b()").count(), 1, "imported twice");
        let place = |what: &str| source.text.find(what).unwrap();
        assert!(place("fn b()") < place("fn a()"), "b serves a");
        assert!(place("fn a()") < place("fn twice()"), "a serves twice");
    }

    #[test]
    fn typed_pieces_get_their_prefix() {
        let spec = Spec::threads(1).import("w", "typed").import("x", "typed");
        let source = join(&library(), "twice", &launch(spec)).unwrap();
        assert!(
            source
                .text
                .contains("fn w_load() -> f32 { return w_data[0]; }"),
            "w"
        );
        assert!(
            source
                .text
                .contains("fn x_load() -> f32 { return x_data[0]; }"),
            "x"
        );
        assert!(!source.text.contains("SELF_"), "none left");
    }

    #[test]
    fn lines_are_traced_to_files() {
        let spec = Spec::threads(1).import("w", "typed");
        let source = join(&library(), "twice", &launch(spec)).unwrap();
        let line_of = |what: &str| {
            1 + source
                .text
                .lines()
                .position(|line| line.contains(what))
                .unwrap()
        };
        for (what, place) in [
            ("THREADS", "prelude:1"),
            ("fn w_load", "shaders/lib/typed.wgsl:2"),
            ("fn b()", "shaders/lib/b.wgsl:2"),
            ("fn a()", "shaders/lib/a.wgsl:3"),
            ("fn twice", "shaders/twice.wgsl:5"),
        ] {
            assert_eq!(source.locate(line_of(what)), place, "{what}");
        }
    }

    #[test]
    fn wrong_sources_are_refused() {
        let assemble =
            |op: &str, spec: Spec| join(&library(), op, &launch(spec)).unwrap_err().to_string();
        let plain = || Spec::threads(1);
        assert!(
            assemble("nothing", plain()).contains("shaders/nothing.wgsl"),
            "op"
        );
        assert!(
            assemble("missing", plain()).contains("lib/c.wgsl"),
            "import"
        );
        assert!(
            assemble("late", plain()).contains("late.wgsl:2"),
            "late import"
        );
        assert!(
            assemble("bare", plain()).contains("lib/typed.wgsl:2"),
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
    fn f16_is_enabled_where_code_uses_it() {
        let text = |op: &str| {
            join(&library(), op, &launch(Spec::threads(1)))
                .unwrap()
                .text
        };
        assert!(text("half").starts_with("enable f16;"), "type used");
        assert!(!text("twice").contains("enable"), "not used");
    }

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../shaders");
        let mut n_files = 0;
        for (folder, prefix) in [(folder.to_owned(), ""), (format!("{folder}/lib"), "lib/")] {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path
                    .extension()
                    .is_some_and(|extension| extension == "wgsl")
                {
                    let name = format!("{prefix}{}", path.file_stem().unwrap().display());
                    assert!(
                        EMBEDDED.iter().any(|(known, _)| *known == name),
                        "{name} is not embedded"
                    );
                    n_files += 1;
                }
            }
        }
        assert_eq!(n_files, EMBEDDED.len(), "stale entries");
    }
}

//! Source files of kernels, in whatever language: found by name, chosen by type, joined by a backend.
//!
//! An op has one file; what several share lies in `lib/`. A specialisation chooses library pieces by type: such a
//! piece calls itself `SELF_` and gets the prefix that the specialisation gives it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::op::Launch;

/// What a specialised library piece calls itself before it gets its prefix.
const SELF: &str = "SELF_";

/// A source text that cannot be put together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// No file has the op's name.
    #[error("`{file}` does not exist yet; run this model on another device (--device)")]
    UnknownOp {
        /// The file.
        file: String,
    },
    /// An import that names no library file.
    #[error("{from} imports `{name}`, but there is no `{file}`")]
    UnknownImport {
        /// The wanted piece.
        name: String,
        /// The file that it would be.
        file: String,
        /// Who wants it.
        from: String,
    },
    /// An import after the top of a file.
    #[error("{file}:{line}: `#import` is allowed at the top of a file only")]
    LateImport {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
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
}

/// Where files of a language lie and how they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// The folder, for messages: `shaders`.
    pub folder: &'static str,
    /// What the name of an op's file has behind the op's: `.cu`.
    pub op_suffix: &'static str,
    /// The same of a library piece.
    pub piece_suffix: &'static str,
    /// What names of files have on disk, but not here: `.wgsl`.
    pub hidden_suffix: &'static str,
}

impl Naming {
    /// The file as it is on disk, for messages.
    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}{}", self.folder, self.hidden_suffix)
    }
}

/// A library piece that a specialisation chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// What it calls itself.
    pub prefix: &'a str,
    /// Name of the file.
    pub name: String,
    /// Text of the file.
    pub text: &'a str,
}

impl Piece<'_> {
    /// A line of the piece under its prefix.
    pub fn line(&self, line: &str) -> String {
        line.replace(SELF, &format!("{}_", self.prefix))
    }
}

/// The files of a language: the embedded ones, and replacements for experiments and tests.
#[derive(Clone, Debug)]
pub struct Library {
    naming: Naming,
    files: BTreeMap<Cow<'static, str>, Cow<'static, str>>,
}

impl Library {
    /// These files, by name.
    pub fn new(naming: Naming, files: &[(&'static str, &'static str)]) -> Self {
        Self {
            naming,
            files: files
                .iter()
                .map(|(name, text)| (Cow::Borrowed(*name), Cow::Borrowed(*text)))
                .collect(),
        }
    }

    /// Adds or replaces a file.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.files
            .insert(Cow::Owned(name.into()), Cow::Owned(text.into()));
        self
    }

    /// How the files are called.
    pub fn naming(&self) -> Naming {
        self.naming
    }

    /// Names and texts of all files.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(name, text)| (name.as_ref(), text.as_ref()))
    }

    /// The text of a file.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.files.get(name).map(AsRef::as_ref)
    }

    /// Name and text of an op's file.
    ///
    /// # Errors
    /// There is none.
    pub fn op(&self, op: &str) -> Result<(String, &str), SourceError> {
        let name = format!("{op}{}", self.naming.op_suffix);
        match self.get(&name) {
            Some(text) => Ok((name, text)),
            None => Err(SourceError::UnknownOp {
                file: self.naming.path(&name),
            }),
        }
    }

    /// Name and text of a library piece that `from` imports.
    ///
    /// # Errors
    /// There is none.
    pub fn piece(
        &self,
        piece: &str,
        from: impl FnOnce() -> String,
    ) -> Result<(String, &str), SourceError> {
        let name = format!("lib/{piece}{}", self.naming.piece_suffix);
        match self.get(&name) {
            Some(text) => Ok((name, text)),
            None => Err(SourceError::UnknownImport {
                name: piece.to_owned(),
                file: self.naming.path(&name),
                from: from(),
            }),
        }
    }

    /// The pieces that a launch of an op chooses, each once under each prefix.
    ///
    /// # Errors
    /// One prefix for two pieces; a piece that does not exist.
    pub fn pieces<'a>(
        &'a self,
        op: &str,
        launch: &'a Launch,
    ) -> Result<Vec<Piece<'a>>, SourceError> {
        let mut chosen: BTreeMap<&str, &str> = BTreeMap::new();
        let mut pieces = Vec::new();
        for (prefix, file) in &launch.spec.imports {
            if let Some(first) = chosen.insert(prefix, file) {
                if first == file {
                    continue;
                }
                return Err(SourceError::PrefixTwice {
                    prefix: (*prefix).to_owned(),
                    first: first.to_owned(),
                    second: file.clone(),
                });
            }
            let (name, text) = self.piece(file, || format!("the specialisation of {op}"))?;
            pieces.push(Piece { prefix, name, text });
        }
        Ok(pieces)
    }

    /// Checks that a file that no specialisation gives a prefix does not want one.
    ///
    /// # Errors
    /// It does.
    pub fn check_prefix(&self, name: &str, text: &str) -> Result<(), SourceError> {
        let at = text.lines().position(|line| {
            let code = line.split("//").next().unwrap_or_default();
            code.contains(SELF)
        });
        match at {
            Some(index) => Err(SourceError::NoPrefix {
                file: self.naming.path(name),
                line: index + 1,
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Params, Spec};

    const NAMING: Naming = Naming {
        folder: "sources",
        op_suffix: ".x",
        piece_suffix: ".h",
        hidden_suffix: "",
    };

    fn launch(spec: Spec) -> Launch {
        Launch {
            entry: "twice",
            spec,
            params: Params::new(),
            grid: [1, 1, 1],
            bindings: Vec::new(),
        }
    }

    fn library() -> Library {
        Library::new(NAMING, &[("twice.x", "twice")])
            .with("lib/a.h", "a\nSELF_load // SELF_\n")
            .with("lib/b.h", "// SELF_ in words only\n")
    }

    #[test]
    fn pieces_come_once_under_each_prefix() {
        let library = library();
        let launch = launch(
            Spec::threads(1)
                .import("w", "a")
                .import("x", "a")
                .import("w", "a"),
        );
        let pieces = library.pieces("twice", &launch).expect("there");
        let found: Vec<_> = pieces
            .iter()
            .map(|piece| (piece.prefix, &piece.name[..], piece.line("SELF_load();")))
            .collect();
        let line = |prefix: &str| format!("{prefix}_load();");
        assert_eq!(
            found,
            [("w", "lib/a.h", line("w")), ("x", "lib/a.h", line("x"))],
            "two"
        );
    }

    #[test]
    fn what_is_missing_is_named_as_it_would_be_on_disk() {
        let library = library();
        let error = library.op("thrice").unwrap_err().to_string();
        assert!(
            error.starts_with("`sources/thrice.x` does not exist yet"),
            "{error}"
        );
        let wanted = launch(Spec::threads(1).import("w", "c"));
        let error = library.pieces("twice", &wanted).unwrap_err().to_string();
        assert!(
            error.contains("sources/lib/c.h") && error.contains("twice"),
            "{error}"
        );
    }

    #[test]
    fn prefixes_are_given_once_and_only_by_specialisations() {
        let library = library();
        let both = launch(Spec::threads(1).import("w", "a").import("w", "b"));
        let error = library.pieces("twice", &both).unwrap_err().to_string();
        assert!(error.contains("`w`"), "{error}");
        let bare = |name| library.check_prefix(name, library.get(name).expect("there"));
        let error = bare("lib/a.h").unwrap_err().to_string();
        assert!(error.contains("sources/lib/a.h:2"), "{error}");
        bare("lib/b.h").expect("a comment");
    }
}

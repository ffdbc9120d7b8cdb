//! A read-only file as `&[u8]`; the crate's only unsafe code.
#![allow(
    unsafe_code,
    reason = "mapping a file is unsafe because other processes may change it"
)]

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::gguf::GgufError;

/// Pages are given back in units of this: a multiple of every page size in use (4, 16 and 64 KiB).
const RELEASE_UNIT: usize = 64 << 10;

/// A file mapped into memory.
///
/// The bytes are read from the disk when they are touched, and the operating system may drop and re-read
/// them. If another process shortens the file meanwhile, touching the lost part ends this process with
/// SIGBUS; [`Self::check_len`] before a long read makes that a clear error in all but a race.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    file: File,
    map: memmap2::Mmap,
}

/// How bytes will be read.
#[derive(Clone, Copy, Debug)]
enum Advised {
    Soon,
    Scattered,
}

impl MappedFile {
    /// Opens and maps a regular file.
    ///
    /// # Errors
    /// The file is missing, not a regular file, unreadable, or changes length while it is mapped.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let fail = |action| {
            move |source: io::Error| match source.kind() {
                io::ErrorKind::NotFound => GgufError::NotFound {
                    path: path.to_owned(),
                },
                _ => GgufError::Io {
                    action,
                    path: path.to_owned(),
                    source,
                },
            }
        };
        // Before opening: opening a pipe waits for its other end.
        let kind = fs::metadata(path).map_err(fail("look at"))?;
        if kind.is_dir() {
            return Err(GgufError::NotAFile {
                path: path.to_owned(),
                found: "a directory",
            });
        }
        if !kind.is_file() {
            return Err(GgufError::NotAFile {
                path: path.to_owned(),
                found: "a pipe, socket or device",
            });
        }
        let file = File::open(path).map_err(fail("open"))?;
        // SAFETY: the map is read-only and lives as long as `Self`, which hands out no slice that outlives
        // it. That nobody else writes to the file cannot be proved here: it is the documented condition
        // for a loaded model, and every consumer of the bytes accepts any bit pattern.
        let map = unsafe { memmap2::MmapOptions::new().map(&file) }.map_err(fail("map"))?;
        let mapped = Self {
            path: path.to_owned(),
            file,
            map,
        };
        mapped.check_len()?;
        Ok(mapped)
    }

    /// The file that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Compares the length of the file now with the length that was mapped.
    ///
    /// # Errors
    /// It differs, or cannot be found out.
    pub fn check_len(&self) -> Result<(), GgufError> {
        let found = self.file.metadata().map_err(|source| GgufError::Io {
            action: "measure",
            path: self.path.clone(),
            source,
        })?;
        let (found, expected) = (found.len(), self.map.len() as u64);
        if found != expected {
            return Err(GgufError::Changed {
                path: self.path.clone(),
                expected,
                found,
            });
        }
        Ok(())
    }

    /// Tells the system that these bytes will not be needed soon, so that they stop counting as this
    /// process's memory. They stay readable. Only whole units inside `range` are given back; parts of it
    /// outside the file are ignored. Does nothing where the system has no such call.
    pub fn release(&self, range: Range<usize>) {
        let start = range.start.checked_next_multiple_of(RELEASE_UNIT);
        let end = range.end.min(self.map.len()) / RELEASE_UNIT * RELEASE_UNIT;
        let Some(start) = start.filter(|&start| start < end) else {
            return;
        };
        self.advise_unneeded(start, end - start);
    }

    /// Tells the system that these bytes will be read soon, so that it can fetch them from the disk meanwhile. Parts of
    /// `range` outside the file are ignored. Does nothing where the system has no such call.
    pub fn prefetch(&self, range: Range<usize>) {
        self.advise(range, Advised::Soon);
    }

    /// Tells the system that these bytes are read here and there: what lies beside them need not be fetched with them.
    pub fn expect_scattered_reads(&self, range: Range<usize>) {
        self.advise(range, Advised::Scattered);
    }

    #[cfg(unix)]
    fn advise(&self, range: Range<usize>, advised: Advised) {
        let end = range.end.min(self.map.len());
        if range.start >= end {
            return;
        }
        let advice = match advised {
            Advised::Soon => memmap2::Advice::WillNeed,
            Advised::Scattered => memmap2::Advice::Random,
        };
        let result = self
            .map
            .advise_range(advice, range.start, end - range.start);
        // Advice that the system refuses costs time, not correctness.
        drop(result);
    }

    #[cfg(not(unix))]
    fn advise(&self, _range: Range<usize>, _advised: Advised) {}

    #[cfg(unix)]
    fn advise_unneeded(&self, offset: usize, n_bytes: usize) {
        // SAFETY: the map is shared, read-only and backed by a file, so dropped pages are read again
        // from that file: a slice into them sees the same bytes. Nothing of it is ever written.
        let advised = unsafe {
            self.map
                .unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, n_bytes)
        };
        // Advice that the system refuses costs memory, not correctness.
        drop(advised);
    }

    #[cfg(not(unix))]
    fn advise_unneeded(&self, _offset: usize, _n_bytes: usize) {}
}

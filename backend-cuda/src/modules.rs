//! Kernels: compiled once per specialisation, kept in memory and on disk.
#![allow(
    unsafe_code,
    reason = "NVRTC is a C library; its handles do not leave this file"
)]

use std::ffi::{CStr, CString, c_char};
use std::fmt::{self, Write as _};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::nvrtc::{result as nvrtc, sys};
use gemel_core::error::DeviceError;
use gemel_core::kernel::{self, Kernels, Key, Progress};
use gemel_core::op::{Const, Launch};
use gemel_core::source::Library;

use crate::cubin;
use crate::error::Gpu;
use crate::launch::{Context, Function};
use crate::source::{self, Source};

/// Turns a source into the image of a module.
pub(crate) trait Compiler: fmt::Debug + Send + Sync {
    /// Everything besides the source that the image depends on: compiler, version, options, architecture.
    fn id(&self) -> &str;

    /// What the text needs at its end.
    fn suffix(&self, entry: &str) -> String;

    /// Compiles a source for the launches of one of its entries.
    ///
    /// # Errors
    /// The compiler's words.
    fn compile(&self, name: &str, entry: &str, source: &Source) -> Result<Vec<u8>, String>;
}

/// A compiled kernel.
#[derive(Debug)]
pub(crate) struct Module {
    /// Op, entry and specialisation, for messages.
    pub(crate) name: String,
    pub(crate) function: Arc<Function>,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
}

/// The kernels of a device.
#[derive(Debug)]
pub(crate) struct Modules {
    library: Library,
    compiler: Box<dyn Compiler>,
    cache: Option<PathBuf>,
    loaded: Kernels<Module>,
}

impl Modules {
    pub(crate) fn new(
        library: Library,
        compiler: Box<dyn Compiler>,
        cache: Option<PathBuf>,
        progress: Option<Progress>,
    ) -> Self {
        Self {
            library,
            compiler,
            cache,
            loaded: Kernels::new(progress),
        }
    }

    /// The kernels of launches, in order, compiled where they are new.
    pub(crate) fn get(
        &self,
        gpu: &Gpu,
        context: &Arc<Context>,
        launches: &[(&'static str, &Launch)],
    ) -> Result<Vec<Arc<Module>>, DeviceError> {
        self.loaded.get(&gpu.name, launches, |key, launch| {
            self.load(gpu, context, key, launch)
        })
    }

    fn load(
        &self,
        gpu: &Gpu,
        context: &Arc<Context>,
        key: &Key,
        launch: &Launch,
    ) -> Result<Module, DeviceError> {
        let failed = |log: String| DeviceError::Compile {
            kernel: key.to_string(),
            log,
        };
        let constant = |wanted: &str| {
            launch
                .spec
                .consts
                .iter()
                .find_map(|(name, value)| match value {
                    Const::U32(value) if *name == wanted => Some(*value),
                    Const::U32(_) | Const::Bool(_) => None,
                })
        };
        let threads = constant("THREADS")
            .ok_or_else(|| failed("the specialisation has no THREADS".to_owned()))?;
        let shared_bytes = constant("SHARED_BYTES").unwrap_or(0);
        let mut source = source::join(&self.library, key.op, launch)
            .map_err(|error| failed(error.to_string()))?;
        source.text += &self.compiler.suffix(key.entry);

        let identity = identity(self.compiler.id(), &source);
        let file = self.cache.as_deref().map(|folder| {
            folder.join(format!(
                "{}-{:032x}",
                key.entry,
                fingerprint(identity.as_bytes())
            ))
        });
        let cached = file.as_deref().and_then(|file| fetch(file, &identity));
        let is_cached = cached.is_some();
        let mut image = match cached {
            Some(image) => image,
            None => self
                .compiler
                .compile(&format!("kernels/{}.cu", key.op), key.entry, &source)
                .map_err(&failed)?,
        };
        let mut loaded = Function::load(context, &image, key.entry);
        if loaded.is_err() && is_cached {
            // Whatever is wrong with the file, the source is still there.
            image = self
                .compiler
                .compile(&format!("kernels/{}.cu", key.op), key.entry, &source)
                .map_err(&failed)?;
            loaded = Function::load(context, &image, key.entry);
        }
        let function = loaded.map_err(|fault| gpu.fault(&format!("kernel {key}"), &fault))?;
        if !is_cached && let Some(file) = &file {
            store(file, &identity, &image);
        }
        if shared_bytes > 0 {
            function
                .allow_shared(shared_bytes)
                .map_err(|fault| gpu.fault(&format!("kernel {key}"), &fault))?;
        }
        Ok(Module {
            name: key.to_string(),
            function: Arc::new(function),
            threads,
            shared_bytes,
        })
    }
}

/// Everything that an image depends on, as one text.
fn identity(compiler: &str, source: &Source) -> String {
    let mut text = format!("{compiler}\n{}", source.text);
    for (name, header) in &source.headers {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n// {name}\n{header}");
    }
    text
}

/// FNV-1a in 128 bits: the name of a cache file. The file holds the whole identity, so a collision costs a
/// compilation and nothing else.
pub(crate) fn fingerprint(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, &byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        })
}

/// First bytes of a cache file. Then come the lengths of identity and image, and these two.
const MAGIC: &[u8; 8] = b"gemelcu1";

/// The image of a cache file, if the file is whole and of this identity.
fn fetch(file: &Path, identity: &str) -> Option<Vec<u8>> {
    let bytes = fs::read(file).ok()?;
    let rest = bytes.strip_prefix(MAGIC)?;
    let (lengths, rest) = rest.split_at_checked(16)?;
    let length = |at: usize| {
        let word = lengths.get(at..at + 8)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(word)).ok()
    };
    let rest = rest.strip_prefix(identity.as_bytes())?;
    let is_whole = length(0)? == identity.len() && length(8)? == rest.len();
    (is_whole && !rest.is_empty()).then(|| rest.to_vec())
}

/// Keeps an image. A cache that cannot be written costs time only, so failures are no errors.
fn store(file: &Path, identity: &str, image: &[u8]) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let Some(folder) = file.parent() else { return };
    let mut bytes = MAGIC.to_vec();
    bytes.extend((identity.len() as u64).to_le_bytes());
    bytes.extend((image.len() as u64).to_le_bytes());
    bytes.extend(identity.as_bytes());
    bytes.extend(image);
    // Written aside and renamed, so that nobody ever reads half a file.
    let aside = file.with_extension(format!(
        "{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    ));
    let written = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&aside, &bytes))
        .and_then(|()| fs::rename(&aside, file));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
}

/// Where compiled kernels are kept, unless the options say otherwise.
pub(crate) fn default_cache() -> Option<PathBuf> {
    let var = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let folder = var("GEMEL_CACHE")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("gemel")))
        .or_else(|| Some(var("LOCALAPPDATA")?.join("gemel")))
        .or_else(|| Some(var("HOME")?.join(".cache/gemel")))?;
    Some(folder.join("cubins"))
}

/// Loads a library by path and keeps it: later look-ups by its name then find it.
///
/// # Errors
/// The loader's words.
pub(crate) fn preload(path: &Path) -> Result<(), String> {
    // SAFETY: loading runs the library's initialisers; the caller means this file to be what it is.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| {
        let details = std::error::Error::source(&error).map(|source| format!(": {source}"));
        format!("{}: {error}{}", path.display(), details.unwrap_or_default())
    })?;
    std::mem::forget(library);
    Ok(())
}

/// Version of NVRTC.
///
/// # Errors
/// One line that says why there is none.
pub(crate) fn nvrtc_version() -> Result<(i32, i32), String> {
    static VERSION: OnceLock<Result<(i32, i32), String>> = OnceLock::new();
    VERSION
        .get_or_init(|| {
            if let Some(path) = std::env::var_os("GEMEL_NVRTC") {
                preload(Path::new(&path)).map_err(|error| {
                    format!("NVRTC cannot be loaded from $GEMEL_NVRTC: {error}")
                })?;
            }
            // SAFETY: loading libnvrtc runs its initialisers, which are made for that.
            if !unsafe { sys::is_culib_present() } {
                return Err(
                    "the kernel compiler (libnvrtc) was not found; install the CUDA toolkit, or name the library in \
                     $GEMEL_NVRTC"
                        .to_owned(),
                );
            }
            let (mut major, mut minor) = (0, 0);
            guarded(|| {
                // SAFETY: both pointers are to live integers.
                unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }
                    .result()
                    .map_err(|error| error.to_string())
            })?;
            Ok((major, minor))
        })
        .clone()
}

/// Whether a driver takes what a version of NVRTC makes. Drivers run machine code of their own major version and of
/// older ones; the portable form must not be newer than the driver at all.
///
/// # Errors
/// One line that says what to install.
pub(crate) fn fits(driver: (u32, u32), nvrtc: (i32, i32), portable: bool) -> Result<(), String> {
    let nvrtc = (nvrtc.0.unsigned_abs(), nvrtc.1.unsigned_abs());
    let is_new_enough = if portable {
        driver >= nvrtc
    } else {
        driver.0 >= nvrtc.0
    };
    if is_new_enough {
        return Ok(());
    }
    Err(format!(
        "the driver is for CUDA {}.{}, which does not run what NVRTC {}.{} compiles; install a newer driver, or name \
         an older NVRTC in $GEMEL_NVRTC",
        driver.0, driver.1, nvrtc.0, nvrtc.1
    ))
}

/// Calls NVRTC; cudarc panics where a library lacks a function.
fn guarded<T>(calls: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(calls))
        .unwrap_or_else(|_| Err("libnvrtc lacks a function; install CUDA 12 or 13".to_owned()))
}

/// What is compiled for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// Instructions of an architecture, which later ones of the same major number run as well.
    Cubin(u32),
    /// The portable form, which the driver translates for architectures that the compiler does not know yet.
    Ptx(u32),
}

impl Target {
    /// The best for a device among the architectures that a compiler has, in the form `90` for 9.0.
    fn choose(compute: (u32, u32), known: &[u32]) -> Option<Self> {
        let wanted = compute.0 * 10 + compute.1;
        let best = known.iter().copied().filter(|&arch| arch <= wanted).max()?;
        Some(if best / 10 == compute.0 {
            Self::Cubin(best)
        } else {
            Self::Ptx(best)
        })
    }
}

/// Warps of a multiprocessor, in the steps in which their registers are given: 64, 80, 128, 168 and 255 a thread.
const RESIDENT_WARPS: [u32; 5] = [32, 24, 16, 12, 8];

/// Registers of a multiprocessor, of every architecture.
const REGISTERS: u32 = 65_536;

/// NVIDIA's compiler.
#[derive(Debug)]
pub(crate) struct Nvrtc {
    id: String,
    options: Vec<String>,
    target: Target,
}

impl Nvrtc {
    /// The compiler for a compute capability, and for a version of the driver unless only text is checked.
    ///
    /// # Errors
    /// One line that says why there is none.
    pub(crate) fn new(compute: (u32, u32), driver: Option<(u32, u32)>) -> Result<Self, String> {
        let version = nvrtc_version()?;
        let known = architectures()?;
        let target = Target::choose(compute, &known).ok_or_else(|| {
            format!(
                "NVRTC {}.{} does not compile for compute capability {}.{}; install an older CUDA toolkit",
                version.0, version.1, compute.0, compute.1
            )
        })?;
        if let Some(driver) = driver {
            fits(driver, version, matches!(target, Target::Ptx(_)))?;
        }
        let architecture = match target {
            Target::Cubin(arch) => format!("sm_{arch}"),
            Target::Ptx(arch) => format!("compute_{arch}"),
        };
        let options = vec![
            "--std=c++17".to_owned(),
            "-default-device".to_owned(),
            format!("--gpu-architecture={architecture}"),
        ];
        Ok(Self {
            id: format!(
                "nvrtc {}.{} {}, without local memory if warps of {RESIDENT_WARPS:?} allow",
                version.0,
                version.1,
                options.join(" ")
            ),
            options,
            target,
        })
    }
}

/// The architectures that NVRTC compiles for.
fn architectures() -> Result<Vec<u32>, String> {
    guarded(|| {
        let failed = |error: nvrtc::NvrtcError| error.to_string();
        let mut n = 0;
        // SAFETY: the pointer is to a live integer.
        unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut n) }
            .result()
            .map_err(failed)?;
        let mut known = vec![0; usize::try_from(n).unwrap_or(0)];
        // SAFETY: the memory has the size that was asked for.
        unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) }
            .result()
            .map_err(failed)?;
        Ok(known.into_iter().map(i32::unsigned_abs).collect())
    })
}

/// The compiler and its version: `NVRTC 12.9`.
///
/// # Errors
/// One line that says why there is none.
pub fn compiler() -> Result<String, String> {
    nvrtc_version().map(|(major, minor)| format!("NVRTC {major}.{minor}"))
}

/// Compiles the embedded kernel of a launch for a compute capability, without a device. Returns the cubin (PTX for
/// capabilities that the compiler does not know yet).
///
/// # Errors
/// [`DeviceError::NotFound`] without NVRTC, [`DeviceError::Compile`] with file and line.
pub fn check(
    op: &'static str,
    launch: &Launch,
    compute: (u32, u32),
) -> Result<Vec<u8>, DeviceError> {
    let compiler = Nvrtc::new(compute, None).map_err(|available| DeviceError::NotFound {
        wanted: "nvrtc".to_owned(),
        available,
    })?;
    source::join(&source::embedded(), op, launch)
        .map_err(|error| error.to_string())
        .and_then(|source| compiler.compile(&format!("kernels/{op}.cu"), launch.entry, &source))
        .map_err(|log| DeviceError::Compile {
            kernel: kernel::name_of(op, launch),
            log,
        })
}

/// A program, destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once here.
        let _ = unsafe { nvrtc::destroy_program(self.0) };
    }
}

impl Compiler for Nvrtc {
    fn id(&self) -> &str {
        &self.id
    }

    fn suffix(&self, _: &str) -> String {
        String::new()
    }

    /// The compiler decides how many warps a multiprocessor shall hold, and to reach a step of that number it keeps a
    /// few values in local memory. Where it does, it is told to hold as many at least, then fewer, until it does not.
    fn compile(&self, name: &str, entry: &str, source: &Source) -> Result<Vec<u8>, String> {
        let first = self.compile_once(name, source, 0)?;
        // The portable form tells nothing of registers.
        let Target::Cubin(arch) = self.target else {
            return Ok(first);
        };
        let taken = |image: &[u8]| cubin::resources(image, entry, (arch / 10, arch % 10)).ok();
        let Some(had) = taken(&first) else {
            return Ok(first);
        };
        let mut best = (had.local_bytes, first);
        let held = REGISTERS / (32 * had.registers.max(1));
        for warps in RESIDENT_WARPS.iter().filter(|&&warps| warps <= held) {
            if best.0 == 0 {
                break;
            }
            let image = self.compile_once(name, source, *warps)?;
            if let Some(takes) = taken(&image)
                && takes.local_bytes < best.0
            {
                best = (takes.local_bytes, image);
            }
        }
        Ok(best.1)
    }
}

impl Nvrtc {
    /// Compiles such that a multiprocessor holds at least `warps` warps, or as many as the compiler likes if that is 0.
    fn compile_once(&self, name: &str, source: &Source, warps: u32) -> Result<Vec<u8>, String> {
        let mut options = self.options.clone();
        options.push(format!("-DRESIDENT_WARPS={warps}"));
        let c_string =
            |text: &str| CString::new(text).map_err(|_| format!("{name} has a zero byte"));
        let text = c_string(&source.text)?;
        let file = c_string(name)?;
        let mut names = Vec::with_capacity(source.headers.len());
        let mut texts = Vec::with_capacity(source.headers.len());
        for (name, text) in &source.headers {
            names.push(c_string(name)?);
            texts.push(c_string(text)?);
        }
        let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (name_pointers, text_pointers) = (pointers(&names), pointers(&texts));
        guarded(|| {
            let mut program = std::ptr::null_mut();
            // SAFETY: all strings outlive the program, and the two lists have the stated length.
            unsafe {
                sys::nvrtcCreateProgram(
                    &raw mut program,
                    text.as_ptr(),
                    file.as_ptr(),
                    names.len() as i32,
                    text_pointers.as_ptr(),
                    name_pointers.as_ptr(),
                )
            }
            .result()
            .map_err(|error| error.to_string())?;
            let program = Program(program);
            // SAFETY: the program lives.
            let compiled = unsafe { nvrtc::compile_program(program.0, &options) };
            if let Err(error) = compiled {
                // SAFETY: the program lives.
                let log = unsafe { nvrtc::get_program_log(program.0) }.unwrap_or_default();
                return Err(format!("{error}\n{}", text_of(&log)));
            }
            let failed = |error: nvrtc::NvrtcError| error.to_string();
            if matches!(self.target, Target::Ptx(_)) {
                // SAFETY: the program lives.
                let text = unsafe { nvrtc::get_ptx(program.0) }.map_err(failed)?;
                return Ok(text.into_iter().map(c_char::cast_unsigned).collect());
            }
            let mut n_bytes = 0;
            // SAFETY: the program lives; the pointer is to a live integer.
            unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut n_bytes) }
                .result()
                .map_err(failed)?;
            let mut image = vec![0u8; n_bytes];
            // SAFETY: the program lives; the memory has the size that was asked for.
            unsafe { sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()) }
                .result()
                .map_err(failed)?;
            Ok(image)
        })
    }
}

/// The text of a log up to its zero byte.
fn text_of(log: &[c_char]) -> String {
    let bytes: Vec<u8> = log.iter().map(|c| c.cast_unsigned()).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().trim().to_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_returns_what_was_kept_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("gemel-cubins-{}", std::process::id()));
        let file = folder.join("a");
        assert_eq!(fetch(&file, "x"), None, "not there");
        store(&file, "x", b"image");
        assert_eq!(fetch(&file, "x").as_deref(), Some(&b"image"[..]), "kept");
        assert_eq!(fetch(&file, "y"), None, "of another source");
        assert_eq!(fetch(&file, "xi"), None, "of a longer source");
        let whole = fs::read(&file).unwrap();
        for n in 0..whole.len() {
            fs::write(&file, &whole[..n]).unwrap();
            assert_eq!(fetch(&file, "x"), None, "cut to {n} bytes");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn fingerprints_follow_the_published_vectors() {
        // Fowler, Noll, Vo: FNV-1a, 128 bits, of "" and "a".
        assert_eq!(
            fingerprint(b""),
            0x6c62_272e_07bb_0142_62b8_2175_6295_c58d,
            "empty"
        );
        assert_eq!(
            fingerprint(b"a"),
            0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964,
            "a"
        );
    }

    #[test]
    fn devices_newer_than_the_compiler_get_what_they_can_run() {
        let known = [75, 80, 86, 90, 100];
        for (compute, target) in [
            ((8, 0), Some(Target::Cubin(80))),
            ((8, 9), Some(Target::Cubin(86))),
            ((10, 3), Some(Target::Cubin(100))),
            ((12, 0), Some(Target::Ptx(100))),
            ((7, 0), None),
        ] {
            assert_eq!(Target::choose(compute, &known), target, "{compute:?}");
        }
    }

    #[test]
    fn drivers_run_what_is_not_newer_than_they_are() {
        assert!(fits((12, 2), (12, 9), false).is_ok(), "one major version");
        assert!(fits((13, 0), (12, 9), true).is_ok(), "an older compiler");
        for (driver, nvrtc, portable) in [((12, 9), (13, 0), false), ((12, 2), (12, 9), true)] {
            let message = fits(driver, nvrtc, portable).unwrap_err();
            assert!(message.contains("newer driver"), "{message}");
        }
    }

    #[test]
    fn headers_are_part_of_the_identity() {
        let source = |header: &str| Source {
            text: "text".to_owned(),
            headers: [("lib/a.cuh".to_owned(), header.to_owned())].into(),
        };
        assert_ne!(
            identity("c", &source("1")),
            identity("c", &source("2")),
            "header"
        );
        assert_ne!(
            identity("c", &source("1")),
            identity("d", &source("1")),
            "compiler"
        );
    }
}

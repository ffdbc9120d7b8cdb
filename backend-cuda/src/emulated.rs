//! A device for tests: the pretend driver of `kernels/host/` in the place of CUDA's, the host's C++ compiler in the
//! place of NVRTC. Everything else is what runs on a GPU.
//!
//! The pretend driver is a library with the name of the real one. It is loaded by path before anything asks for that
//! name, and then holds for the whole process, also where the real one is installed: a process has the one or the
//! other, whichever it opened first.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use gemel_core::error::DeviceError;

use crate::caps::{self, CudaOptions};
use crate::device::CudaDevice;
use crate::modules::{self, Compiler};
use crate::source::{self, Source};

/// The folder of the pretend driver's sources.
const HOST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/host");

/// How devices of the pretend driver are called.
const NAME: &str = "Gemel emulation";

/// Options of the compiler, as `kernels/README.md` states them. `-w`: warnings are for the check of the kernels.
const OPTIONS: &[&str] = &[
    "-std=c++20",
    "-O1",
    "-g1",
    "-march=x86-64-v3",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    "-Wl,-Bsymbolic",
    "-w",
];

/// Opens an emulated device: `cuda-emulated`, `cuda-emulated:1`, also with a `#` as in [`CudaOptions::select`].
///
/// # Errors
/// As [`CudaDevice::open`]; also if the pretend driver cannot be built, or the process has the real one.
pub fn open_emulated(options: &CudaOptions) -> Result<CudaDevice, DeviceError> {
    let devices = load_driver().and_then(|()| {
        let compiler = Host::new()?;
        let devices = caps::devices("the host's compiler")?;
        match devices.iter().find(|info| !info.device.starts_with(NAME)) {
            Some(info) => Err(format!(
                "this process has opened the real driver, which knows {}; the emulation needs a process of its own",
                info.device
            )),
            None => Ok((devices, compiler)),
        }
    });
    let (devices, compiler) = match devices {
        Ok((devices, compiler)) => (Ok(devices), compiler),
        Err(why) => {
            return Err(DeviceError::NotFound {
                wanted: options.select.clone(),
                available: format!("the emulation of CUDA is not available: {why}"),
            });
        }
    };
    let mut info = caps::choose(options, devices)?;
    info.name = info.name.replacen("cuda", "cuda-emulated", 1);
    CudaDevice::with_compiler(options, info, Box::new(compiler))
}

/// Builds the pretend driver where its sources have changed, and loads it; once per process.
fn load_driver() -> Result<(), String> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            let driver = build_driver()?;
            modules::preload(&driver)
        })
        .clone()
}

/// Builds the pretend driver where its sources have changed: the path of the library.
///
/// # Errors
/// What the compiler said.
pub fn build_driver() -> Result<PathBuf, String> {
    let script = Path::new(HOST).join("build.sh");
    let mut inputs = fs::read(&script).map_err(|error| format!("{}: {error}", script.display()))?;
    // What the driver is made of is embedded with the kernels.
    for (name, text) in source::embedded().files() {
        if name.contains('/') {
            inputs.extend(name.as_bytes());
            inputs.extend(text.as_bytes());
        }
    }
    let folder = folder();
    let out = folder.join(format!("driver-{:032x}", modules::fingerprint(&inputs)));
    let library = out.join("libcuda.so.1");
    if library.exists() {
        return Ok(library);
    }
    // Made aside and renamed: several processes may want it at once.
    let aside = unique(&folder);
    let failed = |error: std::io::Error| format!("building the pretend driver: {error}");
    fs::create_dir_all(&aside).map_err(failed)?;
    run(Command::new("bash").arg(&script).arg(&aside))?;
    let renamed = fs::rename(&aside, &out);
    if renamed.is_err() {
        // Another process was faster.
        let _ = fs::remove_dir_all(&aside);
    }
    if library.exists() {
        Ok(library)
    } else {
        Err(format!("{} made no libcuda.so.1", script.display()))
    }
}

/// Where the driver and intermediate files lie.
fn folder() -> PathBuf {
    modules::default_cache()
        .as_deref()
        .and_then(Path::parent)
        .map_or_else(std::env::temp_dir, Path::to_path_buf)
        .join("emulation")
}

/// A path that nobody else uses.
fn unique(folder: &Path) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    folder.join(format!(
        "making-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    ))
}

/// Runs a command; what it writes is its error.
fn run(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command
        // What a sanitiser wants in this process, compilers do not survive.
        .env_remove("LD_PRELOAD")
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!(
        "{} failed: {}",
        command.get_program().display(),
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}

/// The C++ compiler of the host.
#[derive(Debug)]
struct Host {
    id: String,
    program: OsString,
    /// Files of the emulation: name and text.
    files: Vec<(String, String)>,
}

impl Host {
    fn new() -> Result<Self, String> {
        let program = std::env::var_os("CXX")
            .filter(|program| !program.is_empty())
            .unwrap_or_else(|| "g++".into());
        let version = run(Command::new(&program).arg("--version"))?;
        let files: Vec<(String, String)> = source::embedded()
            .files()
            .filter(|(name, _)| name.contains('/'))
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .collect();
        let host: Vec<u8> = files
            .iter()
            .filter(|(name, _)| name.starts_with("host/"))
            .flat_map(|(_, text)| text.bytes())
            .collect();
        let id = format!(
            "{} {} {:032x}",
            String::from_utf8_lossy(&version)
                .lines()
                .next()
                .unwrap_or_default(),
            OPTIONS.join(" "),
            modules::fingerprint(&host)
        );
        Ok(Self { id, program, files })
    }

    fn compile_in(&self, folder: &Path, source: &Source) -> Result<Vec<u8>, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        let headers = source.headers.iter();
        // Headers of the launch come later, so that replaced ones win.
        for (name, text) in self
            .files
            .iter()
            .map(|(name, text)| (name, text))
            .chain(headers)
        {
            let path = folder.join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(failed)?;
            }
            fs::write(path, text).map_err(failed)?;
        }
        let (input, output) = (folder.join("source.cu"), folder.join("module.so"));
        fs::write(&input, &source.text).map_err(failed)?;
        run(Command::new(&self.program)
            .args(OPTIONS)
            .arg("-include")
            .arg(folder.join("host/emulation.hpp"))
            .arg("-I")
            .arg(folder)
            .args(["-x", "c++"])
            .arg(&input)
            .arg("-o")
            .arg(&output))?;
        fs::read(&output).map_err(failed)
    }
}

impl Compiler for Host {
    fn id(&self) -> &str {
        &self.id
    }

    fn suffix(&self, entry: &str) -> String {
        format!("EMULATION_EXPORT({entry})\n")
    }

    fn compile(&self, _: &str, _: &str, source: &Source) -> Result<Vec<u8>, String> {
        let folder = unique(&folder());
        let image = self.compile_in(&folder, source);
        // Nobody looks at it again; what is left over costs disk space only.
        let _ = fs::remove_dir_all(&folder);
        image
    }
}

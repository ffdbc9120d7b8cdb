//! Everything that is called in the driver, as values that own what they name.
//!
//! The calls are those of `cudarc::driver::result`; this module adds ownership and turns a function that an old
//! driver lacks (cudarc panics) into an ordinary fault.
#![allow(
    unsafe_code,
    reason = "the driver is a C library: handles are checked and owned here, once"
)]

use std::ffi::{CStr, CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::error::Fault;

/// Calls the driver.
fn call<T>(what: &str, calls: impl FnOnce() -> Result<T, DriverError>) -> Result<T, Fault> {
    match catch_unwind(AssertUnwindSafe(calls)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            let name = error.error_name().map(CStr::to_string_lossy);
            let words = error.error_string().map(CStr::to_string_lossy);
            Err(Fault {
                code: Some(error.0 as u32),
                text: format!(
                    "{what}: {} ({})",
                    words.as_deref().unwrap_or("unknown error"),
                    name.as_deref().unwrap_or("no name")
                ),
            })
        }
        Err(_) => Err(Fault {
            code: None,
            text: format!("{what}: the driver does not have this function; install a newer driver"),
        }),
    }
}

/// Whether a driver library can be loaded at all.
pub(crate) fn is_present() -> bool {
    // SAFETY: loading libcuda runs its initialisers, which are made for that.
    unsafe { sys::is_culib_present() }
}

/// Starts the driver; any number of times.
pub(crate) fn init() -> Result<(), Fault> {
    call("starting the driver", result::init)
}

/// Number of devices.
pub(crate) fn n_devices() -> Result<usize, Fault> {
    let n = call("counting devices", result::device::get_count)?;
    Ok(usize::try_from(n).unwrap_or(0))
}

/// Version of the driver's interface: `(13, 0)`.
pub(crate) fn version() -> Result<(u32, u32), Fault> {
    let mut version = 0;
    call("asking for the version", || {
        // SAFETY: the pointer is to a live integer.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()
    })?;
    let version = version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}

/// What the driver says about a device.
#[derive(Clone, Debug)]
pub(crate) struct Properties {
    pub(crate) name: String,
    pub(crate) compute: (u32, u32),
    pub(crate) memory_bytes: u64,
    pub(crate) max_threads_per_block: u32,
    /// Of a block that asks for it; without, and for arrays of fixed size, 48 KiB.
    pub(crate) max_shared_bytes: u32,
    pub(crate) max_grid: [u32; 3],
    pub(crate) warp: u32,
    pub(crate) integrated: bool,
}

/// Asks for the properties of a device by number.
pub(crate) fn properties(ordinal: usize) -> Result<Properties, Fault> {
    use sys::CUdevice_attribute as A;
    let device = device(ordinal)?;
    let attribute = |attribute: A| {
        call("asking for an attribute", || {
            // SAFETY: the device comes from `cuDeviceGet`.
            unsafe { result::device::get_attribute(device, attribute) }
        })
        .map(|value| u32::try_from(value).unwrap_or(0))
    };
    Ok(Properties {
        name: call("asking for the name", || result::device::get_name(device))?,
        // SAFETY: the device comes from `cuDeviceGet`.
        memory_bytes: call("asking for the memory", || unsafe {
            result::device::total_mem(device)
        })? as u64,
        compute: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        max_threads_per_block: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        max_shared_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        max_grid: [
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ],
        warp: attribute(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        integrated: attribute(A::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
    })
}

fn device(ordinal: usize) -> Result<sys::CUdevice, Fault> {
    let ordinal = i32::try_from(ordinal).unwrap_or(-1);
    call("finding the device", || result::device::get(ordinal))
}

/// The primary context of a device.
#[derive(Debug)]
pub(crate) struct Context {
    raw: sys::CUcontext,
    device: sys::CUdevice,
}

// SAFETY: contexts may be made current in any thread, in several at once; the driver locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the context of a device by number.
    pub(crate) fn open(ordinal: usize) -> Result<Arc<Self>, Fault> {
        let device = device(ordinal)?;
        // SAFETY: the device comes from `cuDeviceGet`.
        let raw = call("opening the device", || unsafe {
            result::primary_ctx::retain(device)
        })?;
        Ok(Arc::new(Self { raw, device }))
    }

    /// Makes it the calling thread's, which every other call needs.
    fn bind(&self) -> Result<(), Fault> {
        // SAFETY: the context is retained as long as `self` lives.
        call("entering the context", || unsafe {
            result::ctx::set_current(self.raw)
        })
    }

    /// Whether both are of one device, and so the same.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.device == other.device
    }

    /// Lets work of this context access memory of another one's device.
    pub(crate) fn enable_peer(&self, other: &Self) -> Result<(), Fault> {
        let mut can = 0;
        call("asking for peer access", || {
            // SAFETY: both devices come from `cuDeviceGet`, the pointer is to a live integer.
            unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.device, other.device) }.result()
        })?;
        if can == 0 {
            return Err(Fault {
                code: None,
                text: "the driver offers no peer access".to_owned(),
            });
        }
        self.bind()?;
        call("enabling peer access", || {
            // SAFETY: both contexts are retained.
            match unsafe { sys::cuCtxEnablePeerAccess(other.raw, 0) } {
                sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
                status => status.result(),
            }
        })
    }

    /// Free and total bytes of device memory.
    pub(crate) fn memory(&self) -> Result<(u64, u64), Fault> {
        self.bind()?;
        let (free, total) = call("asking for free memory", result::mem_get_info)?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`, released once here. A failure leaves nothing to be done.
        let _ = call("closing the device", || unsafe {
            result::primary_ctx::release(self.device)
        });
    }
}

/// Device memory. Whoever drops it makes sure that no work in flight uses it.
#[derive(Debug)]
pub(crate) struct Memory {
    context: Arc<Context>,
    raw: sys::CUdeviceptr,
    n_bytes: usize,
}

impl Memory {
    /// Allocates at least one byte; the contents are whatever was there.
    pub(crate) fn new(context: &Arc<Context>, n_bytes: usize) -> Result<Self, Fault> {
        context.bind()?;
        // SAFETY: the context is current; the size is not zero.
        let raw = call("allocating device memory", || unsafe {
            result::malloc_sync(n_bytes.max(1))
        })?;
        Ok(Self {
            context: context.clone(),
            raw,
            n_bytes: n_bytes.max(1),
        })
    }

    /// The address of a byte.
    pub(crate) fn address(&self, offset: u64) -> u64 {
        self.raw + offset
    }

    fn check(&self, offset: u64, n_bytes: usize) -> Result<sys::CUdeviceptr, Fault> {
        let end = usize::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_add(n_bytes));
        if end.is_none_or(|end| end > self.n_bytes) {
            return Err(Fault {
                code: None,
                text: format!(
                    "bytes {offset}+{n_bytes} are outside an allocation of {} bytes",
                    self.n_bytes
                ),
            });
        }
        Ok(self.raw + offset)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated once in `new`, freed once here.
            let _ = call("freeing device memory", || unsafe {
                result::free_sync(self.raw)
            });
        }
    }
}

/// Host memory that the device copies from and to without a detour.
#[derive(Debug)]
pub(crate) struct Pinned {
    context: Arc<Context>,
    raw: *mut u8,
    n_bytes: usize,
}

// SAFETY: ordinary host memory that one value owns.
unsafe impl Send for Pinned {}
// SAFETY: shared access only reads.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates zeroed memory, which every context takes for pinned.
    pub(crate) fn new(context: &Arc<Context>, n_bytes: usize) -> Result<Self, Fault> {
        context.bind()?;
        let n_bytes = n_bytes.max(1);
        // SAFETY: the context is current; the memory is of this size and gets contents before anyone reads it.
        let raw = call("allocating pinned host memory", || unsafe {
            let raw = result::malloc_host(n_bytes, sys::CU_MEMHOSTALLOC_PORTABLE)?.cast::<u8>();
            raw.write_bytes(0, n_bytes);
            Ok(raw)
        })?;
        Ok(Self {
            context: context.clone(),
            raw,
            n_bytes,
        })
    }

    /// The memory, if it is there and has this size.
    fn check(pinned: Option<&Self>, n_bytes: usize) -> Result<&Self, Fault> {
        pinned
            .filter(|pinned| pinned.n_bytes >= n_bytes)
            .ok_or_else(|| Fault {
                code: None,
                text: format!("{n_bytes} bytes exceed their pinned memory"),
            })
    }

    /// Size in bytes.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: initialised memory of this length, owned by `self`. A copy of the device into it is awaited
        // before anyone looks (`device.rs`).
        unsafe { std::slice::from_raw_parts(self.raw, self.n_bytes) }
    }

    /// The bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and `&mut self` excludes others.
        unsafe { std::slice::from_raw_parts_mut(self.raw, self.n_bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated once in `new`, freed once here.
            let _ = call("freeing pinned host memory", || unsafe {
                result::free_host(self.raw.cast())
            });
        }
    }
}

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: events may be used in any thread; the driver locks.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event; `timed` ones can be compared.
    pub(crate) fn new(context: &Arc<Context>, timed: bool) -> Result<Self, Fault> {
        context.bind()?;
        let flags = if timed {
            sys::CUevent_flags::CU_EVENT_DEFAULT
        } else {
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        Ok(Self {
            context: context.clone(),
            raw: call("creating an event", || result::event::create(flags))?,
        })
    }

    /// Whether everything before the event has finished.
    pub(crate) fn is_done(&self) -> Result<bool, Fault> {
        self.context.bind()?;
        // SAFETY: the event lives as long as `self`.
        let queried = call("asking for an event", || unsafe {
            match result::event::query(self.raw) {
                Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
                other => other.map(|()| true),
            }
        })?;
        Ok(queried)
    }

    /// Nanoseconds from an earlier event to this one; both are done.
    pub(crate) fn ns_since(&self, earlier: &Self) -> Result<u64, Fault> {
        self.context.bind()?;
        // SAFETY: both events live, and were made by the same context.
        let ms = call("comparing events", || unsafe {
            result::event::elapsed(earlier.raw, self.raw)
        })?;
        Ok((f64::from(ms) * 1e6).round() as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created once in `new`, destroyed once here; the driver allows it before the event is done.
            let _ = call("destroying an event", || unsafe {
                result::event::destroy(self.raw)
            });
        }
    }
}

/// A queue of work that runs in order.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: streams may be used in any thread; the driver locks.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that does not wait for the default one.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        context.bind()?;
        Ok(Self {
            context: context.clone(),
            raw: call("creating a stream", || {
                result::stream::create(result::stream::StreamKind::NonBlocking)
            })?,
        })
    }

    /// Zeroes memory.
    pub(crate) fn clear(&self, memory: &Memory) -> Result<(), Fault> {
        self.context.bind()?;
        // SAFETY: the whole allocation, kept by the caller until the stream has passed this point.
        call("clearing memory", || unsafe {
            result::memset_d8_async(memory.raw, 0, memory.n_bytes, self.raw)
        })
    }

    /// Copies the first `n_bytes` of pinned memory to the device.
    pub(crate) fn upload(
        &self,
        source: Option<&Pinned>,
        target: &Memory,
        offset: u64,
        n_bytes: usize,
    ) -> Result<(), Fault> {
        self.context.bind()?;
        let address = target.check(offset, n_bytes)?;
        let bytes = Pinned::check(source, n_bytes)?.bytes();
        // SAFETY: both ranges were checked; the caller keeps both until the stream has passed this point and does
        // not write the source.
        call("copying to the device", || unsafe {
            result::memcpy_htod_async(address, &bytes[..n_bytes], self.raw)
        })
    }

    /// Copies a range of the device to the start of pinned memory.
    pub(crate) fn download(
        &self,
        source: &Memory,
        offset: u64,
        n_bytes: usize,
        target: Option<&Pinned>,
    ) -> Result<(), Fault> {
        self.context.bind()?;
        let address = source.check(offset, n_bytes)?;
        let raw = Pinned::check(target, n_bytes)?.raw;
        // SAFETY: both ranges were checked; the caller keeps both until the stream has passed this point, and looks
        // at the target neither before nor while others may.
        call("copying to the host", || unsafe {
            sys::cuMemcpyDtoHAsync_v2(raw.cast(), address, n_bytes, self.raw).result()
        })
    }

    /// Copies between memory of this stream's context and of the same or of another one.
    pub(crate) fn copy(
        &self,
        source: &Memory,
        source_offset: u64,
        target: &Memory,
        target_offset: u64,
        n_bytes: usize,
    ) -> Result<(), Fault> {
        self.context.bind()?;
        let from = source.check(source_offset, n_bytes)?;
        let to = target.check(target_offset, n_bytes)?;
        let (source, target) = (source.context.raw, target.context.raw);
        // SAFETY: both ranges were checked; the caller keeps both until the stream has passed this point.
        call("copying between devices", || unsafe {
            if source == target {
                result::memcpy_dtod_async(to, from, n_bytes, self.raw)
            } else {
                result::memcpy_peer_async(target, to, source, from, n_bytes, self.raw)
            }
        })
    }

    /// Comes after the point that an event marks, of whatever context.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), Fault> {
        self.context.bind()?;
        // SAFETY: both live. The driver notes what the event marks now; it needs the event no longer.
        call("waiting for an event", || unsafe {
            result::stream::wait_event(
                self.raw,
                event.raw,
                sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT,
            )
        })
    }

    /// Marks the point that the stream has reached.
    pub(crate) fn record(&self, event: &Event) -> Result<(), Fault> {
        self.context.bind()?;
        // SAFETY: both live, and are of one context.
        call("recording an event", || unsafe {
            result::event::record(event.raw, self.raw)
        })
    }

    /// Launches a kernel.
    pub(crate) fn launch(&self, kernel: &Kernel) -> Result<(), Fault> {
        // A grid without blocks is nothing to do, but CUDA refuses it.
        if kernel.grid.contains(&0) {
            return Ok(());
        }
        self.context.bind()?;
        // The driver takes the address of each argument, and copies what the kernel's signature says.
        let mut addresses: Vec<*mut c_void> = kernel
            .pointers
            .iter()
            .map(|pointer| std::ptr::from_ref(pointer).cast_mut().cast())
            .chain([kernel.params.as_ptr().cast_mut().cast()])
            .collect();
        let [x, y, z] = kernel.grid;
        // SAFETY: the function's module is kept by `kernel.function`. The arguments are those of the generated
        // prelude: a pointer a binding, then the block, which is padded beyond the size that the kernel reads. What
        // the pointers name is kept by the recording until its work has finished.
        call(&kernel.name, || unsafe {
            result::launch_kernel(
                kernel.function.raw,
                (x, y, z),
                (kernel.threads, 1, 1),
                kernel.shared_bytes,
                self.raw,
                &mut addresses,
            )
        })
    }

    /// Launches kernels and waits for each, so that a failure has a name.
    pub(crate) fn launch_each(&self, kernels: &[Kernel]) -> Result<(), Fault> {
        for kernel in kernels {
            self.launch(kernel)?;
            // SAFETY: the stream lives as long as `self`.
            call(&kernel.name, || unsafe {
                result::stream::synchronize(self.raw)
            })?;
        }
        Ok(())
    }

    /// Records launches without running them.
    pub(crate) fn capture(&self, kernels: &[Kernel]) -> Result<Graph, Fault> {
        self.context.bind()?;
        // Thread-local: what other threads do in the meantime is none of the capture's business.
        // SAFETY: the stream lives as long as `self`.
        call("beginning a capture", || unsafe {
            result::stream::begin_capture(
                self.raw,
                sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            )
        })?;
        let launched = kernels.iter().try_for_each(|kernel| self.launch(kernel));
        // SAFETY: the capture was begun above, by this thread.
        let graph = call("ending a capture", || unsafe {
            result::stream::end_capture(self.raw)
        });
        // A failed launch also fails the end of the capture; its own error says more.
        launched?;
        let graph = graph?;
        // SAFETY: the graph is whole and is used here only.
        let raw = call("preparing a graph", || unsafe {
            result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0))
        });
        // SAFETY: the executable graph is a copy; this one is destroyed once.
        let destroyed = call("destroying a graph", || unsafe {
            result::graph::destroy(graph)
        });
        let graph = Graph {
            context: self.context.clone(),
            raw: raw?,
        };
        destroyed.map(|()| graph)
    }

    /// Runs a graph.
    pub(crate) fn replay(&self, graph: &Graph) -> Result<(), Fault> {
        self.context.bind()?;
        // SAFETY: both live; the caller keeps the graph and all it touches until the stream has passed this point.
        call("launching a graph", || unsafe {
            result::graph::launch(graph.raw, self.raw)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created once in `new`, destroyed once here; work in flight goes on.
            let _ = call("destroying a stream", || unsafe {
                result::stream::destroy(self.raw)
            });
        }
    }
}

/// Launches as one unit.
#[derive(Debug)]
pub(crate) struct Graph {
    context: Arc<Context>,
    raw: sys::CUgraphExec,
}

// SAFETY: an executable graph may be launched by any thread; the device's lock makes it one at a time.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: instantiated once, destroyed once here.
            let _ = call("destroying a graph", || unsafe {
                result::graph::exec_destroy(self.raw)
            });
        }
    }
}

/// An entry point of a loaded module.
#[derive(Debug)]
pub(crate) struct Function {
    context: Arc<Context>,
    module: sys::CUmodule,
    raw: sys::CUfunction,
}

// SAFETY: modules and functions are read-only handles, usable in any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Loads a module from its image and finds an entry.
    pub(crate) fn load(context: &Arc<Context>, image: &[u8], entry: &str) -> Result<Self, Fault> {
        context.bind()?;
        let entry = CString::new(entry).map_err(|_| Fault {
            code: None,
            text: format!("the entry `{entry}` has a zero byte in its name"),
        })?;
        // SAFETY: the image comes from the compiler or from the cache, which checks that it is whole; it is ELF,
        // whose headers tell the driver its length, or PTX with the zero byte at its end.
        let module = call("loading a module", || unsafe {
            result::module::load_data(image.as_ptr().cast())
        })?;
        let mut function = Self {
            context: context.clone(),
            module,
            raw: std::ptr::null_mut(),
        };
        // SAFETY: the module was just loaded.
        function.raw = call("finding the entry of a module", || unsafe {
            result::module::get_function(module, entry)
        })?;
        Ok(function)
    }

    /// Allows launches with this much dynamic shared memory.
    pub(crate) fn allow_shared(&self, n_bytes: u32) -> Result<(), Fault> {
        self.context.bind()?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let n_bytes = i32::try_from(n_bytes).unwrap_or(i32::MAX);
        // SAFETY: the function lives as long as `self`.
        call("reserving shared memory", || unsafe {
            result::function::set_function_attribute(self.raw, attribute, n_bytes)
        })
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded once, unloaded once here; recordings keep the function until their work has finished.
            let _ = call("unloading a module", || unsafe {
                result::module::unload(self.module)
            });
        }
    }
}

/// One launch, ready to be made.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Op, entry and specialisation, for messages.
    pub(crate) name: String,
    pub(crate) function: Arc<Function>,
    pub(crate) grid: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    /// Addresses of the bindings, in order.
    pub(crate) pointers: Vec<u64>,
    /// The parameter block.
    pub(crate) params: Vec<u8>,
}

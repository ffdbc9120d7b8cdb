// A pretend `libcuda.so.1` over `runtime.cpp`: a program that loads the driver at run time runs its kernels on the CPU.
//
// A module's image is the bytes of a shared object where CUDA takes a cubin. Device memory is host memory between
// guards. Streams run at once, or, with GEMEL_EMULATION_ASYNC, on a thread each with seeded delays. Errors follow the
// real driver's rules where a program could break them. Unlike the real driver, it also says on stderr what happened.
#include "emulation.hpp"
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <elf.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

namespace {

enum Status {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    PEER_ACCESS_UNSUPPORTED = 217,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    ILLEGAL_STATE = 401,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
};

struct Meaning {
    int status;
    const char *name, *text;
};
constexpr Meaning MEANINGS[] = {
    {OK, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these devices"},
    {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "failed earlier during capture"},
    {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "depends on uncaptured work in another stream"},
    {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "event last recorded in a capturing stream"},
};

using Address = uint64_t;
using Work = std::function<int()>;
using Emulated = int (*)(const unsigned* grid, const unsigned* block, size_t shared_bytes, void** arguments);

constexpr int MAX_DEVICES = 16;
constexpr size_t GUARD_BYTES = 256;
constexpr unsigned STATIC_SHARED_LIMIT = 48 << 10;
constexpr unsigned SHARED_LIMIT = 99 << 10;

long setting(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text && *text ? strtol(text, nullptr, 10) : otherwise;
}

int n_devices() {
    static const int n = int(std::min(setting("GEMEL_EMULATION_DEVICES", 1), long(MAX_DEVICES)));
    return n;
}

size_t memory_bytes() { return size_t(setting("GEMEL_EMULATION_MB", 4096)) << 20; }

// The seed of delays; 0 when streams run at once.
unsigned delay_seed() {
    static const char* text = getenv("GEMEL_EMULATION_ASYNC");
    static const unsigned seed = text && *text ? unsigned(strtoul(text, nullptr, 10)) + 1 : 0;
    return seed;
}

// Peer access: "yes", "no", or a driver that says yes and lies: "garbage" copies something else, "drop" nothing, both
// with success. The driver's own detour where there is no access ("no") is no better: nobody may rely on it.
const char* peer_access() {
    const char* text = getenv("GEMEL_EMULATION_PEER");
    return text && *text ? text : "yes";
}
bool peer_is(const char* what) { return strcmp(peer_access(), what) == 0; }

double now_ms() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

struct Graph {
    std::vector<Work> works;
    std::set<struct Stream*> streams;
    struct Stream* origin = nullptr;
    int mode = 0;
    std::thread::id thread;
    bool invalid = false;
};

struct EventState {
    // Where it was recorded: nothing reaches it once that is broken.
    std::atomic<struct Context*> context = nullptr;
    std::mutex lock;
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0;
    double at_ms = 0;
    bool timed = true;
    std::weak_ptr<Graph> capture;
    bool captured = false;
};

struct Event {
    std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

struct Context {
    int device = 0;
    unsigned retained = 0;
    std::atomic<int> broken = OK;
    std::mutex lock;
    std::set<Stream*> streams;
    std::unique_ptr<Stream> null_stream;
    std::set<Context*> peers;
};

// Work in order. With delays it has a thread of its own.
struct Stream {
    Context* context;
    bool blocking;
    std::shared_ptr<Graph> capture;

    Stream(Context* owner, bool is_blocking) : context(owner), blocking(is_blocking) {
        static std::atomic<unsigned> n_streams = 0;
        if (delay_seed()) {
            random.seed(delay_seed() * 1000 + n_streams++);
            worker = std::thread([this] { serve(); });
        }
    }

    ~Stream() {
        if (worker.joinable()) {
            {
                std::lock_guard guard(lock);
                ending = true;
            }
            changed.notify_all();
            worker.join();
        }
    }

    void push(Work work) {
        if (!worker.joinable()) {
            std::lock_guard guard(running);
            perform(work);
            return;
        }
        std::lock_guard guard(lock);
        queue.push_back(std::move(work));
        changed.notify_all();
    }

    bool idle() {
        std::lock_guard guard(lock);
        return queue.empty();
    }

    void drain() {
        std::unique_lock guard(lock);
        changed.wait(guard, [this] { return queue.empty(); });
    }

  private:
    void perform(const Work& work) {
        // A broken context does nothing any more; waits end.
        if (context->broken == OK) {
            if (int status = work()) {
                int fine = OK;
                context->broken.compare_exchange_strong(fine, status);
            }
        }
    }

    void serve() {
        std::unique_lock guard(lock);
        while (true) {
            changed.wait(guard, [this] { return ending || !queue.empty(); });
            if (queue.empty()) {
                return;
            }
            guard.unlock();
            // Half of all works start late.
            unsigned delay = random() % 600;
            if (delay < 300) {
                std::this_thread::sleep_for(std::chrono::microseconds(delay));
            }
            perform(queue.front());
            guard.lock();
            queue.pop_front();
            changed.notify_all();
        }
    }

    std::mutex lock, running;
    std::condition_variable changed;
    std::deque<Work> queue;
    std::thread worker;
    std::mt19937 random;
    bool ending = false;
};

struct Module {
    void* object;
    unsigned static_shared;
    std::vector<std::unique_ptr<struct Function>> functions;
};

struct Function {
    std::string name;
    Emulated run;
    unsigned threads, static_shared;
    std::vector<unsigned> sizes;
    unsigned dynamic_limit = STATIC_SHARED_LIMIT;
};

struct Allocation {
    size_t bytes;
    int device;
    char* whole;
};

struct Everything {
    std::mutex lock;
    std::map<Address, Allocation> memory;
    std::map<Address, size_t> pinned;
    size_t used[MAX_DEVICES] = {};
    Context contexts[MAX_DEVICES];
    std::set<const void*> handles;
    std::vector<std::shared_ptr<Graph>> captures;
};

// Never destroyed: threads of streams may outlive main.
Everything& all() {
    static auto* everything = new Everything;
    return *everything;
}

thread_local std::vector<Context*> current_contexts(1, nullptr);
Context*& current_context() { return current_contexts.back(); }

template <class T> T* known(T* handle) {
    std::lock_guard guard(all().lock);
    all().handles.insert(handle);
    return handle;
}
bool is_known(const void* handle) {
    std::lock_guard guard(all().lock);
    return all().handles.count(handle) != 0;
}
bool forget(const void* handle) {
    std::lock_guard guard(all().lock);
    return all().handles.erase(handle) != 0;
}

int context_status() { return current_context() ? int(current_context()->broken) : INVALID_CONTEXT; }

// What may not happen while a graph is captured ends the capture.
int not_while_capturing() {
    std::lock_guard guard(all().lock);
    int status = OK;
    for (auto& graph : all().captures) {
        if (graph->mode == 0 || (graph->mode == 1 && graph->thread == std::this_thread::get_id())) {
            graph->invalid = true;
            status = CAPTURE_UNSUPPORTED;
        }
    }
    return status;
}

Stream* null_stream(Context& context) {
    std::lock_guard guard(context.lock);
    if (!context.null_stream) {
        context.null_stream = std::make_unique<Stream>(&context, true);
    }
    return context.null_stream.get();
}

bool is_null(const void* handle) { return Address(handle) <= 2; }

int find_stream(void* handle, Stream*& stream) {
    if (int status = context_status()) {
        return status;
    }
    if (is_null(handle)) {
        stream = null_stream(*current_context());
        return OK;
    }
    stream = static_cast<Stream*>(handle);
    return is_known(handle) ? int(stream->context->broken) : INVALID_HANDLE;
}

std::vector<Stream*> streams_of(Context& context) {
    std::lock_guard guard(context.lock);
    return {context.streams.begin(), context.streams.end()};
}

void drain_all(Context& context) {
    for (Stream* stream : streams_of(context)) {
        stream->drain();
    }
    null_stream(context)->drain();
}

// Appends to a stream or to the graph it captures.
int enqueue(void* handle, Work work) {
    Stream* stream;
    if (int status = find_stream(handle, stream)) {
        return status;
    }
    if (stream->capture) {
        if (stream->capture->invalid) {
            return CAPTURE_INVALIDATED;
        }
        stream->capture->works.push_back(std::move(work));
        return OK;
    }
    if (is_null(handle)) {
        if (int status = not_while_capturing()) {
            return status;
        }
        // The null stream comes after all blocking streams, and they after it.
        for (Stream* other : streams_of(*stream->context)) {
            if (other->blocking) {
                other->drain();
            }
        }
    } else if (stream->blocking) {
        null_stream(*stream->context)->drain();
    }
    // What goes wrong from here on, a later call reports, as the real driver does.
    stream->push(std::move(work));
    return OK;
}

int finish(void* handle) {
    Stream* stream;
    if (int status = find_stream(handle, stream)) {
        return status;
    }
    if (stream->capture) {
        stream->capture->invalid = true;
        return CAPTURE_UNSUPPORTED;
    }
    stream->drain();
    return stream->context->broken;
}

bool capturing(void* handle) {
    Stream* stream;
    return find_stream(handle, stream) == OK && stream->capture;
}

// A pattern that is NaN in f32, f16 and bf16.
void fill_guard(char* at) {
    for (size_t i = 0; i < GUARD_BYTES; i += 2) {
        at[i] = char(0xff);
        at[i + 1] = 0x7f;
    }
}

bool guard_whole(const char* at) {
    for (size_t i = 0; i < GUARD_BYTES; i += 2) {
        if (at[i] != char(0xff) || at[i + 1] != 0x7f) {
            return false;
        }
    }
    return true;
}

// Whether a kernel wrote next to an allocation. Mends what it finds, so that it is said once.
bool guards_whole(const char* after) {
    std::lock_guard guard(all().lock);
    bool whole = true;
    for (auto& [address, allocation] : all().memory) {
        char* ends[2] = {allocation.whole, allocation.whole + GUARD_BYTES + allocation.bytes};
        for (char* end : ends) {
            if (!guard_whole(end)) {
                fprintf(stderr, "emulation: %s wrote %s an allocation of %zu bytes\n", after,
                        end == ends[0] ? "before" : "behind", allocation.bytes);
                fill_guard(end);
                whole = false;
            }
        }
    }
    return whole;
}

// Whether the bytes lie in one live allocation.
bool owned(Address at, size_t bytes) {
    if (bytes == 0) {
        return true;
    }
    std::lock_guard guard(all().lock);
    auto found = all().memory.upper_bound(at);
    if (found == all().memory.begin()) {
        return false;
    }
    --found;
    return at - found->first <= found->second.bytes && bytes <= found->second.bytes - (at - found->first);
}

bool is_pinned(const void* at, size_t bytes) {
    std::lock_guard guard(all().lock);
    auto found = all().pinned.upper_bound(Address(at));
    if (found == all().pinned.begin()) {
        return false;
    }
    --found;
    return Address(at) - found->first + bytes <= found->second;
}

int allocate(Address* to, size_t bytes) {
    if (int status = context_status()) {
        return status;
    }
    if (!to || bytes == 0) {
        return INVALID_VALUE;
    }
    int device = current_context()->device;
    std::lock_guard guard(all().lock);
    if (bytes > memory_bytes() || all().used[device] > memory_bytes() - bytes) {
        return OUT_OF_MEMORY;
    }
    void* whole = nullptr;
    if (posix_memalign(&whole, GUARD_BYTES, bytes + 2 * GUARD_BYTES) != 0) {
        return OUT_OF_MEMORY;
    }
    auto* at = static_cast<char*>(whole);
    fill_guard(at);
    fill_guard(at + GUARD_BYTES + bytes);
    *to = Address(at + GUARD_BYTES);
    // Not a number in any float format.
    memset(at + GUARD_BYTES, 0xff, bytes);
    all().memory[*to] = {bytes, device, at};
    all().used[device] += bytes;
    return OK;
}

// Takes an allocation off the books; its bytes still exist.
bool take(Address at, Allocation& allocation) {
    std::lock_guard guard(all().lock);
    auto found = all().memory.find(at);
    if (found == all().memory.end()) {
        return false;
    }
    allocation = found->second;
    all().used[allocation.device] -= allocation.bytes;
    all().memory.erase(found);
    return true;
}

// Destroys what a context holds.
void clear(Context& context) {
    drain_all(context);
    std::vector<char*> dead;
    {
        std::lock_guard guard(all().lock);
        for (auto i = all().memory.begin(); i != all().memory.end();) {
            if (i->second.device == context.device) {
                dead.push_back(i->second.whole);
                i = all().memory.erase(i);
            } else {
                ++i;
            }
        }
        all().used[context.device] = 0;
    }
    for (char* whole : dead) {
        free(whole);
    }
    context.broken = OK;
    std::lock_guard guard(context.lock);
    context.peers.clear();
}

unsigned shared_of_image(const char* image) {
    auto* header = reinterpret_cast<const Elf64_Ehdr*>(image);
    auto* segments = reinterpret_cast<const Elf64_Phdr*>(image + header->e_phoff);
    for (int i = 0; i < header->e_phnum; i++) {
        if (segments[i].p_type == PT_TLS) {
            return unsigned(segments[i].p_memsz);
        }
    }
    return 0;
}

int load_object(const char* path, unsigned static_shared, Module** module) {
    void* object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        fprintf(stderr, "emulation: the module does not load: %s\n", dlerror());
        return INVALID_IMAGE;
    }
    *module = known(new Module{object, static_shared, {}});
    return OK;
}

} // namespace

// --- devices and contexts -------------------------------------------------------------------------------------------

API cuInit(unsigned) {
    // Modules look for the runtime among the global symbols; however this library was loaded, make its own global.
    static const bool global = [] {
        Dl_info info;
        return dladdr(reinterpret_cast<void*>(&n_devices), &info) &&
               (dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) || !strstr(info.dli_fname, ".so"));
    }();
    return global && n_devices() > 0 ? OK : NO_DEVICE;
}
API cuDriverGetVersion(int* version) {
    *version = int(setting("GEMEL_EMULATION_VERSION", 12090));
    return OK;
}
API cuDeviceGetCount(int* n) {
    *n = n_devices();
    return OK;
}
API cuDeviceGet(int* device, int ordinal) {
    if (ordinal < 0 || ordinal >= n_devices()) {
        return INVALID_DEVICE;
    }
    *device = ordinal;
    return OK;
}
API cuDeviceGetName(char* name, int bytes, int device) {
    snprintf(name, size_t(bytes), "Gemel emulation %d", device);
    return OK;
}
API cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    memset(uuid, 0, 16);
    uuid[15] = (unsigned char)device;
    return OK;
}
API cuDeviceGetUuid(unsigned char* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
API cuDeviceGetPCIBusId(char* text, int bytes, int device) {
    snprintf(text, size_t(bytes), "0000:%02x:00.0", device + 1);
    return OK;
}
API cuDeviceTotalMem_v2(size_t* bytes, int) {
    *bytes = memory_bytes();
    return OK;
}
API cuDeviceGetAttribute(int* value, int attribute, int device) {
    if (device < 0 || device >= n_devices()) {
        return INVALID_DEVICE;
    }
    int capability = int(setting("GEMEL_EMULATION_CC", 80));
    const std::map<int, int> values = {
        {1, 1024},           // threads of a block
        {2, 1024},           // along x
        {3, 1024},           // along y
        {4, 64},             // along z
        {5, 0x7fffffff},     // blocks along x
        {6, 65535},          // along y
        {7, 65535},          // along z
        {8, STATIC_SHARED_LIMIT},
        {9, 64 << 10},       // constant memory
        {10, 32},            // warp
        {12, 65536},         // registers of a block
        {13, 1000000},       // clock, kHz
        {16, 4},             // multiprocessors
        {19, 1},             // maps host memory
        {31, 1},             // concurrent kernels
        {33, device + 1},    // PCI bus
        {36, 1000000},       // memory clock, kHz
        {37, 64},            // memory bus, bits
        {38, 4 << 20},       // second-level cache
        {39, 1536},          // threads of a multiprocessor
        {40, 2},             // copy engines
        {41, 1},             // unified addressing
        {75, capability / 10},
        {76, capability % 10},
        {81, 100 << 10},     // shared memory of a multiprocessor
        {82, 65536},         // registers of a multiprocessor
        {97, SHARED_LIMIT},  // shared memory of a block that asks for it
        {106, 16},           // blocks of a multiprocessor
        {115, 1},            // memory pools
    };
    auto found = values.find(attribute);
    *value = found == values.end() ? 0 : found->second;
    return OK;
}
API cuDeviceCanAccessPeer(int* can, int device, int peer) {
    *can = device != peer && !peer_is("no");
    return OK;
}
API cuCtxEnablePeerAccess(Context* peer, unsigned) {
    if (int status = context_status()) {
        return status;
    }
    if (!peer || peer == current_context()) {
        return INVALID_CONTEXT;
    }
    if (peer_is("no")) {
        return PEER_ACCESS_UNSUPPORTED;
    }
    std::lock_guard guard(current_context()->lock);
    return current_context()->peers.insert(peer).second ? OK : PEER_ACCESS_ALREADY_ENABLED;
}
API cuDevicePrimaryCtxRetain(Context** context, int device) {
    if (device < 0 || device >= n_devices()) {
        return INVALID_DEVICE;
    }
    std::lock_guard guard(all().lock);
    *context = &all().contexts[device];
    (*context)->device = device;
    (*context)->retained++;
    return OK;
}
API cuDevicePrimaryCtxRelease_v2(int device) {
    if (device < 0 || device >= n_devices()) {
        return INVALID_DEVICE;
    }
    Context& context = all().contexts[device];
    {
        std::lock_guard guard(all().lock);
        if (context.retained == 0) {
            return INVALID_CONTEXT;
        }
        if (--context.retained > 0) {
            return OK;
        }
    }
    clear(context);
    return OK;
}
API cuDevicePrimaryCtxReset_v2(int device) {
    if (device < 0 || device >= n_devices()) {
        return INVALID_DEVICE;
    }
    clear(all().contexts[device]);
    return OK;
}
API cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return OK; }
API cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
    *flags = 0;
    *active = all().contexts[device].retained > 0;
    return OK;
}
API cuCtxSetCurrent(Context* context) {
    current_context() = context;
    return OK;
}
API cuCtxGetCurrent(Context** context) {
    *context = current_context();
    return OK;
}
API cuCtxPushCurrent_v2(Context* context) {
    current_contexts.push_back(context);
    return OK;
}
API cuCtxPopCurrent_v2(Context** context) {
    if (current_contexts.size() < 2) {
        return INVALID_CONTEXT;
    }
    if (context) {
        *context = current_context();
    }
    current_contexts.pop_back();
    return OK;
}
API cuCtxGetDevice(int* device) {
    if (!current_context()) {
        return INVALID_CONTEXT;
    }
    *device = current_context()->device;
    return OK;
}
API cuCtxSynchronize() {
    if (int status = context_status()) {
        return status;
    }
    if (int status = not_while_capturing()) {
        return status;
    }
    drain_all(*current_context());
    return context_status();
}
API cuCtxSetFlags(unsigned) { return OK; }
API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = *greatest = 0;
    return OK;
}
API cuCtxSetLimit(int, size_t) { return OK; }
API cuCtxGetLimit(size_t* value, int) {
    *value = 0;
    return OK;
}

// --- memory ---------------------------------------------------------------------------------------------------------

API cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    if (int status = context_status()) {
        return status;
    }
    std::lock_guard guard(all().lock);
    *total = memory_bytes();
    size_t used = all().used[current_context()->device];
    *free_bytes = used < *total ? *total - used : 0;
    return OK;
}
API cuMemAlloc_v2(Address* to, size_t bytes) {
    if (int status = not_while_capturing()) {
        return status;
    }
    return allocate(to, bytes);
}
API cuMemFree_v2(Address at) {
    if (at == 0) {
        return OK;
    }
    Allocation allocation;
    if (!take(at, allocation)) {
        return INVALID_VALUE;
    }
    // Frees wait for the device, as the real ones do.
    drain_all(all().contexts[allocation.device]);
    free(allocation.whole);
    return current_context() ? context_status() : OK;
}
API cuMemAllocAsync(Address* to, size_t bytes, void* stream) {
    if (capturing(stream)) {
        return NOT_SUPPORTED;
    }
    if (int status = allocate(to, bytes)) {
        return status;
    }
    // Only from here on in the stream's order are the bytes there to write.
    Address at = *to;
    return delay_seed() ? enqueue(stream,
                                  [=] {
                                      if (owned(at, bytes)) {
                                          memset(reinterpret_cast<void*>(at), 0xff, bytes);
                                      }
                                      return OK;
                                  })
                        : OK;
}
API cuMemFreeAsync(Address at, void* stream) {
    if (capturing(stream)) {
        return NOT_SUPPORTED;
    }
    Allocation allocation;
    if (!take(at, allocation)) {
        return INVALID_VALUE;
    }
    if (!delay_seed()) {
        free(allocation.whole);
        return OK;
    }
    return enqueue(stream, [=] {
        free(allocation.whole);
        return OK;
    });
}
API cuMemHostAlloc(void** to, size_t bytes, unsigned) {
    if (int status = context_status()) {
        return status;
    }
    if (bytes == 0) {
        return INVALID_VALUE;
    }
    if (posix_memalign(to, 4096, bytes) != 0) {
        return OUT_OF_MEMORY;
    }
    std::lock_guard guard(all().lock);
    all().pinned[Address(*to)] = bytes;
    return OK;
}
API cuMemAllocHost_v2(void** to, size_t bytes) { return cuMemHostAlloc(to, bytes, 0); }
API cuMemFreeHost(void* at) {
    {
        std::lock_guard guard(all().lock);
        if (!all().pinned.erase(Address(at))) {
            return INVALID_VALUE;
        }
    }
    if (current_context()) {
        drain_all(*current_context());
    }
    free(at);
    return OK;
}
API cuMemHostGetDevicePointer_v2(Address* to, void* at, unsigned) {
    *to = Address(at);
    return OK;
}
API cuMemHostGetFlags(unsigned* flags, void* at) {
    *flags = 0;
    return is_pinned(at, 1) ? OK : INVALID_VALUE;
}

// A copy to or from memory that is not pinned makes the host wait; a program that promises not to is held to it.
static bool refused(const void* host, size_t bytes) {
    return setting("GEMEL_EMULATION_PINNED_ONLY", 0) && !is_pinned(host, bytes);
}

API cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
    if (!owned(to, bytes) || refused(from, bytes)) {
        return INVALID_VALUE;
    }
    if (delay_seed() && !capturing(stream) && !is_pinned(from, bytes)) {
        // The driver stages pageable memory before it returns; pinned memory is read when the copy runs.
        auto* begin = static_cast<const char*>(from);
        auto staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
        return enqueue(stream, [=] {
            memcpy(reinterpret_cast<void*>(to), staged->data(), bytes);
            return OK;
        });
    }
    return enqueue(stream, [=] {
        memcpy(reinterpret_cast<void*>(to), from, bytes);
        return OK;
    });
}
API cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
    if (!owned(from, bytes) || refused(to, bytes)) {
        return INVALID_VALUE;
    }
    int status = enqueue(stream, [=] {
        memcpy(to, reinterpret_cast<void*>(from), bytes);
        return OK;
    });
    if (status || capturing(stream) || is_pinned(to, bytes)) {
        return status;
    }
    // Into pageable memory the call returns with the bytes there.
    return finish(stream);
}
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* stream) {
    if (!owned(to, bytes) || !owned(from, bytes)) {
        return INVALID_VALUE;
    }
    return enqueue(stream, [=] {
        memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
        return OK;
    });
}
API cuMemcpyPeerAsync(Address to, Context* to_context, Address from, Context* from_context, size_t bytes,
                      void* stream) {
    if (!to_context || !from_context || !owned(to, bytes) || !owned(from, bytes)) {
        return INVALID_VALUE;
    }
    bool honest = to_context == from_context || peer_is("yes");
    bool drops = peer_is("drop");
    return enqueue(stream, [=] {
        if (honest) {
            memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
        } else if (!drops) {
            memset(reinterpret_cast<void*>(to), 0x21, bytes);
        }
        return OK;
    });
}
API cuMemcpyAsync(Address to, Address from, size_t bytes, void* stream) {
    if (owned(to, bytes)) {
        return owned(from, bytes) ? cuMemcpyDtoDAsync_v2(to, from, bytes, stream)
                                  : cuMemcpyHtoDAsync_v2(to, reinterpret_cast<void*>(from), bytes, stream);
    }
    return cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(to), from, bytes, stream);
}
API cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
    int status = cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
    return status ? status : finish(nullptr);
}
API cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) {
    int status = cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr);
    return status ? status : finish(nullptr);
}
API cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr);
}
API cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void* stream) {
    if (!owned(to, bytes)) {
        return INVALID_VALUE;
    }
    return enqueue(stream, [=] {
        memset(reinterpret_cast<void*>(to), value, bytes);
        return OK;
    });
}
API cuMemsetD8_v2(Address to, unsigned char value, size_t bytes) { return cuMemsetD8Async(to, value, bytes, nullptr); }
API cuMemsetD32Async(Address to, unsigned value, size_t n, void* stream) {
    if (to % 4 != 0 || !owned(to, 4 * n)) {
        return INVALID_VALUE;
    }
    return enqueue(stream, [=] {
        std::fill_n(reinterpret_cast<unsigned*>(to), n, value);
        return OK;
    });
}
API cuMemsetD32_v2(Address to, unsigned value, size_t n) { return cuMemsetD32Async(to, value, n, nullptr); }
API cuDeviceGetDefaultMemPool(void** pool, int device) {
    *pool = &all().contexts[device];
    return OK;
}
API cuDeviceGetMemPool(void** pool, int device) { return cuDeviceGetDefaultMemPool(pool, device); }
API cuMemPoolSetAttribute(void*, int, void*) { return OK; }
API cuMemPoolTrimTo(void*, size_t) { return OK; }

// --- streams and events ---------------------------------------------------------------------------------------------

API cuStreamCreate(void** to, unsigned flags) {
    if (int status = context_status()) {
        return status;
    }
    auto* stream = known(new Stream(current_context(), !(flags & 1)));
    std::lock_guard guard(stream->context->lock);
    stream->context->streams.insert(stream);
    *to = stream;
    return OK;
}
API cuStreamCreateWithPriority(void** to, unsigned flags, int) { return cuStreamCreate(to, flags); }
API cuStreamDestroy_v2(Stream* stream) {
    if (is_null(stream) || !forget(stream)) {
        return INVALID_HANDLE;
    }
    {
        std::lock_guard guard(stream->context->lock);
        stream->context->streams.erase(stream);
    }
    // The real driver lets the stream's work end by itself.
    stream->drain();
    delete stream;
    return OK;
}
API cuStreamSynchronize(void* stream) { return finish(stream); }
API cuStreamQuery(void* handle) {
    Stream* stream;
    if (int status = find_stream(handle, stream)) {
        return status;
    }
    return stream->idle() ? OK : NOT_READY;
}
API cuStreamGetCtx(void* handle, Context** context) {
    Stream* stream;
    if (int status = find_stream(handle, stream)) {
        return status;
    }
    *context = stream->context;
    return OK;
}
API cuEventCreate(Event** to, unsigned flags) {
    if (int status = context_status()) {
        return status;
    }
    *to = known(new Event);
    (*to)->state->timed = !(flags & 2);
    return OK;
}
API cuEventDestroy_v2(Event* event) {
    if (!forget(event)) {
        return INVALID_HANDLE;
    }
    delete event;
    return OK;
}
API cuEventRecord(Event* event, void* handle) {
    Stream* stream;
    if (int status = find_stream(handle, stream)) {
        return status;
    }
    if (!is_known(event)) {
        return INVALID_HANDLE;
    }
    auto state = event->state;
    uint64_t record;
    {
        std::lock_guard guard(state->lock);
        state->captured = stream->capture != nullptr;
        state->capture = stream->capture;
        if (state->captured) {
            return OK;
        }
        record = ++state->recorded;
        state->context = stream->context;
    }
    return enqueue(handle, [=] {
        std::lock_guard guard(state->lock);
        state->reached = std::max(state->reached, record);
        state->at_ms = now_ms();
        state->changed.notify_all();
        return OK;
    });
}
API cuEventRecordWithFlags(Event* event, void* handle, unsigned) { return cuEventRecord(event, handle); }
API cuStreamWaitEvent(void* handle, Event* event, unsigned) {
    Stream* stream;
    if (int status = find_stream(handle, stream)) {
        return status;
    }
    if (!is_known(event)) {
        return INVALID_HANDLE;
    }
    auto state = event->state;
    uint64_t record;
    {
        std::lock_guard guard(state->lock);
        if (state->captured) {
            auto graph = state->capture.lock();
            if (!graph || (stream->capture && stream->capture != graph)) {
                return CAPTURE_ISOLATION;
            }
            // The stream joins the capture. Works are replayed in the order of the calls, which fits every wait.
            stream->capture = graph;
            graph->streams.insert(stream);
            return OK;
        }
        record = state->recorded;
    }
    if (stream->capture) {
        stream->capture->invalid = true;
        return CAPTURE_ISOLATION;
    }
    // A planted fault: what a program looks like whose waits are missing.
    if (!delay_seed() || setting("GEMEL_EMULATION_IGNORE_WAITS", 0)) {
        return OK;
    }
    Context* context = stream->context;
    Context* origin = state->context;
    return enqueue(handle, [=] {
        std::unique_lock guard(state->lock);
        while (state->reached < record && context->broken == OK && (!origin || origin->broken == OK)) {
            state->changed.wait_for(guard, std::chrono::milliseconds(20));
        }
        return OK;
    });
}
API cuEventQuery(Event* event) {
    if (!is_known(event)) {
        return INVALID_HANDLE;
    }
    if (int status = context_status()) {
        return status;
    }
    std::lock_guard guard(event->state->lock);
    if (event->state->captured) {
        return CAPTURED_EVENT;
    }
    return event->state->reached >= event->state->recorded ? OK : NOT_READY;
}
API cuEventSynchronize(Event* event) {
    if (!is_known(event)) {
        return INVALID_HANDLE;
    }
    auto state = event->state;
    Context* context = current_context();
    std::unique_lock guard(state->lock);
    if (state->captured) {
        return CAPTURED_EVENT;
    }
    uint64_t record = state->recorded;
    while (state->reached < record && !(context && context->broken != OK)) {
        state->changed.wait_for(guard, std::chrono::milliseconds(20));
    }
    return context_status();
}
API cuEventElapsedTime_v2(float* ms, Event* first, Event* last) {
    if (!is_known(first) || !is_known(last)) {
        return INVALID_HANDLE;
    }
    for (Event* event : {first, last}) {
        std::lock_guard guard(event->state->lock);
        if (event->state->recorded == 0 || !event->state->timed) {
            return INVALID_HANDLE;
        }
        if (event->state->reached < event->state->recorded) {
            return NOT_READY;
        }
    }
    *ms = float(last->state->at_ms - first->state->at_ms);
    return OK;
}
API cuEventElapsedTime(float* ms, Event* first, Event* last) { return cuEventElapsedTime_v2(ms, first, last); }
API cuLaunchHostFunc(void* stream, void (*function)(void*), void* context) {
    return enqueue(stream, [=] {
        function(context);
        return OK;
    });
}

// --- modules and launches -------------------------------------------------------------------------------------------

API cuModuleLoadData(Module** module, const void* image) {
    if (int status = context_status()) {
        return status;
    }
    auto* bytes = static_cast<const char*>(image);
    if (!image || memcmp(bytes, ELFMAG, SELFMAG) != 0) {
        return INVALID_IMAGE;
    }
    auto* header = static_cast<const Elf64_Ehdr*>(image);
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_type != ET_DYN || header->e_machine != EM_X86_64) {
        return INVALID_IMAGE;
    }
    // The table of sections is the last thing that the linker writes.
    size_t size = header->e_shoff + size_t(header->e_shentsize) * header->e_shnum;
    // A name of its own: dlopen takes the same path for the same object, and so the path of a reused descriptor.
    const char* folder = getenv("TMPDIR");
    std::string path = std::string(folder && *folder ? folder : "/tmp") + "/gemel-module-XXXXXX";
    int file = mkstemp(path.data());
    if (file < 0) {
        return OUT_OF_MEMORY;
    }
    for (size_t at = 0; at < size;) {
        ssize_t written = write(file, bytes + at, size - at);
        if (written <= 0) {
            close(file);
            unlink(path.c_str());
            return OUT_OF_MEMORY;
        }
        at += size_t(written);
    }
    close(file);
    int status = load_object(path.c_str(), shared_of_image(bytes), module);
    unlink(path.c_str());
    return status;
}
API cuModuleLoadDataEx(Module** module, const void* image, unsigned, int*, void**) {
    return cuModuleLoadData(module, image);
}
API cuModuleLoad(Module** module, const char* path) {
    if (int status = context_status()) {
        return status;
    }
    return load_object(path, 0, module);
}
API cuModuleUnload(Module* module) {
    if (!forget(module)) {
        return INVALID_HANDLE;
    }
    if (current_context()) {
        drain_all(*current_context());
    }
    dlclose(module->object);
    delete module;
    return OK;
}
API cuModuleGetFunction(Function** function, Module* module, const char* name) {
    if (!is_known(module)) {
        return INVALID_HANDLE;
    }
    std::string entry = name;
    auto run = reinterpret_cast<Emulated>(dlsym(module->object, (entry + "__emulated").c_str()));
    auto arguments =
        reinterpret_cast<const unsigned* (*)()>(dlsym(module->object, (entry + "__arguments").c_str()));
    if (!run || !arguments) {
        return NOT_FOUND;
    }
    const unsigned* words = arguments();
    auto made = std::make_unique<Function>();
    made->name = entry;
    made->run = run;
    made->threads = words[1];
    made->static_shared = module->static_shared;
    made->sizes.assign(words + 2, words + 2 + words[0]);
    *function = made.get();
    module->functions.push_back(std::move(made));
    return OK;
}
API cuModuleGetGlobal_v2(Address*, size_t*, Module*, const char*) { return NOT_FOUND; }
API cuFuncSetAttribute(Function* function, int attribute, int value) {
    if (attribute == 8) {
        if (value < 0 || unsigned(value) + function->static_shared > SHARED_LIMIT) {
            return INVALID_VALUE;
        }
        function->dynamic_limit = unsigned(value);
    }
    return OK;
}
API cuFuncGetAttribute(int* value, int attribute, Function* function) {
    int capability = int(setting("GEMEL_EMULATION_CC", 80));
    switch (attribute) {
    case 0: *value = int(function->threads); break;
    case 1: *value = int(function->static_shared); break;
    case 4: *value = 32; break;
    case 5:
    case 6: *value = capability; break;
    case 8: *value = int(function->dynamic_limit); break;
    default: *value = 0;
    }
    return OK;
}
API cuFuncSetCacheConfig(Function*, int) { return OK; }
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, Function*, int threads, size_t) {
    *n = threads > 0 ? std::max(1, 1536 / threads) : 1;
    return OK;
}
API cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters,
                   void** extra) {
    uint64_t threads = uint64_t(block_x) * block_y * block_z;
    if (!function || extra || !grid_x || !grid_y || !grid_z || !threads || threads > 1024 || grid_x > 0x7fffffffu ||
        grid_y > 65535 || grid_z > 65535 || shared_bytes > function->dynamic_limit ||
        (!parameters && !function->sizes.empty())) {
        return INVALID_VALUE;
    }
    if (threads > function->threads) {
        fprintf(stderr, "emulation: %s is built for %u threads and launched with %zu\n", function->name.c_str(),
                function->threads, size_t(threads));
        return LAUNCH_OUT_OF_RESOURCES;
    }
    // Copied now: the caller's arguments may be gone when the launch runs or is replayed.
    std::vector<std::vector<char>> arguments;
    for (size_t i = 0; i < function->sizes.size(); i++) {
        auto* bytes = static_cast<const char*>(parameters[i]);
        arguments.emplace_back(bytes, bytes + function->sizes[i]);
    }
    auto run = function->run;
    auto name = function->name;
    return enqueue(stream, [=]() mutable -> int {
        static std::atomic<long> n_launches = 0;
        if (++n_launches == setting("GEMEL_EMULATION_LOSE_AT", 0)) {
            fprintf(stderr, "emulation: the device is lost at launch %ld, as asked for\n", n_launches.load());
            return LAUNCH_FAILED;
        }
        if (n_launches == setting("GEMEL_EMULATION_STALL_AT", 0)) {
            std::this_thread::sleep_for(std::chrono::milliseconds(setting("GEMEL_EMULATION_STALL_MS", 1000)));
        }
        std::vector<void*> pointers;
        for (auto& argument : arguments) {
            pointers.push_back(argument.data());
        }
        unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
        int status = run(grid, block, shared_bytes, pointers.data());
        return status ? status : guards_whole(name.c_str()) ? OK : ILLEGAL_ADDRESS;
    });
}

// --- graphs ---------------------------------------------------------------------------------------------------------

API cuStreamBeginCapture_v2(void* handle, int mode) {
    Stream* stream;
    if (int status = find_stream(handle, stream)) {
        return status;
    }
    if (is_null(handle)) {
        return CAPTURE_UNSUPPORTED;
    }
    if (stream->capture) {
        return ILLEGAL_STATE;
    }
    auto graph = std::make_shared<Graph>();
    graph->origin = stream;
    graph->mode = mode;
    graph->thread = std::this_thread::get_id();
    graph->streams.insert(stream);
    stream->capture = graph;
    std::lock_guard guard(all().lock);
    all().captures.push_back(graph);
    return OK;
}
API cuStreamEndCapture(void* handle, Graph** to) {
    Stream* stream;
    if (int status = find_stream(handle, stream)) {
        return status;
    }
    auto graph = stream->capture;
    if (!graph || graph->origin != stream) {
        return ILLEGAL_STATE;
    }
    for (Stream* joined : graph->streams) {
        joined->capture.reset();
    }
    {
        std::lock_guard guard(all().lock);
        std::erase(all().captures, graph);
    }
    if (graph->invalid) {
        *to = nullptr;
        return CAPTURE_INVALIDATED;
    }
    *to = known(new Graph(*graph));
    return OK;
}
API cuStreamIsCapturing(void* handle, int* state) {
    Stream* stream;
    if (int status = find_stream(handle, stream)) {
        return status;
    }
    *state = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
    return OK;
}
API cuGraphGetNodes(Graph* graph, void**, size_t* n) {
    *n = graph->works.size();
    return OK;
}
API cuGraphInstantiateWithFlags(Graph** to, Graph* graph, unsigned long long) {
    if (!is_known(graph)) {
        return INVALID_HANDLE;
    }
    *to = known(new Graph(*graph));
    return OK;
}
API cuGraphLaunch(Graph* graph, void* stream) {
    if (!is_known(graph)) {
        return INVALID_HANDLE;
    }
    auto works = std::make_shared<std::vector<Work>>(graph->works);
    return enqueue(stream, [=]() -> int {
        for (auto& work : *works) {
            if (int status = work()) {
                return status;
            }
        }
        return OK;
    });
}
API cuGraphUpload(Graph*, void*) { return OK; }
API cuGraphExecDestroy(Graph* graph) {
    if (!forget(graph)) {
        return INVALID_HANDLE;
    }
    delete graph;
    return OK;
}
API cuGraphDestroy(Graph* graph) { return cuGraphExecDestroy(graph); }

// --- the rest -------------------------------------------------------------------------------------------------------

API cuGetErrorName(int status, const char** text) {
    for (auto& meaning : MEANINGS) {
        if (meaning.status == status) {
            *text = meaning.name;
            return OK;
        }
    }
    *text = nullptr;
    return INVALID_VALUE;
}
API cuGetErrorString(int status, const char** text) {
    for (auto& meaning : MEANINGS) {
        if (meaning.status == status) {
            *text = meaning.text;
            return OK;
        }
    }
    *text = nullptr;
    return INVALID_VALUE;
}
API cuProfilerStart() { return OK; }
API cuProfilerStop() { return OK; }
API cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* found) {
    std::string symbol = name;
    *function = nullptr;
    // Newer versions of a function have a suffix.
    for (const char* suffix : {"_v2", ""}) {
        Dl_info info;
        if (!*function && dladdr(reinterpret_cast<void*>(&n_devices), &info)) {
            if (void* self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD)) {
                *function = dlsym(self, (symbol + suffix).c_str());
                dlclose(self);
            }
        }
    }
    if (found) {
        *found = *function ? 0 : 1;
    }
    return *function ? OK : NOT_FOUND;
}
API cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

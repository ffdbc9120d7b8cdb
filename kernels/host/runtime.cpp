// The scheduler behind `emulation.hpp`: a block's threads are fibers of one OS thread, blocks are spread over OS
// threads, barriers and warp operations put fibers to sleep. GEMEL_EMULATION_ORDER says in which order threads and
// blocks run: `forward`, `reverse`, or a number that seeds a random one. Results must not depend on it.
#include "emulation.hpp"
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <link.h>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if EMULATION_RACES
#include <sanitizer/tsan_interface.h>
#endif

namespace emulation {

constinit thread_local Identity* current = nullptr;
constinit thread_local Index block_index{}, grid_index{};
constinit thread_local unsigned char* dynamic_memory = nullptr;

namespace {

constexpr int LAUNCH_FAILED = 719;
constexpr size_t STACK_BYTES = 128 << 10;
constexpr unsigned MAX_THREADS = 1024;
// Bytes of this value are NaN in every float format: memory that nobody wrote shows.
constexpr int UNSET = 0xff;

extern "C" void emulation_switch(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.globl emulation_switch
.hidden emulation_switch
.type emulation_switch,@function
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulation_switch,.-emulation_switch
)");
constexpr unsigned SAVED_REGISTERS = 6;
#else
#error "emulation_switch is written for x86-64"
#endif

enum class State { Ready, AtBarrier, AtCollective, Done };

struct Copy {
    void* to;
    const void* from;
    unsigned bytes, stored, group;
};

// A rendezvous of some lanes of a warp; free while `lanes` is 0.
struct Rendezvous {
    unsigned lanes = 0, arrived = 0;
    Combine combine = nullptr;
    void* operands[32];
};

struct Fiber;

struct Warp {
    Fiber* fibers[32];
    unsigned alive;
    Rendezvous rendezvous[8];
};

struct Fiber : Identity {
    State state;
    Warp* warp;
    Rendezvous* waits_in;
    const char* where;
    void* stack_pointer;
    char* stack = nullptr;
    std::vector<Copy> copies;
    unsigned copy_group;
    void* checked_fiber = nullptr;
    void* fake_stack = nullptr;
};

// What all OS threads of a launch share.
struct Run {
    const Launch& launch;
    std::atomic<bool> failed = false;
    std::mutex lock;
    std::string message;
};

enum class Order { Forward, Reverse, Seeded };

Order order_of(unsigned& seed) {
    const char* text = getenv("GEMEL_EMULATION_ORDER");
    if (!text || !*text || !strcmp(text, "forward")) {
        return Order::Forward;
    }
    if (!strcmp(text, "reverse")) {
        return Order::Reverse;
    }
    seed = unsigned(strtoul(text, nullptr, 10));
    return Order::Seeded;
}

// The blocks that one OS thread runs, one after the other, on the same fibers.
struct Runner {
    Run* run = nullptr;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    unsigned n = 0, alive = 0, at_barrier = 0;
    bool block_failed = false;
    void* main_pointer = nullptr;
    void* main_fiber = nullptr;
    void* main_fake = nullptr;
    const void* main_stack = nullptr;
    size_t main_stack_bytes = 0;
    std::vector<unsigned char> dynamic;
    unsigned char* shared = nullptr;
    size_t shared_bytes = 0;
    Order order = Order::Forward;
    std::mt19937 random;
    // Addresses that stand for "the block starts", "the block ends" and "the barrier" in race builds.
    char starts, ends, barrier;

    ~Runner() {
        for (auto& fiber : fibers) {
            if (fiber.stack) {
                munmap(fiber.stack, STACK_BYTES);
            }
#if EMULATION_RACES
            if (fiber.checked_fiber) {
                __tsan_destroy_fiber(fiber.checked_fiber);
            }
#endif
        }
    }
};

thread_local std::unique_ptr<Runner> runner;

Fiber* self() { return static_cast<Fiber*>(current); }

void record_failure(Run& run, const char* format, va_list arguments) {
    char text[512], line[768];
    vsnprintf(text, sizeof text, format, arguments);
    snprintf(line, sizeof line, "emulation: %s: block (%u, %u, %u) thread %u: %s", run.launch.name, block_index.x,
             block_index.y, block_index.z, current ? current->thread : 0, text);
    std::lock_guard guard(run.lock);
    if (!run.failed.exchange(true)) {
        run.message = line;
    }
}

// Back to the scheduler. A fiber of a failed block never comes back; nothing in a kernel needs destroying.
void to_scheduler() {
    Runner* r = runner.get();
    Fiber* fiber = self();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fiber->state == State::Done ? nullptr : &fiber->fake_stack, r->main_stack,
                                   r->main_stack_bytes);
#endif
#if EMULATION_RACES
    __tsan_switch_to_fiber(r->main_fiber, __tsan_switch_to_fiber_no_sync);
#endif
    emulation_switch(&fiber->stack_pointer, r->main_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber->fake_stack, &r->main_stack, &r->main_stack_bytes);
#endif
}

void resume(Fiber* fiber) {
    Runner* r = runner.get();
    current = fiber;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&r->main_fake, fiber->stack, STACK_BYTES);
#endif
#if EMULATION_RACES
    __tsan_switch_to_fiber(fiber->checked_fiber, __tsan_switch_to_fiber_no_sync);
#endif
    emulation_switch(&r->main_pointer, fiber->stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(r->main_fake, nullptr, nullptr);
#endif
}

void open_barrier() {
    Runner* r = runner.get();
    r->at_barrier = 0;
    for (unsigned i = 0; i < r->n; i++) {
        if (r->fibers[i].state == State::AtBarrier) {
            r->fibers[i].state = State::Ready;
        }
    }
}

void fiber_main() {
    Runner* r = runner.get();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &r->main_stack, &r->main_stack_bytes);
#endif
    Fiber* fiber = self();
#if EMULATION_RACES
    __tsan_acquire(&r->starts);
#endif
    r->run->launch.body(r->run->launch.context);
    if (!fiber->copies.empty()) {
        fail("the thread ends with asynchronous copies that were never waited for");
    }
#if EMULATION_RACES
    __tsan_release(&r->ends);
#endif
    fiber->state = State::Done;
    fiber->warp->alive &= ~(1u << fiber->lane);
    r->alive--;
    // A barrier counts the threads that still run.
    if (r->alive > 0 && r->at_barrier == r->alive) {
        open_barrier();
    }
    to_scheduler();
    abort();
}

// Finds the thread-local storage of the kernel's module on this OS thread: its static shared memory.
void find_shared(Runner& r, void* anchor) {
    struct Search {
        uintptr_t anchor, own;
        unsigned char* at;
        size_t bytes;
    } search{uintptr_t(anchor), uintptr_t(&current), nullptr, 0};
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* context) {
            auto* search = static_cast<Search*>(context);
            for (int i = 0; i < info->dlpi_phnum; i++) {
                auto& header = info->dlpi_phdr[i];
                auto at = uintptr_t(info->dlpi_tls_data);
                if (header.p_type != PT_TLS || !at || search->anchor - at >= header.p_memsz) {
                    continue;
                }
                // Kernels linked into the same object as this file share its storage, which has other tenants.
                if (search->own - at >= header.p_memsz) {
                    search->at = reinterpret_cast<unsigned char*>(at);
                    search->bytes = header.p_memsz;
                }
                return 1;
            }
            return 0;
        },
        &search);
    r.shared = search.at;
    r.shared_bytes = search.bytes;
}

void prepare(Run& run) {
    if (!runner) {
        runner = std::make_unique<Runner>();
    }
    Runner& r = *runner;
    const Launch& launch = run.launch;
    r.run = &run;
    unsigned n = launch.block.x * launch.block.y * launch.block.z;
    if (r.fibers.size() < n) {
        r.fibers.resize(n);
        for (auto& fiber : r.fibers) {
            if (!fiber.stack) {
                fiber.stack = static_cast<char*>(mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
                if (fiber.stack == MAP_FAILED) {
                    perror("emulation: no memory for the stack of a thread");
                    abort();
                }
#if EMULATION_RACES
                fiber.checked_fiber = __tsan_create_fiber(0);
#endif
            }
        }
    }
    r.n = n;
    r.warps.assign((n + 31) / 32, Warp{});
    grid_index = launch.grid;
    // Exactly as long as asked for, so that the address sanitiser sees the first byte behind it.
    if (r.dynamic.size() != launch.shared_bytes) {
        r.dynamic = std::vector<unsigned char>();
        r.dynamic.resize(launch.shared_bytes);
    }
    dynamic_memory = r.dynamic.data();
    find_shared(r, launch.shared_anchor());
    unsigned seed = 0;
    r.order = order_of(seed);
    r.random.seed(seed);
#if EMULATION_RACES
    r.main_fiber = __tsan_get_current_fiber();
#endif
}

void start_fibers(Runner& r) {
    for (unsigned i = 0; i < r.n; i++) {
        Fiber& fiber = r.fibers[i];
        fiber.thread = i;
        fiber.lane = i % 32;
        fiber.warp = &r.warps[i / 32];
        fiber.warp->fibers[fiber.lane] = &fiber;
        fiber.state = State::Ready;
        fiber.copies.clear();
        fiber.copy_group = 0;
        fiber.waits_in = nullptr;
#if defined(__SANITIZE_ADDRESS__)
        // The last thread on this stack never returned from its functions.
        __asan_unpoison_memory_region(fiber.stack, STACK_BYTES);
#endif
        // Staggered: stacks a power of two apart would share one set of the cache.
        auto** top = reinterpret_cast<void**>(fiber.stack + STACK_BYTES - 64 - (i % 31) * 320);
        *--top = nullptr;
        *--top = reinterpret_cast<void*>(fiber_main);
        for (unsigned k = 0; k < SAVED_REGISTERS; k++) {
            *--top = nullptr;
        }
        fiber.stack_pointer = top;
    }
    for (unsigned w = 0; w < r.warps.size(); w++) {
        unsigned lanes = std::min(r.n - 32 * w, 32u);
        r.warps[w].alive = lanes == 32 ? ALL_LANES : (1u << lanes) - 1;
        for (auto& rendezvous : r.warps[w].rendezvous) {
            rendezvous.lanes = 0;
        }
    }
}

// Runs the threads of a warp until none can go on. Whether any could.
bool run_warp(Runner& r, unsigned warp) {
    bool progress = false, again = true;
    unsigned first = 32 * warp, lanes = std::min(r.n - first, 32u);
    while (again && !r.block_failed) {
        again = false;
        unsigned turn = r.order == Order::Seeded ? r.random() % lanes : 0;
        for (unsigned k = 0; k < lanes && !r.block_failed; k++) {
            unsigned lane = r.order == Order::Reverse ? lanes - 1 - k : (k + turn) % lanes;
            Fiber* fiber = &r.fibers[first + lane];
            if (fiber->state == State::Ready) {
                resume(fiber);
                again = progress = true;
            }
        }
    }
    return progress;
}

void report_deadlock(Runner& r) {
    std::string text = "deadlock, " + std::to_string(r.alive) + " of " + std::to_string(r.n) + " threads left:";
    unsigned shown = 0;
    for (unsigned i = 0; i < r.n && shown < 4; i++) {
        Fiber& fiber = r.fibers[i];
        if (fiber.state == State::AtBarrier) {
            text += " thread " + std::to_string(i) + " waits in " + fiber.where + ";";
            shown++;
        } else if (fiber.state == State::AtCollective) {
            char line[128];
            snprintf(line, sizeof line, " thread %u waits in %s for lanes %08x, %08x came;", i, fiber.where,
                     fiber.waits_in->lanes, fiber.waits_in->arrived);
            text += line;
            shown++;
        }
    }
    text.pop_back();
    current = nullptr;
    auto report = [&r](const char* format, ...) {
        va_list arguments;
        va_start(arguments, format);
        record_failure(*r.run, format, arguments);
        va_end(arguments);
    };
    report("%s", text.c_str());
    r.block_failed = true;
}

void run_block(Index block) {
    Runner& r = *runner;
    block_index = block;
    r.alive = r.n;
    r.at_barrier = 0;
    r.block_failed = false;
    if (!r.dynamic.empty()) {
        memset(r.dynamic.data(), UNSET, r.dynamic.size());
    }
    if (r.shared) {
        memset(r.shared, UNSET, r.shared_bytes);
    }
    start_fibers(r);
#if EMULATION_RACES
    __tsan_release(&r.starts);
#endif
    std::vector<unsigned> turns(r.warps.size());
    std::iota(turns.begin(), turns.end(), 0u);
    if (r.order == Order::Reverse) {
        std::reverse(turns.begin(), turns.end());
    }
    while (r.alive > 0 && !r.block_failed) {
        if (r.order == Order::Seeded) {
            std::shuffle(turns.begin(), turns.end(), r.random);
        }
        bool progress = false;
        for (unsigned warp : turns) {
            progress |= run_warp(r, warp);
        }
        if (!progress && !r.block_failed) {
            report_deadlock(r);
        }
    }
    current = nullptr;
#if EMULATION_RACES
    __tsan_acquire(&r.ends);
#endif
}

// OS threads that wait for blocks. They keep their fibers, whose stacks are dear to make.
class Pool {
  public:
    explicit Pool(unsigned n) : n_threads(n) {
        for (unsigned i = 0; i < n; i++) {
            std::thread([this] { serve(); }).detach();
        }
    }

    // Runs the work on all threads and the caller's.
    void run(const std::function<void()>& todo) {
        {
            std::lock_guard guard(lock);
            work = &todo;
            round++;
            busy = n_threads;
        }
        wake.notify_all();
        todo();
        std::unique_lock guard(lock);
        done.wait(guard, [this] { return busy == 0; });
    }

    // Held while a launch uses the pool; another launch at the same time runs on its own thread alone.
    std::mutex in_use;

  private:
    void serve() {
        uint64_t seen = 0;
        std::unique_lock guard(lock);
        while (true) {
            wake.wait(guard, [&] { return round != seen; });
            seen = round;
            auto* todo = work;
            guard.unlock();
            (*todo)();
            guard.lock();
            if (--busy == 0) {
                done.notify_one();
            }
        }
    }

    unsigned n_threads, busy = 0;
    uint64_t round = 0;
    const std::function<void()>* work = nullptr;
    std::mutex lock;
    std::condition_variable wake, done;
};

unsigned n_os_threads() {
#if defined(__SANITIZE_ADDRESS__)
    return 1;
#endif
    const char* text = getenv("GEMEL_EMULATION_THREADS");
    unsigned n = text ? unsigned(strtoul(text, nullptr, 10)) : std::thread::hardware_concurrency();
#if EMULATION_RACES
    // Nothing orders blocks on two threads, so that a race between them shows.
    return std::max(n, 2u);
#else
    return std::max(n, 1u);
#endif
}

} // namespace

void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record_failure(*runner->run, format, arguments);
    va_end(arguments);
    runner->block_failed = true;
    to_scheduler();
    abort();
}

void barrier(const char* where) {
    Runner* r = runner.get();
    Fiber* fiber = self();
#if EMULATION_RACES
    __tsan_release(&r->barrier);
#endif
    if (++r->at_barrier == r->alive) {
        open_barrier();
    } else {
        fiber->state = State::AtBarrier;
        fiber->where = where;
        to_scheduler();
    }
#if EMULATION_RACES
    __tsan_acquire(&r->barrier);
#endif
}

void collective(unsigned lanes, Combine combine, void* operands, const char* what) {
    Fiber* fiber = self();
    Warp& warp = *fiber->warp;
    unsigned own = 1u << fiber->lane;
    if (!(lanes & own)) {
        fail("%s: the calling lane %u is not in mask %08x", what, fiber->lane, lanes);
    }
    if (lanes & ~warp.alive) {
        fail("%s: mask %08x names lanes that are not there, only %08x are", what, lanes, warp.alive);
    }
    Rendezvous* found = nullptr;
    for (auto& candidate : warp.rendezvous) {
        if (candidate.lanes == lanes && candidate.combine == combine && !(candidate.arrived & own)) {
            found = &candidate;
            break;
        }
        if (!candidate.lanes && !found) {
            found = &candidate;
        }
    }
    if (!found) {
        fail("%s: too many operations under way in one warp", what);
    }
    if (!found->lanes) {
        found->lanes = lanes;
        found->combine = combine;
        found->arrived = 0;
    }
    found->operands[fiber->lane] = operands;
    found->arrived |= own;
#if EMULATION_RACES
    // Only warp_sync orders memory; shuffles deliberately do not.
    if (combine == nothing) {
        __tsan_release(found);
    }
#endif
    if (found->arrived == lanes) {
        combine(lanes, found->operands);
        found->lanes = 0;
        for (unsigned lane = 0; lane < 32; lane++) {
            if ((lanes >> lane & 1) && lane != fiber->lane) {
                warp.fibers[lane]->state = State::Ready;
            }
        }
    } else {
        fiber->state = State::AtCollective;
        fiber->waits_in = found;
        fiber->where = what;
        to_scheduler();
    }
#if EMULATION_RACES
    if (combine == nothing) {
        __tsan_acquire(found);
    }
#endif
}

void copy_start(void* to, const void* from, unsigned bytes, unsigned stored) {
    if (uintptr_t(to) % stored != 0 || (bytes != 0 && uintptr_t(from) % stored != 0)) {
        fail("copy_async: addresses %p and %p are not aligned to %u bytes", to, from, stored);
    }
    self()->copies.push_back({to, from, bytes, stored, self()->copy_group});
}

void copy_close() { self()->copy_group++; }

UNCHECKED void copy_finish(unsigned pending) {
    Fiber* fiber = self();
    size_t left = 0;
    for (auto& copy : fiber->copies) {
        if (copy.group + pending >= fiber->copy_group) {
            fiber->copies[left++] = copy;
            continue;
        }
#if EMULATION_RACES
        __tsan_read_range(const_cast<void*>(copy.from), copy.bytes);
        __tsan_write_range(copy.to, copy.stored);
#endif
        memcpy(copy.to, copy.from, copy.bytes);
        memset(static_cast<char*>(copy.to) + copy.bytes, 0, copy.stored - copy.bytes);
    }
    fiber->copies.resize(left);
}

int launch(const Launch& launch) {
    Run run{launch, false, {}, {}};
    uint64_t n_blocks = uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    uint64_t n_threads = uint64_t(launch.block.x) * launch.block.y * launch.block.z;
    if (n_blocks == 0 || n_threads == 0 || n_threads > MAX_THREADS) {
        fprintf(stderr, "emulation: %s: a grid of %zu blocks of %zu threads\n", launch.name, size_t(n_blocks),
                size_t(n_threads));
        return LAUNCH_FAILED;
    }
    unsigned seed = 0;
    Order order = order_of(seed);
    uint64_t step = order == Order::Seeded ? (uint64_t(seed) * 2654435761u) % n_blocks : 1;
    while (std::gcd(step, n_blocks) != 1) {
        step++;
    }
    auto block_of = [&](uint64_t i) {
        i = order == Order::Reverse ? n_blocks - 1 - i : (i % n_blocks) * step % n_blocks;
        return Index{unsigned(i % launch.grid.x), unsigned(i / launch.grid.x % launch.grid.y),
                     unsigned(i / (uint64_t(launch.grid.x) * launch.grid.y))};
    };
    std::atomic<uint64_t> next = 0;
    std::function<void()> work = [&] {
        if (next.load(std::memory_order_relaxed) >= n_blocks) {
            return;
        }
        prepare(run);
        for (uint64_t i; !run.failed && (i = next.fetch_add(1, std::memory_order_relaxed)) < n_blocks;) {
            run_block(block_of(i));
        }
    };
    static Pool* pool = n_os_threads() > 1 ? new Pool(n_os_threads() - 1) : nullptr;
    if (pool && n_blocks > 1 && pool->in_use.try_lock()) {
        std::lock_guard guard(pool->in_use, std::adopt_lock);
        pool->run(work);
    } else {
        work();
    }
    if (run.failed) {
        fprintf(stderr, "%s\n", run.message.c_str());
        return LAUNCH_FAILED;
    }
    return 0;
}

} // namespace emulation

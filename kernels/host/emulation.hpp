// The host's half of `lib/device.cuh`: force-included in front of a kernel's source, it turns the source into C++ that
// runs on the CPU, for tests. A thread is a fiber, a block is the fibers of one OS thread; `runtime.cpp` switches them.
//
// It keeps CUDA's rules, not its speed: what is undefined there is reported here where it can be seen.
#pragma once
#define GEMEL_EMULATION 1

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

// A race build compiles kernels with -fsanitize=thread and the runtime without it but with this, so that only the
// accesses of kernels are checked.
#if defined(__SANITIZE_THREAD__) || defined(GEMEL_EMULATION_RACES)
#define EMULATION_RACES 1
extern "C" void __tsan_read_range(void*, unsigned long);
extern "C" void __tsan_write_range(void*, unsigned long);
#define UNCHECKED __attribute__((no_sanitize("thread"), noinline))
#else
#define EMULATION_RACES 0
#define UNCHECKED
#endif

#define KERNEL static void
#define DEVICE [[maybe_unused]] static inline
// One copy an OS thread is one copy a running block. The address sanitiser guards plain statics only: that build runs
// all blocks on one OS thread.
#if defined(__SANITIZE_ADDRESS__)
#define SHARED static
#else
#define SHARED static thread_local
#endif
#define __restrict__ __restrict

struct Index {
    unsigned x, y, z;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};

constexpr unsigned ALL_LANES = 0xffffffffu;

namespace emulation {

// What all threads of a rendezvous need from it: `operands[lane]` of the lanes in `lanes`.
using Combine = void (*)(unsigned lanes, void** operands);

struct Identity {
    unsigned thread, lane;
};

extern constinit thread_local Identity* current;
extern constinit thread_local Index block_index, grid_index;
extern constinit thread_local unsigned char* dynamic_memory;

struct Launch {
    Index grid, block;
    size_t shared_bytes;
    void (*body)(void*);
    void* context;
    // Points into the module's thread-local storage, which is the static shared memory of its kernels.
    void* (*shared_anchor)();
    const char* name;
};

// Runs a launch to its end. 0, or 719 when a thread failed.
int launch(const Launch& launch);
// Ends the running block and its launch as failed.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
void barrier(const char* where);
// The one mechanism of all warp operations: lanes leave their operands and sleep; the last lane of the mask to come
// computes the results of all. Strict: a mask names exactly the lanes that come.
void collective(unsigned lanes, Combine combine, void* operands, const char* what);
void copy_start(void* to, const void* from, unsigned bytes, unsigned stored);
void copy_close();
void copy_finish(unsigned pending);

template <class... A, size_t... I>
inline void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<A>*>(arguments[I])...);
}

template <class... A> struct Call {
    void (*kernel)(A...);
    void** arguments;
};

template <class... A>
int run(void (*kernel)(A...), const char* name, void* (*shared_anchor)(), const unsigned* grid, const unsigned* block,
        size_t shared_bytes, void** arguments) {
    Call<A...> bound{kernel, arguments};
    auto body = [](void* context) {
        auto* bound = static_cast<Call<A...>*>(context);
        call(bound->kernel, bound->arguments, std::index_sequence_for<A...>{});
    };
    return launch({{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes, body, &bound,
                   shared_anchor, name});
}

template <size_t N> struct Sizes {
    unsigned words[N];
};

template <class... A> constexpr auto sizes(void (*)(A...), unsigned threads) {
    return Sizes<sizeof...(A) + 2>{{unsigned(sizeof...(A)), threads, unsigned(sizeof(A))...}};
}

} // namespace emulation

// Follows an assembled source when it is compiled for the host: `ENTRY__emulated` launches, `ENTRY__arguments` is the
// number of arguments, the threads of a block and the arguments' sizes in bytes.
#define EMULATION_EXPORT(entry)                                                                                        \
    static void* entry##__anchor() {                                                                                   \
        static thread_local unsigned char anchor;                                                                      \
        return &anchor;                                                                                                \
    }                                                                                                                  \
    extern "C" __attribute__((visibility("default"))) const unsigned* entry##__arguments() {                           \
        static constexpr auto sizes = ::emulation::sizes(entry, THREADS);                                              \
        return sizes.words;                                                                                            \
    }                                                                                                                  \
    extern "C" __attribute__((visibility("default"))) int entry##__emulated(                                           \
        const unsigned* grid, const unsigned* block, size_t shared_bytes, void** arguments) {                          \
        return ::emulation::run(entry, #entry, entry##__anchor, grid, block, shared_bytes, arguments);                 \
    }

DEVICE Index block_id() { return emulation::block_index; }
DEVICE Index grid_size() { return emulation::grid_index; }
DEVICE unsigned thread_id() { return emulation::current->thread; }
DEVICE unsigned lane_id() { return emulation::current->lane; }
DEVICE unsigned warp_id() { return emulation::current->thread / 32u; }

DEVICE void block_sync() { emulation::barrier("block_sync"); }
namespace emulation {
UNCHECKED inline void nothing(unsigned, void**) {}
} // namespace emulation
DEVICE void warp_sync(unsigned lanes = ALL_LANES) {
    emulation::collective(lanes, emulation::nothing, nullptr, "warp_sync");
}
DEVICE void device_fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
DEVICE void trap() { emulation::fail("trap"); }

namespace emulation {

template <class T> struct Shuffle {
    T value;
    unsigned from;
    T result;
};

template <class T> UNCHECKED void shuffle_all(unsigned lanes, void** operands) {
    for (unsigned lane = 0; lane < 32; lane++) {
        if (lanes >> lane & 1) {
            auto* own = static_cast<Shuffle<T>*>(operands[lane]);
            if (!(lanes >> own->from & 1)) {
                fail("shuffle: lane %u reads lane %u, which is not in mask %08x", lane, own->from, lanes);
            }
            own->result = static_cast<Shuffle<T>*>(operands[own->from])->value;
        }
    }
}

struct Ballot {
    bool value;
    unsigned result;
};

UNCHECKED inline void ballot_all(unsigned lanes, void** operands) {
    unsigned result = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        if ((lanes >> lane & 1) && static_cast<Ballot*>(operands[lane])->value) {
            result |= 1u << lane;
        }
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        if (lanes >> lane & 1) {
            static_cast<Ballot*>(operands[lane])->result = result;
        }
    }
}

} // namespace emulation

template <class T> DEVICE T shuffle(T value, unsigned lane, unsigned lanes = ALL_LANES) {
    emulation::Shuffle<T> operands{value, lane % 32u, value};
    emulation::collective(lanes, emulation::shuffle_all<T>, &operands, "shuffle");
    return operands.result;
}
template <class T> DEVICE T shuffle_xor(T value, unsigned lane_bits, unsigned lanes = ALL_LANES) {
    return shuffle(value, lane_id() ^ lane_bits, lanes);
}
DEVICE unsigned warp_ballot(bool value, unsigned lanes = ALL_LANES) {
    emulation::Ballot operands{value, 0};
    emulation::collective(lanes, emulation::ballot_all, &operands, "ballot");
    return operands.result;
}

DEVICE unsigned atomic_add(unsigned* at, unsigned value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
DEVICE unsigned atomic_max(unsigned* at, unsigned value) {
    unsigned old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange_n(at, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}

template <class T> DEVICE T* dynamic_shared() { return reinterpret_cast<T*>(emulation::dynamic_memory); }

DEVICE unsigned bits_of(float x) { return std::bit_cast<unsigned>(x); }
DEVICE float float_of(unsigned bits) { return std::bit_cast<float>(bits); }
DEVICE float f32_of_f16(unsigned bits) { return float(std::bit_cast<_Float16>(uint16_t(bits))); }
DEVICE unsigned f16_of_f32(float x) { return std::bit_cast<uint16_t>(_Float16(x)); }

DEVICE unsigned f16_pair(float x, float y) { return f16_of_f32(x) | (f16_of_f32(y) << 16); }
DEVICE unsigned bf16_pair(float x, float y) {
    auto rounded = [](float value) {
        unsigned bits = bits_of(value);
        return value != value ? bits | 0x00400000u : bits + 0x7fffu + (bits >> 16 & 1u);
    };
    return rounded(x) >> 16 | (rounded(y) & 0xffff0000u);
}
DEVICE unsigned bf16_pair_sub(unsigned a, unsigned b) {
    unsigned low = bits_of(float_of(a << 16) - float_of(b << 16));
    return low >> 16 | (bits_of(float_of(a & 0xffff0000u) - float_of(b & 0xffff0000u)) & 0xffff0000u);
}
DEVICE unsigned f16_pair_sub(unsigned a, unsigned b) {
    return f16_pair(f32_of_f16(a & 0xffffu) - f32_of_f16(b & 0xffffu), f32_of_f16(a >> 16) - f32_of_f16(b >> 16));
}

DEVICE int dot4(int a, int b, int c) {
    unsigned sum = unsigned(c);
    for (int i = 0; i < 4; i++) {
        sum += unsigned(int(int8_t(a >> (8 * i))) * int(int8_t(b >> (8 * i))));
    }
    return int(sum);
}
DEVICE unsigned choose_bytes(unsigned a, unsigned b, unsigned which) {
    uint64_t bytes = uint64_t(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned nibble = which >> (4 * i);
        unsigned byte = unsigned(bytes >> (8 * (nibble & 7))) & 255u;
        // The fourth bit of a nibble asks for the sign of the byte instead.
        byte = nibble & 8 ? (byte & 128 ? 255 : 0) : byte;
        result |= byte << (8 * i);
    }
    return result;
}

DEVICE unsigned bit_count(unsigned x) { return unsigned(std::popcount(x)); }

// A copy lands when it is waited for, not when it is issued: a missing wait shows.
template <int BYTES> DEVICE void copy_async(void* to, const void* from, bool keep = true) {
    static_assert(BYTES == 8 || BYTES == 16, "8 bytes, or 16 past the first-level cache");
    emulation::copy_start(to, from, keep ? BYTES : 0, BYTES);
}
DEVICE void copy_commit() { emulation::copy_close(); }
template <int PENDING> DEVICE void copy_wait() { emulation::copy_finish(PENDING); }

#include "lib/mma.cuh"

namespace emulation {

struct Rows {
    unsigned* to;
    const void* row;
};

template <unsigned N, bool TRANSPOSED> UNCHECKED void load_matrices(unsigned, void** operands) {
    for (unsigned lane = 0; lane < 8 * N; lane++) {
        if (uintptr_t(static_cast<Rows*>(operands[lane])->row) % 16 != 0) {
            fail("ldmatrix: the row of lane %u is not aligned to 16 bytes", lane);
        }
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        for (unsigned matrix = 0; matrix < N; matrix++) {
            unsigned word = 0;
            for (unsigned half = 0; half < 2; half++) {
                unsigned row = lane / 4, column = 2 * (lane % 4) + half;
                if (TRANSPOSED) {
                    std::swap(row, column);
                }
                auto* halves = static_cast<const uint16_t*>(static_cast<Rows*>(operands[8 * matrix + row])->row);
                word |= unsigned(halves[column]) << (16 * half);
            }
            static_cast<Rows*>(operands[lane])->to[matrix] = word;
        }
    }
}

template <unsigned N, bool TRANSPOSED> void load_rows(unsigned* to, const void* row) {
#if EMULATION_RACES
    // The last lane reads the rows of all; the lane that names a row answers for the access.
    if (current->lane < 8 * N) {
        __tsan_read_range(const_cast<void*>(row), 16);
    }
#endif
    Rows operands{to, row};
    collective(ALL_LANES, load_matrices<N, TRANSPOSED>, &operands, "ldmatrix");
}

template <class Sum> struct Tile {
    Sum* c;
    const unsigned *a, *b;
};

struct F16 {
    using Sum = float;
    static constexpr unsigned BITS = 16;
    static float value(unsigned bits) { return f32_of_f16(bits); }
};
struct BF16 {
    using Sum = float;
    static constexpr unsigned BITS = 16;
    static float value(unsigned bits) { return float_of(bits << 16); }
};
struct S8 {
    using Sum = int;
    static constexpr unsigned BITS = 8;
    static int value(unsigned bits) { return int8_t(bits); }
};

// Sums in order of k; tensor cores sum groups of k at once and truncate.
template <class T> UNCHECKED void multiply_tiles(unsigned, void** operands) {
    using Sum = typename T::Sum;
    constexpr unsigned PER_WORD = 32 / T::BITS, K = 8 * PER_WORD;
    Sum a[16][K], b[K][8], c[16][8];
    for (unsigned lane = 0; lane < 32; lane++) {
        auto* own = static_cast<Tile<Sum>*>(operands[lane]);
        for (unsigned e = 0; e < 4 * PER_WORD; e++) {
            Place at = T::BITS == 16 ? mma16_a(lane, e) : mma8_a(lane, e);
            a[at.row][at.column] = T::value(own->a[e / PER_WORD] >> (e % PER_WORD * T::BITS) & ((1u << T::BITS) - 1));
        }
        for (unsigned e = 0; e < 2 * PER_WORD; e++) {
            Place at = T::BITS == 16 ? mma16_b(lane, e) : mma8_b(lane, e);
            b[at.row][at.column] = T::value(own->b[e / PER_WORD] >> (e % PER_WORD * T::BITS) & ((1u << T::BITS) - 1));
        }
        for (unsigned e = 0; e < 4; e++) {
            Place at = mma_c(lane, e);
            c[at.row][at.column] = own->c[e];
        }
    }
    for (unsigned row = 0; row < 16; row++) {
        for (unsigned k = 0; k < K; k++) {
            for (unsigned column = 0; column < 8; column++) {
                c[row][column] += a[row][k] * b[k][column];
            }
        }
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        for (unsigned e = 0; e < 4; e++) {
            Place at = mma_c(lane, e);
            static_cast<Tile<Sum>*>(operands[lane])->c[e] = c[at.row][at.column];
        }
    }
}

template <class T>
void multiply(typename T::Sum (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], const char* what) {
    Tile<typename T::Sum> operands{c, a, b};
    collective(ALL_LANES, multiply_tiles<T>, &operands, what);
}

} // namespace emulation

template <int N> DEVICE void ldmatrix(unsigned (&to)[N], const void* row) {
    static_assert(N == 2 || N == 4, "two or four matrices");
    emulation::load_rows<N, false>(to, row);
}
template <int N> DEVICE void ldmatrix_transposed(unsigned (&to)[N], const void* row) {
    static_assert(N == 2 || N == 4, "two or four matrices");
    emulation::load_rows<N, true>(to, row);
}
DEVICE void mma_f16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulation::multiply<emulation::F16>(c, a, b, "mma_f16");
}
DEVICE void mma_bf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulation::multiply<emulation::BF16>(c, a, b, "mma_bf16");
}
DEVICE void mma_s8(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulation::multiply<emulation::S8>(c, a, b, "mma_s8");
}

// The one seam between kernels and the machine: qualifiers, thread ids, barriers, warp operations, asynchronous
// copies, matrix tiles, number conversions. This half is NVIDIA's: PTX occurs here and nowhere else. The other half
// is `host/emulation.hpp`, which tests compile instead.
//
// Blocks are one-dimensional. Warp operations are called by all 32 lanes of a warp unless a mask says which.
#if !defined(GEMEL_EMULATION) && !defined(GEMEL_DEVICE)
#define GEMEL_DEVICE

// A kernel: C linkage, so that its name is its symbol; THREADS comes from the prelude, and from the loader how many
// warps a multiprocessor must hold, which bounds the registers of a thread; 0 leaves that to the compiler.
#if !defined(RESIDENT_WARPS)
#define RESIDENT_WARPS 0
#endif
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, (32 * RESIDENT_WARPS + THREADS - 1) / THREADS)
// A function of the device.
#define DEVICE static __device__ __forceinline__
// Memory of a block; its contents are undefined at first.
#define SHARED __shared__

struct Index {
    unsigned x, y, z;
};

DEVICE Index block_id() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
DEVICE Index grid_size() { return {gridDim.x, gridDim.y, gridDim.z}; }
DEVICE unsigned thread_id() { return threadIdx.x; }
DEVICE unsigned lane_id() { return threadIdx.x % 32u; }
DEVICE unsigned warp_id() { return threadIdx.x / 32u; }

constexpr unsigned ALL_LANES = 0xffffffffu;

// Waits for all threads of the block; their writes before it are seen after it.
DEVICE void block_sync() { __syncthreads(); }
// The same among the lanes of a warp.
DEVICE void warp_sync(unsigned lanes = ALL_LANES) { __syncwarp(lanes); }
// Makes earlier writes visible to the device before later ones.
DEVICE void device_fence() { __threadfence(); }
// Ends the launch as failed.
DEVICE void trap() { asm volatile("trap;"); }

template <class T> DEVICE T shuffle_xor(T value, unsigned lane_bits, unsigned lanes = ALL_LANES) {
    return __shfl_xor_sync(lanes, value, lane_bits);
}
template <class T> DEVICE T shuffle(T value, unsigned lane, unsigned lanes = ALL_LANES) {
    return __shfl_sync(lanes, value, lane);
}
// Bit i tells whether lane i passed true.
DEVICE unsigned warp_ballot(bool value, unsigned lanes = ALL_LANES) { return __ballot_sync(lanes, value); }

// Integers only: the order of float atomics would show in results.
DEVICE unsigned atomic_add(unsigned* at, unsigned value) { return atomicAdd(at, value); }
DEVICE unsigned atomic_max(unsigned* at, unsigned value) { return atomicMax(at, value); }

// The block's dynamic shared memory: SHARED_BYTES of the specialisation, aligned to 16 bytes.
template <class T> DEVICE T* dynamic_shared() {
    extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];
    return reinterpret_cast<T*>(dynamic_shared_bytes);
}

DEVICE unsigned bits_of(float x) { return __float_as_uint(x); }
DEVICE float float_of(unsigned bits) { return __uint_as_float(bits); }

// f16 and bf16 are storage: their bits lie in the low half of a word.
DEVICE float f32_of_f16(unsigned bits) {
    float x;
    asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(x) : "r"(bits));
    return x;
}
// To nearest, ties to even; too large becomes an infinity.
DEVICE unsigned f16_of_f32(float x) {
    unsigned bits;
    asm("{ .reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.u32.u16 %0, h; }" : "=r"(bits) : "f"(x));
    return bits;
}

// Two of them in a word, x in the low half.
DEVICE unsigned f16_pair(float x, float y) {
#if __CUDA_ARCH__ >= 800
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
#else
    return f16_of_f32(x) | (f16_of_f32(y) << 16u);
#endif
}
// The same as bf16, to nearest, ties to even.
DEVICE unsigned bf16_pair(float x, float y) {
#if __CUDA_ARCH__ >= 800
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
#else
    // A NaN stays one: its bits are not counted up.
    unsigned bits[2] = {__float_as_uint(x), __float_as_uint(y)};
    for (int i = 0; i < 2; i++) {
        bool is_nan = (bits[i] & 0x7fffffffu) > 0x7f800000u;
        bits[i] = is_nan ? bits[i] | 0x00400000u : bits[i] + 0x7fffu + ((bits[i] >> 16u) & 1u);
    }
    return __byte_perm(bits[0], bits[1], 0x7632u);
#endif
}
// a - b of two bf16 each in a word; for differences that bf16 has.
DEVICE unsigned bf16_pair_sub(unsigned a, unsigned b) {
#if __CUDA_ARCH__ >= 800
    unsigned difference;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(difference) : "r"(b), "r"(0xbf80bf80u), "r"(a));
    return difference;
#else
    unsigned low = __float_as_uint(__uint_as_float(a << 16u) - __uint_as_float(b << 16u));
    unsigned high = __float_as_uint(__uint_as_float(a & 0xffff0000u) - __uint_as_float(b & 0xffff0000u));
    return (low >> 16u) | (high & 0xffff0000u);
#endif
}
// The same of two f16.
DEVICE unsigned f16_pair_sub(unsigned a, unsigned b) {
    unsigned difference;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
    return difference;
}

// c + a . b over four signed bytes.
DEVICE int dot4(int a, int b, int c) {
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
    return c;
}
// Four bytes chosen from the eight of a (0..3) and b (4..7) by the nibbles of `which`.
DEVICE unsigned choose_bytes(unsigned a, unsigned b, unsigned which) { return __byte_perm(a, b, which); }

// Bits that are set.
DEVICE unsigned bit_count(unsigned x) { return unsigned(__popc(x)); }

DEVICE unsigned shared_address(const void* at) { return static_cast<unsigned>(__cvta_generic_to_shared(at)); }

// Starts copying BYTES from global to shared memory, both so aligned; without `keep` it stores zeros and does not read.
// What it copied may be read after copy_wait, by other threads after a barrier behind that.
template <int BYTES> DEVICE void copy_async(void* to, const void* from, bool keep = true) {
    static_assert(BYTES == 8 || BYTES == 16, "8 bytes, or 16 past the first-level cache");
#if __CUDA_ARCH__ >= 800
    int bytes = keep ? BYTES : 0;
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                     :
                     : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes)
                     : "memory");
    }
#else
    if (BYTES == 16) {
        *static_cast<uint4*>(to) = keep ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
    } else {
        *static_cast<uint2*>(to) = keep ? *static_cast<const uint2*>(from) : uint2{0, 0};
    }
#endif
}
// Closes a group of copies.
DEVICE void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}
// Waits until at most PENDING of this thread's groups, the youngest, are under way.
template <int PENDING> DEVICE void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
#endif
}

// Loads N matrices of 8 x 8 halves from shared memory: lane 8 i + j passes row j of matrix i (16 bytes, aligned).
// Register i of a lane receives elements (lane / 4, 2 (lane % 4) + {0, 1}) of matrix i.
template <int N> DEVICE void ldmatrix(unsigned (&to)[N], const void* row);
template <> __device__ __forceinline__ void ldmatrix<4>(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
template <> __device__ __forceinline__ void ldmatrix<2>(unsigned (&to)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(shared_address(row))
                 : "memory");
}
// The same of the transposed matrices.
template <int N> DEVICE void ldmatrix_transposed(unsigned (&to)[N], const void* row);
template <> __device__ __forceinline__ void ldmatrix_transposed<4>(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
template <> __device__ __forceinline__ void ldmatrix_transposed<2>(unsigned (&to)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(shared_address(row))
                 : "memory");
}

// c += a b: a is 16 x 16 halves, b 16 x 8, c 16 x 8 in f32. `mma.cuh` says which lane holds what.
DEVICE void mma_f16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    for (int half = 0; half < 2; half++) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
    }
#endif
}

#if __CUDA_ARCH__ < 800
// There is no such instruction: lanes fetch what they need from each other, in a loop, since a kernel may have a hundred
// of these.
DEVICE void mma_bf16_by_lanes(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    unsigned lane = lane_id();
#pragma unroll 1
    for (unsigned pair = 0; pair < 8; pair++) {
        bool low_half = pair < 4;
        unsigned of_row = lane / 4 * 4 + pair % 4;
        unsigned rows[2] = {shuffle(low_half ? a[0] : a[2], of_row), shuffle(low_half ? a[1] : a[3], of_row)};
#pragma unroll
        for (unsigned column = 0; column < 2; column++) {
            unsigned y = shuffle(low_half ? b[0] : b[1], (2 * (lane % 4) + column) * 4 + pair % 4);
#pragma unroll
            for (unsigned low = 0; low < 2; low++) {
                float& sum = c[2 * low + column];
                sum += float_of(rows[low] << 16) * float_of(y << 16);
                sum += float_of(rows[low] & 0xffff0000u) * float_of(y & 0xffff0000u);
            }
        }
    }
}
#endif

// The same in bf16; slow before sm_80.
DEVICE void mma_bf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    mma_bf16_by_lanes(c, a, b);
#endif
}

// c += a b in whole numbers: a is 16 x 32 signed bytes, b 32 x 8.
DEVICE void mma_s8(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    for (int quarter = 0; quarter < 4; quarter++) {
        int low = quarter % 2, half = quarter / 2;
        asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                     : "+r"(c[2 * low]), "+r"(c[2 * low + 1])
                     : "r"(a[quarter]), "r"(b[half]));
    }
#endif
}

#endif

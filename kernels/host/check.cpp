// The self-test of the emulation: kernels against plain loops, planted faults that must be found, and the rules of the
// pretend driver. check MODULE_DIR; `check.sh` builds the modules and runs it in several orders.
#include "emulation.hpp"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

using Address = uint64_t;
extern "C" {
int cuInit(unsigned);
int cuDeviceGetCount(int*);
int cuDeviceGetAttribute(int*, int, int);
int cuDevicePrimaryCtxRetain(void**, int);
int cuDevicePrimaryCtxReset_v2(int);
int cuCtxSetCurrent(void*);
int cuCtxSynchronize();
int cuCtxEnablePeerAccess(void*, unsigned);
int cuDeviceCanAccessPeer(int*, int, int);
int cuDriverGetVersion(int*);
int cuMemGetInfo_v2(size_t*, size_t*);
int cuMemAlloc_v2(Address*, size_t);
int cuMemFree_v2(Address);
int cuMemHostAlloc(void**, size_t, unsigned);
int cuMemFreeHost(void*);
int cuMemcpyHtoD_v2(Address, const void*, size_t);
int cuMemcpyHtoDAsync_v2(Address, const void*, size_t, void*);
int cuMemcpyDtoH_v2(void*, Address, size_t);
int cuMemcpyDtoDAsync_v2(Address, Address, size_t, void*);
int cuMemcpyDtoHAsync_v2(void*, Address, size_t, void*);
int cuMemcpyPeerAsync(Address, void*, Address, void*, size_t, void*);
int cuModuleLoadData(void**, const void*);
int cuModuleUnload(void*);
int cuModuleGetFunction(void**, void*, const char*);
int cuFuncGetAttribute(int*, int, void*);
int cuFuncSetAttribute(void*, int, int);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
int cuStreamCreate(void**, unsigned);
int cuStreamDestroy_v2(void*);
int cuStreamSynchronize(void*);
int cuStreamWaitEvent(void*, void*, unsigned);
int cuEventCreate(void**, unsigned);
int cuEventRecord(void*, void*);
int cuEventSynchronize(void*);
int cuEventElapsedTime_v2(float*, void*, void*);
int cuStreamBeginCapture_v2(void*, int);
int cuStreamEndCapture(void*, void**);
int cuGraphInstantiateWithFlags(void**, void*, unsigned long long);
int cuGraphLaunch(void*, void*);
int cuGraphExecDestroy(void*);
int cuGraphDestroy(void*);
int cuGetErrorName(int, const char**);
}

namespace {

int passed = 0, failed = 0;

void check(bool right, const char* what) {
    (right ? passed : failed)++;
    if (!right) {
        printf("FAILED: %s\n", what);
    }
}

std::string folder;

std::string image_of(const char* name) {
    std::ifstream file(folder + "/" + name + ".so", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Device memory with these contents.
template <class T> struct Memory {
    Address at = 0;
    size_t n;
    explicit Memory(size_t length) : n(length) { cuMemAlloc_v2(&at, n * sizeof(T)); }
    explicit Memory(const std::vector<T>& contents) : Memory(contents.size()) {
        cuMemcpyHtoD_v2(at, contents.data(), n * sizeof(T));
    }
    ~Memory() { cuMemFree_v2(at); }
    std::vector<T> read() const {
        std::vector<T> contents(n);
        cuMemcpyDtoH_v2(contents.data(), at, n * sizeof(T));
        return contents;
    }
};

struct Kernel {
    void *module = nullptr, *function = nullptr;
    Kernel(const char* file, const char* entry) {
        std::string image = image_of(file);
        cuModuleLoadData(&module, image.data());
        cuModuleGetFunction(&function, module, entry);
    }
    ~Kernel() { cuModuleUnload(module); }
    int launch(unsigned grid, unsigned block, unsigned shared, std::vector<void*> arguments, void* stream = nullptr) {
        return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, arguments.data(), nullptr);
    }
};

std::vector<float> numbers(size_t n, unsigned seed) {
    std::vector<float> list(n);
    for (auto& v : list) {
        seed = seed * 1664525u + 1013904223u;
        v = float(seed >> 8) / float(1 << 23) - 1.0f;
    }
    return list;
}

bool near(const std::vector<float>& a, const std::vector<float>& b, float tolerance) {
    if (a.size() != b.size()) {
        return false;
    }
    for (size_t i = 0; i < a.size(); i++) {
        // Written so that NaN is far from everything.
        if (!(fabsf(a[i] - b[i]) <= tolerance)) {
            return false;
        }
    }
    return true;
}

// Every element of a tile has one lane and place, and the maps are those of the PTX manual.
void maps() {
    auto covers = [](unsigned rows, unsigned columns, unsigned elements, Place (*map)(unsigned, unsigned)) {
        std::vector<int> seen(rows * columns);
        for (unsigned lane = 0; lane < 32; lane++) {
            for (unsigned e = 0; e < elements; e++) {
                Place at = map(lane, e);
                if (at.row >= rows || at.column >= columns || seen[at.row * columns + at.column]++) {
                    return false;
                }
            }
        }
        return rows * columns == 32 * elements;
    };
    check(covers(16, 16, 8, mma16_a), "mma16_a covers its tile once");
    check(covers(16, 8, 4, mma16_b), "mma16_b covers its tile once");
    check(covers(16, 32, 16, mma8_a), "mma8_a covers its tile once");
    check(covers(32, 8, 8, mma8_b), "mma8_b covers its tile once");
    check(covers(16, 8, 4, mma_c), "mma_c covers its tile once");
    // The manual's own words: a group of four lanes and the lane in it, element by element.
    auto is = [](unsigned elements, Place (*map)(unsigned, unsigned), auto&& row, auto&& column) {
        for (unsigned lane = 0; lane < 32; lane++) {
            for (unsigned i = 0; i < elements; i++) {
                Place at = map(lane, i);
                if (at.row != row(lane >> 2, lane & 3, i) || at.column != column(lane >> 2, lane & 3, i)) {
                    return false;
                }
            }
        }
        return true;
    };
    check(is(
              8, mma16_a, [](unsigned group, unsigned, unsigned i) { return i < 2 || (i >= 4 && i < 6) ? group : group + 8; },
              [](unsigned, unsigned in, unsigned i) { return in * 2 + (i & 1) + (i >= 4 ? 8 : 0); }),
          "mma16_a is the manual's");
    check(is(
              4, mma16_b, [](unsigned, unsigned in, unsigned i) { return in * 2 + (i & 1) + (i >= 2 ? 8 : 0); },
              [](unsigned group, unsigned, unsigned) { return group; }),
          "mma16_b is the manual's");
    check(is(
              16, mma8_a,
              [](unsigned group, unsigned, unsigned i) { return i < 4 || (i >= 8 && i < 12) ? group : group + 8; },
              [](unsigned, unsigned in, unsigned i) { return in * 4 + (i & 3) + (i >= 8 ? 16 : 0); }),
          "mma8_a is the manual's");
    check(is(
              8, mma8_b, [](unsigned, unsigned in, unsigned i) { return in * 4 + (i & 3) + (i >= 4 ? 16 : 0); },
              [](unsigned group, unsigned, unsigned) { return group; }),
          "mma8_b is the manual's");
    check(is(
              4, mma_c, [](unsigned group, unsigned, unsigned i) { return i < 2 ? group : group + 8; },
              [](unsigned, unsigned in, unsigned i) { return in * 2 + (i & 1); }),
          "mma_c is the manual's");
}

void products() {
    unsigned params = 0;
    std::vector<float> a(256), b(128), want(128, 1.0f);
    for (unsigned i = 0; i < 256; i++) {
        a[i] = float(int(i * 7 % 31) - 15) / 4;
    }
    for (unsigned i = 0; i < 128; i++) {
        b[i] = float(int(i * 5 % 23) - 11) / 8;
    }
    for (unsigned i = 0; i < 128; i++) {
        for (unsigned k = 0; k < 16; k++) {
            want[i] += a[i / 8 * 16 + k] * b[k * 8 + i % 8];
        }
    }
    Memory<float> a_at(a), b_at(b), y_at(128);
    for (const char* entry : {"product_f16", "product_bf16", "wrong_map"}) {
        Kernel kernel("check_kernels_32", entry);
        kernel.launch(1, 32, 2 * (256 + 128), {&a_at.at, &b_at.at, &y_at.at, &params});
        bool planted = !strcmp(entry, "wrong_map");
        check(near(y_at.read(), want, 1e-4f) != planted, entry);
    }
    std::vector<int8_t> x(512), w(256);
    std::vector<int> sums(128);
    for (unsigned i = 0; i < 512; i++) {
        x[i] = int8_t(i * 37 + 11);
        w[i % 256] = int8_t(i * 53 + 5);
    }
    for (unsigned i = 0; i < 128; i++) {
        for (unsigned k = 0; k < 32; k++) {
            sums[i] += x[i / 8 * 32 + k] * w[i % 8 * 32 + k];
        }
    }
    Memory<int8_t> x_at(x), w_at(w);
    Memory<int> s_at(128);
    Kernel kernel("check_kernels_32", "product_s8");
    kernel.launch(1, 32, 0, {&x_at.at, &w_at.at, &s_at.at, &params});
    check(s_at.read() == sums, "product_s8");
}

// Runs an entry on 2 blocks of 64; the status that the next synchronisation reports, and the result.
std::pair<int, std::vector<float>> run(const char* entry, const std::vector<float>& x, size_t n_out = 128) {
    unsigned params = 0;
    Memory<float> x_at(x), y_at(n_out);
    Kernel kernel("check_kernels_64", entry);
    kernel.launch(2, 64, 256, {&x_at.at, &y_at.at, &params});
    int status = cuCtxSynchronize();
    std::vector<float> y(n_out);
    if (status == 0) {
        y = y_at.read();
    }
    return {status, y};
}

void faults() {
    auto x = numbers(128, 5);
    std::vector<float> back(128), through = x;
    for (unsigned i = 0; i < 128; i++) {
        back[i] = x[i / 64 * 64 + 63 - i % 64];
    }
    // The copy of thread 1 is told to store zeros.
    for (unsigned i = 0; i < 128; i++) {
        through[i] = i % 64 / 4 == 1 ? 0.0f : x[i];
    }
    check(near(run("reversed", x).second, back, 0.0f), "reversed");
    check(!near(run("no_barrier", x).second, back, 0.0f), "a removed barrier shows");
    check(near(run("copied", x).second, through, 0.0f), "copied");
    check(!near(run("no_wait", x).second, through, 0.0f), "a missing wait for a copy shows");
    auto voted = run("ballots", x).second;
    check(near({voted.begin(), voted.begin() + 64}, {x.begin(), x.begin() + 64}, 0.0f), "ballots");
    for (auto [entry, status] : {std::pair{"wrong_mask", 719}, {"outside_mask", 719}, {"divergent", 719},
                                 {"trapped", 719}, {"out_of_bounds", 700}}) {
        check(run(entry, x).first == status, entry);
        Address at = 0;
        check(cuMemAlloc_v2(&at, 16) == status, "a failed launch breaks the context");
        cuDevicePrimaryCtxReset_v2(0);
        check(cuMemAlloc_v2(&at, 16) == 0 && cuMemFree_v2(at) == 0, "a reset mends it");
    }
}

void driver() {
    int n = 0;
    check(cuDeviceGetCount(&n) == 0 && n == 2, "two devices");
    size_t before = 0, total = 0, after = 0;
    cuMemGetInfo_v2(&before, &total);
    Address at = 0;
    check(cuMemAlloc_v2(&at, total + 1) == 2, "more than there is");
    check(cuMemAlloc_v2(&at, total / 2) == 0, "half of it");
    Address other = 0;
    check(cuMemAlloc_v2(&other, total / 2 + 1) == 2, "more than is left");
    cuMemGetInfo_v2(&after, &total);
    check(before - after == total / 2, "the free bytes fall");
    check(cuMemFree_v2(at) == 0 && cuMemFree_v2(at) == 1, "freed once");
    std::vector<float> x = numbers(64, 6);
    {
        Memory<float> memory(64);
        auto fresh = memory.read();
        check(fresh[0] != fresh[0], "fresh memory is NaN");
        check(cuMemcpyHtoD_v2(memory.at + 4, x.data(), 256) == 1, "a copy beyond the end is refused");
    }
    void* module = nullptr;
    const char* image = "not an image, and long enough to be looked at as a header";
    check(cuModuleLoadData(&module, image) == 200, "not an image");
    {
        Kernel kernel("check_kernels_64", "no_such_entry");
        check(kernel.function == nullptr, "no such entry");
        Kernel real("check_kernels_64", "reversed");
        int value = 0;
        check(cuFuncGetAttribute(&value, 0, real.function) == 0 && value == 64, "threads of a kernel");
        check(cuFuncGetAttribute(&value, 1, real.function) == 0 && value >= 256, "static shared bytes of a kernel");
        unsigned params = 0;
        Memory<float> a(128), b(128);
        check(real.launch(0, 64, 0, {&a.at, &b.at, &params}) == 1, "an empty grid");
        check(real.launch(1, 128, 0, {&a.at, &b.at, &params}) == 701, "more threads than the launch bounds");
        check(real.launch(1, 64, 64 << 10, {&a.at, &b.at, &params}) == 1, "much shared memory without asking");
        check(cuFuncSetAttribute(real.function, 8, 64 << 10) == 0, "asking");
        check(real.launch(1, 64, 64 << 10, {&a.at, &b.at, &params}) == 0, "much shared memory after asking");
    }
    const char* name = nullptr;
    check(cuGetErrorName(2, &name) == 0 && !strcmp(name, "CUDA_ERROR_OUT_OF_MEMORY"), "names of errors");
}

// A captured launch is replayed with the arguments it had and the contents there are.
void graphs() {
    void *stream = nullptr, *graph = nullptr, *executable = nullptr;
    cuStreamCreate(&stream, 1);
    auto first = numbers(128, 8), second = numbers(128, 9);
    Memory<float> x(first), y(128), z(128);
    Kernel kernel("check_kernels_64", "reversed");
    check(cuStreamBeginCapture_v2(stream, 1) == 0, "begin");
    {
        unsigned params = 0;
        Address from = x.at, to = y.at;
        kernel.launch(2, 64, 0, {&from, &to, &params}, stream);
        from = to = 0;
    }
    cuMemcpyDtoDAsync_v2(z.at, y.at, 512, stream);
    check(cuStreamEndCapture(stream, &graph) == 0, "end");
    auto fresh = y.read();
    check(fresh[0] != fresh[0], "capture does not run");
    check(cuGraphInstantiateWithFlags(&executable, graph, 0) == 0, "instantiate");
    for (auto& contents : {first, second}) {
        cuMemcpyHtoD_v2(x.at, contents.data(), 512);
        cuGraphLaunch(executable, stream);
        cuStreamSynchronize(stream);
        check(z.read()[0] == contents[63] && z.read()[127] == contents[64], "replay");
    }
    check(cuStreamBeginCapture_v2(stream, 1) == 0 && cuStreamSynchronize(stream) == 900, "no waiting while capturing");
    void* none = nullptr;
    check(cuStreamEndCapture(stream, &none) == 901, "which ends the capture");
    cuGraphExecDestroy(executable);
    cuGraphDestroy(graph);
    cuStreamDestroy_v2(stream);
}

// Two streams hand a buffer over. Whether every round was right.
bool hand_over(bool wait) {
    void *one = nullptr, *two = nullptr, *event = nullptr;
    cuStreamCreate(&one, 1);
    cuStreamCreate(&two, 1);
    cuEventCreate(&event, 0);
    Kernel kernel("check_kernels_64", "reversed");
    bool right = true;
    float* pinned = nullptr;
    cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 512, 0);
    for (unsigned round = 0; round < 24; round++) {
        auto contents = numbers(128, 100 + round);
        memcpy(pinned, contents.data(), 512);
        Memory<float> x(128), y(128);
        unsigned params = 0;
        cuMemcpyHtoDAsync_v2(x.at, pinned, 512, one);
        cuEventRecord(event, one);
        if (wait) {
            cuStreamWaitEvent(two, event, 0);
        }
        kernel.launch(2, 64, 0, {&x.at, &y.at, &params}, two);
        cuStreamSynchronize(two);
        cuStreamSynchronize(one);
        right &= y.read()[0] == contents[63];
    }
    cuMemFreeHost(pinned);
    cuStreamDestroy_v2(one);
    cuStreamDestroy_v2(two);
    return right;
}

// Copies between devices: true, refused, and with a driver that lies.
void peers(void* first, void* second) {
    auto contents = numbers(64, 9);
    cuCtxSetCurrent(first);
    Memory<float> x(contents);
    // What a copy leaves in memory that was zero.
    auto copied = [&] {
        cuCtxSetCurrent(second);
        Memory<float> y(std::vector<float>(64, 0.0f));
        void* stream = nullptr;
        cuStreamCreate(&stream, 1);
        bool accepted = cuMemcpyPeerAsync(y.at, second, x.at, first, 256, stream) == 0;
        cuStreamSynchronize(stream);
        cuStreamDestroy_v2(stream);
        check(accepted, "every driver takes a copy between devices");
        return y.read();
    };
    int can = 0;
    cuCtxSetCurrent(second);
    check(cuDeviceCanAccessPeer(&can, 1, 0) == 0 && can == 1, "peer access");
    check(cuCtxEnablePeerAccess(first, 0) == 0 && cuCtxEnablePeerAccess(first, 0) == 704, "enabled once");
    check(copied() == contents, "a copy arrives");
    setenv("GEMEL_EMULATION_PEER", "drop", 1);
    check(cuDeviceCanAccessPeer(&can, 1, 0) == 0 && can == 1, "a liar offers peer access");
    check(copied() == std::vector<float>(64, 0.0f), "a dropped copy");
    setenv("GEMEL_EMULATION_PEER", "garbage", 1);
    auto garbage = copied();
    check(garbage != contents && garbage != std::vector<float>(64, 0.0f), "a garbled copy");
    setenv("GEMEL_EMULATION_PEER", "no", 1);
    check(cuDeviceCanAccessPeer(&can, 1, 0) == 0 && can == 0, "no peer access");
    check(cuCtxEnablePeerAccess(first, 0) == 217, "which cannot be enabled");
    check(copied() != contents, "nor may the driver's detour be relied on");
    unsetenv("GEMEL_EMULATION_PEER");
    cuCtxSetCurrent(first);
}

// Settings that hold a program to its promises, or plant a fault in it.
void settings() {
    Memory<float> x(numbers(64, 3));
    std::vector<float> host(64);
    void* stream = nullptr;
    cuStreamCreate(&stream, 1);
    setenv("GEMEL_EMULATION_PINNED_ONLY", "1", 1);
    check(cuMemcpyHtoDAsync_v2(x.at, host.data(), 256, stream) == 1, "an upload that is not pinned");
    check(cuMemcpyDtoHAsync_v2(host.data(), x.at, 256, stream) == 1, "a download that is not pinned");
    float* pinned = nullptr;
    cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 256, 0);
    check(cuMemcpyDtoHAsync_v2(pinned, x.at, 256, stream) == 0, "a pinned one");
    cuStreamSynchronize(stream);
    cuMemFreeHost(pinned);
    cuStreamDestroy_v2(stream);
    unsetenv("GEMEL_EMULATION_PINNED_ONLY");
    int version = 0;
    setenv("GEMEL_EMULATION_VERSION", "11020", 1);
    check(cuDriverGetVersion(&version) == 0 && version == 11020, "an old driver");
    unsetenv("GEMEL_EMULATION_VERSION");
    if (getenv("GEMEL_EMULATION_ASYNC")) {
        setenv("GEMEL_EMULATION_IGNORE_WAITS", "1", 1);
        check(!hand_over(true), "waits that are ignored");
        unsetenv("GEMEL_EMULATION_IGNORE_WAITS");
    }
}

} // namespace

int main(int, char** argv) {
    folder = argv[1];
    setvbuf(stdout, nullptr, _IOLBF, 0);
    void *first = nullptr, *second = nullptr;
    check(cuInit(0) == 0, "init");
    check(cuDevicePrimaryCtxRetain(&first, 0) == 0 && cuDevicePrimaryCtxRetain(&second, 1) == 0, "contexts");
    for (void* context : {second, first}) {
        cuCtxSetCurrent(context);
        maps();
        products();
        driver();
        graphs();
    }
    faults();
    peers(first, second);
    settings();
    check(hand_over(true), "streams that wait for each other");
    if (getenv("GEMEL_EMULATION_ASYNC")) {
        check(!hand_over(false), "a missing wait between streams shows");
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

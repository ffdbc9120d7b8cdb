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

void rms_norm() {
    for (auto [file, lanes, n, n_rows] :
         {std::tuple{"rms_norm_32", 32u, 100u, 13u}, {"rms_norm_256", 256u, 1757u, 5u}}) {
        struct {
            unsigned n_rows, n;
            float eps;
            unsigned n1, s0, s1, off;
        } p{n_rows, n, 1e-5f, 1, n + 3, 0, 7};
        auto x = numbers(7 + n_rows * (n + 3), 1), w = numbers(n, 2);
        std::vector<float> want;
        for (unsigned row = 0; row < n_rows; row++) {
            const float* at = &x[7 + row * (n + 3)];
            double sum = 0.0;
            for (unsigned i = 0; i < n; i++) {
                sum += double(at[i]) * at[i];
            }
            for (unsigned i = 0; i < n; i++) {
                want.push_back(float(at[i] / sqrt(sum / n + p.eps) * w[i]));
            }
        }
        Memory<float> x_at(x), w_at(w), y_at(n_rows * n);
        Kernel kernel(file, "rms_norm");
        unsigned rows_per_block = 256 / lanes;
        kernel.launch((n_rows + rows_per_block - 1) / rows_per_block, 256, 0, {&x_at.at, &w_at.at, &y_at.at, &p});
        check(near(y_at.read(), want, 1e-5f), file);
    }
}

void elementwise() {
    // Rows of 70 in chunks of 64, the second operand one row of 35.
    struct {
        unsigned n_rows = 3, n = 70, chunk = 64, n_chunks = 2, n1 = 1, a_s0 = 80, a_s1 = 0, a_off = 5;
        unsigned b_m0 = 1, b_m1 = 1, b_s0 = 0, b_s1 = 0, b_off = 2, b_n = 35, b_step = 64 % 35;
    } p;
    auto a = numbers(5 + 3 * 80, 3), b = numbers(40, 4);
    std::vector<float> sums, products, scaled;
    for (unsigned row = 0; row < 3; row++) {
        for (unsigned i = 0; i < 70; i++) {
            float x = a[5 + row * 80 + i], z = b[2 + i % 35];
            sums.push_back(x + z);
            products.push_back(x * z);
            scaled.push_back(3.0f * x + 0.5f);
        }
    }
    Memory<float> a_at(a), b_at(b), y_at(210);
    Kernel add("add", "add"), mul("mul", "mul"), scale("scale", "scale");
    add.launch(6, 64, 0, {&a_at.at, &b_at.at, &y_at.at, &p});
    check(near(y_at.read(), sums, 0.0f), "add");
    mul.launch(6, 64, 0, {&a_at.at, &b_at.at, &y_at.at, &p});
    check(near(y_at.read(), products, 0.0f), "mul");
    struct {
        unsigned n_rows = 3, n = 70, chunk = 64, n_chunks = 2, n1 = 1, a_s0 = 80, a_s1 = 0, a_off = 5;
        float scale = 3.0f, bias = 0.5f;
    } q;
    scale.launch(6, 64, 0, {&a_at.at, &y_at.at, &q});
    check(near(y_at.read(), scaled, 1e-6f), "scale");
}

void norms_and_activations() {
    struct {
        unsigned n_rows = 3, n = 70;
        float eps = 1e-6f;
        unsigned a_n1 = 1, a_s0 = 70, a_s1 = 0, a_off = 0, b_n1 = 1, b_s0 = 71, b_s1 = 0, b_off = 4;
    } p;
    auto a = numbers(210, 20), b = numbers(4 + 3 * 71, 21), w = numbers(70, 22);
    std::vector<float> sums(210), want(210);
    for (unsigned row = 0; row < 3; row++) {
        double squares = 0.0;
        for (unsigned i = 0; i < 70; i++) {
            float v = sums[row * 70 + i] = a[row * 70 + i] + b[4 + row * 71 + i];
            squares += double(v) * v;
        }
        for (unsigned i = 0; i < 70; i++) {
            want[row * 70 + i] = float(sums[row * 70 + i] / sqrt(squares / 70 + p.eps) * w[i]);
        }
    }
    Memory<float> a_at(a), b_at(b), w_at(w), sum_at(210), y_at(210);
    Kernel norm("add_rms_norm", "add_rms_norm");
    norm.launch(2, 64, 0, {&a_at.at, &b_at.at, &w_at.at, &sum_at.at, &y_at.at, &p});
    check(near(sum_at.read(), sums, 0.0f) && near(y_at.read(), want, 1e-5f), "add_rms_norm");

    struct {
        unsigned n_rows = 1, n = 210, chunk = 64, n_chunks = 4, n1 = 1, a_s0 = 0, a_s1 = 0, a_off = 0;
        unsigned b_m0 = 1, b_m1 = 1, b_s0 = 0, b_s1 = 0, b_off = 4, b_n = 210, b_step = 64;
    } q;
    for (unsigned i = 0; i < 210; i++) {
        want[i] = float(a[i] / (1.0 + exp(-double(a[i]))) * b[4 + i]);
    }
    Kernel glu("glu", "glu");
    glu.launch(4, 64, 0, {&a_at.at, &b_at.at, &y_at.at, &q});
    check(near(y_at.read(), want, 1e-6f), "glu");

    struct {
        unsigned n_rows = 1, n = 210, chunk = 64, n_chunks = 4, n1 = 1, a_s0 = 0, a_s1 = 0, a_off = 0;
        float cap = 0.5f, inv_cap = 2.0f;
    } r;
    for (unsigned i = 0; i < 210; i++) {
        want[i] = float(0.5 * tanh(2.0 * a[i]));
    }
    Kernel softcap("softcap", "softcap");
    softcap.launch(4, 64, 0, {&a_at.at, &y_at.at, &r});
    check(near(y_at.read(), want, 1e-6f), "softcap");
}

void sampling() {
    // Rows of 1000 in slices of 300, with equals and the best in the last slice.
    auto x = numbers(2003, 23);
    x[3 + 950] = x[3 + 970] = 2.0f;
    x[3 + 1000] = x[3 + 1001] = 3.0f;
    struct {
        unsigned n_rows = 2, n = 1000, slice = 300, n_slices = 4, x_n1 = 1, x_s0 = 1000, x_s1 = 0, x_off = 3;
    } p;
    Memory<float> x_at(x), parts(16), stats(4);
    Memory<unsigned> best(2);
    Kernel argmax("argmax", "argmax"), merge("argmax", "argmax_merge");
    argmax.launch(8, 64, 0, {&x_at.at, &parts.at, &best.at, &p});
    merge.launch(2, 64, 0, {&x_at.at, &parts.at, &best.at, &p});
    check(best.read() == std::vector<unsigned>{950, 0}, "argmax");

    Kernel reduce("softmax_stats", "softmax_stats"), join("softmax_stats", "softmax_stats_merge");
    reduce.launch(8, 64, 0, {&x_at.at, &parts.at, &stats.at, &p});
    join.launch(2, 64, 0, {&x_at.at, &parts.at, &stats.at, &p});
    std::vector<float> want = {2.0f, 0.0f, 3.0f, 0.0f};
    for (unsigned row = 0; row < 2; row++) {
        double sum = 0.0;
        for (unsigned i = 0; i < 1000; i++) {
            sum += exp(double(x[3 + 1000 * row + i]) - want[2 * row]);
        }
        want[2 * row + 1] = float(sum);
    }
    check(near(stats.read(), want, 1e-3f), "softmax_stats");

    struct {
        unsigned n_rows = 2, n = 1000, k = 5, group = 16, n_groups = 63, n_blocks = 1, n_candidates = 80;
        unsigned x_n1 = 1, x_s0 = 1000, x_s1 = 0, x_off = 3;
    } q;
    Memory<unsigned> work(2 * (63 + 80)), ids(10);
    Memory<float> values(10);
    Kernel groups("top_k_logits", "top_k_logits_groups"), top("top_k_logits", "top_k_logits");
    groups.launch(2, 64, 0, {&x_at.at, &work.at, &ids.at, &values.at, &q});
    top.launch(2, 64, 0, {&x_at.at, &work.at, &ids.at, &values.at, &q});
    std::vector<unsigned> ids_want;
    for (unsigned row = 0; row < 2; row++) {
        std::vector<unsigned> order(1000);
        for (unsigned i = 0; i < 1000; i++) {
            order[i] = i;
        }
        std::stable_sort(order.begin(), order.end(),
                         [&](unsigned a, unsigned b) { return x[3 + 1000 * row + a] > x[3 + 1000 * row + b]; });
        ids_want.insert(ids_want.end(), order.begin(), order.begin() + 5);
    }
    auto found = ids.read();
    check(found == ids_want && values.read()[5] == 3.0f && found[0] == 950 && found[1] == 970, "top_k_logits");
}

void moves() {
    auto x = numbers(300, 24);
    // f32 to f16 and back, a view of 3 rows of 7 out of rows of 10.
    struct {
        unsigned n_rows = 1, n = 11, chunk = 64, n_chunks = 1, n1 = 1, a_s0 = 0, a_s1 = 0, a_off = 0;
        unsigned x_n_rows = 3, x_n = 7, x_chunk = 64, x_n_chunks = 1, x_n1 = 1, x_a_s0 = 10, x_a_s1 = 0, x_a_off = 2;
        unsigned n_elems = 21, x_type = 0, y_type = 1;
    } p;
    Memory<float> x_at(x);
    Memory<uint16_t> y_at(22);
    Kernel cast("copy_cast", "copy_cast");
    cast.launch(1, 64, 0, {&x_at.at, &y_at.at, &p});
    auto halves = y_at.read();
    bool right = halves[21] == 0;
    for (unsigned i = 0; i < 21; i++) {
        right &= halves[i] == std::bit_cast<uint16_t>(_Float16(x[2 + i / 7 * 10 + i % 7]));
    }
    check(right, "copy_cast");

    struct {
        unsigned n_ids = 4, ids_off = 1, ids_s = 1, n = 7, n_total = 20, row0 = 0, n_rows = 20;
        float scale = 2.0f;
        unsigned w_n1 = 1, w_s0 = 10, w_s1 = 0, w_off = 1;
    } q;
    std::vector<int> ids = {99, 3, -1, 19, 20};
    Memory<int> ids_at(ids);
    Memory<float> rows(28);
    Kernel gather("gather_rows", "gather_rows");
    gather.launch(1, 64, 0, {&x_at.at, &x_at.at, &ids_at.at, &rows.at, &q});
    std::vector<float> want(28);
    for (unsigned i = 0; i < 7; i++) {
        want[i] = 2.0f * x[1 + 3 * 10 + i];
        want[14 + i] = 2.0f * x[1 + 19 * 10 + i];
    }
    check(near(rows.read(), want, 0.0f), "gather_rows");

    struct {
        unsigned n_items = 28, n = 7, n_rows = 5, x_s = 10, x_off = 2, y_s = 8, y_off = 1, idx_off = 0;
    } r;
    Memory<int> targets(std::vector<int>{4, -1, 0, 5});
    Memory<float> table(std::vector<float>(41, 9.0f));
    Kernel scatter("scatter_rows", "scatter_rows");
    scatter.launch(1, 64, 0, {&x_at.at, &targets.at, &table.at, &r});
    std::vector<float> table_want(41, 9.0f);
    for (unsigned i = 0; i < 7; i++) {
        table_want[1 + 4 * 8 + i] = x[2 + i];
        table_want[1 + i] = x[2 + 20 + i];
    }
    check(near(table.read(), table_want, 0.0f), "scatter_rows");
}

void rotation() {
    // 3 tokens, 2 heads of 10 of which 8 are rotated in pairs of halves; positions 0, 300 and -1.
    struct {
        unsigned n_items = 36, items = 6, n_heads = 2, heads_per_thread = 1, head_dim = 10, pairs = 4, first = 1;
        unsigned second = 4, n_coarse = 2, x_s0 = 20, x_s1 = 10, x_off = 0, pos_off = 0;
    } p;
    auto x = numbers(60, 25);
    std::vector<float> table, want = x;
    for (unsigned row = 0; row < 258; row++) {
        for (unsigned pair = 0; pair < 4; pair++) {
            double position = row < 256 ? row : 256.0 * (row - 256);
            table.push_back(float(cos(position * pow(0.1, pair))));
            table.push_back(float(sin(position * pow(0.1, pair))));
        }
    }
    std::vector<int> positions = {0, 300, -1};
    for (unsigned head = 0; head < 2; head++) {
        for (unsigned pair = 0; pair < 4; pair++) {
            double angle = 300.0 * pow(0.1, pair);
            unsigned a = 20 + head * 10 + pair, b = a + 4;
            want[a] = float(x[a] * cos(angle) - x[b] * sin(angle));
            want[b] = float(x[a] * sin(angle) + x[b] * cos(angle));
        }
    }
    Memory<float> x_at(x), table_at(table), y_at(60);
    Memory<int> positions_at(positions);
    Kernel rope("rope", "rope");
    rope.launch(1, 64, 0, {&x_at.at, &positions_at.at, &table_at.at, &y_at.at, &p});
    check(near(y_at.read(), want, 1e-5f), "rope");
}

void quantised() {
    auto x = numbers(2 * 96, 26);
    struct {
        unsigned x_n1 = 1, x_s0 = 96, x_s1 = 0, x_off = 0, n_rows = 2, n = 96;
        float step = 1.0f / 127.0f, smallest = 1.17549435e-38f;
    } p;
    Memory<float> x_at(x), s_at(12);
    Memory<int8_t> q_at(192);
    Kernel quantize("quantize_q8", "quantize_q8_quads");
    quantize.launch(1, 64, 0, {&x_at.at, &q_at.at, &s_at.at, &p});
    auto q = q_at.read();
    auto s = s_at.read();
    bool right = true;
    for (unsigned i = 0; i < 192; i++) {
        right &= fabsf(q[i] * s[i / 32 * 2] - x[i]) <= 0.501f * s[i / 32 * 2];
    }
    for (unsigned block = 0; block < 6; block++) {
        int sum = 0;
        for (unsigned i = 0; i < 32; i++) {
            sum += q[32 * block + i];
        }
        right &= fabsf(s[2 * block + 1] - s[2 * block] * float(sum)) < 1e-6f;
    }
    check(right, "quantize_q8");

    // 2 tokens of one head of 96 into cells 70 and none, of a cache of 2 pages.
    std::vector<int> slots = {70, -1};
    Memory<int> slots_at(slots);
    struct {
        unsigned n_items, items, n_heads = 1, head_dim = 96, n_cells = 128, row_words, narrow, slots_off = 0;
        unsigned x_n1 = 1, x_s0 = 96, x_s1 = 0, x_off = 0;
    } c;
    auto run = [&](const char* file, const char* entry, unsigned items, unsigned row_words, unsigned narrow) {
        c.items = items, c.n_items = 2 * items, c.row_words = row_words, c.narrow = narrow;
        std::vector<unsigned> unset(128 * row_words, 0x12345678u);
        Memory<unsigned> cache(unset);
        Kernel write(file, entry);
        write.launch((c.n_items + 63) / 64, 64, 0, {&x_at.at, &slots_at.at, &cache.at, &c});
        auto words = cache.read();
        bool rest = true;
        for (size_t i = 0; i < words.size(); i++) {
            rest &= i / row_words == 70 || words[i] == 0x12345678u;
        }
        check(rest, file);
        return std::vector<unsigned>(words.begin() + 70 * row_words, words.begin() + 71 * row_words);
    };
    auto half = [](unsigned bits) { return float(std::bit_cast<_Float16>(uint16_t(bits))); };
    auto f16 = run("kv_write_f16", "kv_write", 48, 48, 0);
    right = true;
    for (unsigned i = 0; i < 96; i++) {
        right &= fabsf(half(f16[i / 2] >> (16 * (i % 2))) - x[i]) < 1e-3f;
    }
    check(right, "kv_write");
    auto q8 = run("kv_write_q8_0", "kv_write_blocks", 32, 2 + 3 * 8, 2);
    right = q8[1] >> 16 == 0;
    for (unsigned i = 0; i < 96; i++) {
        float d = half(q8[i / 64] >> (16 * (i / 32 % 2)));
        right &= fabsf(d * float(int8_t(q8[2 + i / 4] >> (8 * (i % 4)))) - x[i]) < 0.01f;
    }
    check(right, "kv_write_blocks q8_0");
    auto q5 = run("kv_write_q5_1", "kv_write_blocks", 32, 3 * 6, 0);
    right = true;
    for (unsigned i = 0; i < 96; i++) {
        const unsigned* block = &q5[i / 32 * 6];
        unsigned j = i % 32;
        unsigned nibble = block[2 + j % 16 / 4] >> (8 * (j % 4) + 4 * (j / 16)) & 15u;
        float code = float(nibble | (block[1] >> j & 1u) << 4);
        right &= fabsf(half(block[0]) * code + half(block[0] >> 16) - x[i]) < 0.04f;
    }
    check(right, "kv_write_blocks q5_1");
}

// 3 tokens of 4 heads, two to a KV head, of two sequences in a cache of 4 pages.
void attention() {
    constexpr unsigned D = 8, KV = 2, CELLS = 4 * 64;
    auto q = numbers(3 * 4 * D, 27), k = numbers(CELLS * KV * D, 28), v = numbers(CELLS * KV * D, 29);
    std::vector<int> pages = {2, 0, 3, -1}, rows = {0, 1, 0}, positions = {100, 5, 70};
    Memory<float> q_at(q), k_at(k), v_at(v);
    Memory<int> pages_at(pages), rows_at(rows), positions_at(positions);
    for (unsigned window : {0u, 40u}) {
        std::vector<float> want;
        for (unsigned t = 0; t < 3; t++) {
            for (unsigned head = 0; head < 4; head++) {
                double total = 0.0, sums[D] = {};
                for (int j = 0; j <= positions[t]; j++) {
                    if (window && j <= positions[t] - int(window)) {
                        continue;
                    }
                    size_t at = ((size_t(pages[2 * rows[t] + j / 64]) * KV + head / 2) * 64 + j % 64) * D;
                    double score = 0.0;
                    for (unsigned c = 0; c < D; c++) {
                        score += double(q[(t * 4 + head) * D + c]) * k[at + c];
                    }
                    double weight = exp(0.7 * score);
                    total += weight;
                    for (unsigned c = 0; c < D; c++) {
                        sums[c] += weight * v[at + c];
                    }
                }
                for (double sum : sums) {
                    want.push_back(float(sum / total));
                }
            }
        }
        for (unsigned n_splits : {1u, 3u}) {
            struct {
                unsigned n_blocks, n_merged = 3 * 4 * D / 4, n_splits, n_tokens = 3, n_heads = 4, n_kv_heads = KV;
                unsigned group = 2, dk = D, v_quads = D / 4, k_words = D, k_narrow = 0, v_words = D, v_narrow = 0;
                unsigned n_pages = 4, n_seq_rows = 2, max_pages = 2, window;
                float scale = 0.7f, softcap = 0.0f;
                unsigned record, q_s0 = 4 * D, q_s1 = D, q_off = 0, table_off = 0, seq_off = 0, pos_off = 0;
            } p;
            p.n_splits = n_splits, p.n_blocks = 2 * KV * n_splits, p.window = window;
            p.record = D / 4 + (n_splits > 1);
            Memory<float> parts(3 * 4 * n_splits * p.record * 4), merged(3 * 4 * D);
            Kernel kernel("attention", "attention"), merge("attention", "attention_merge");
            kernel.launch(p.n_blocks, 64, 0,
                          {&q_at.at, &k_at.at, &v_at.at, &pages_at.at, &rows_at.at, &positions_at.at, &parts.at, &p});
            if (n_splits > 1) {
                merge.launch(1, 64, 0, {&parts.at, &merged.at, &p});
            }
            check(near(n_splits > 1 ? merged.read() : parts.read(), want, 1e-5f), "attention");
        }
    }
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
        rms_norm();
        elementwise();
        norms_and_activations();
        sampling();
        moves();
        rotation();
        quantised();
        attention();
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

// Runs one kernel of `check_kernels.cu` on exactly sized memory, for builds with a sanitiser: check_one ENTRY.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using Emulated = int(const unsigned*, const unsigned*, size_t, void**);
extern "C" {
Emulated reversed__emulated, no_barrier__emulated, copied__emulated, out_of_bounds__emulated,
    shared_out_of_bounds__emulated, block_race__emulated;
}

int main(int, char** argv) {
    struct {
        const char* name;
        Emulated* run;
    } entries[] = {
        {"reversed", reversed__emulated},
        {"no_barrier", no_barrier__emulated},
        {"copied", copied__emulated},
        {"out_of_bounds", out_of_bounds__emulated},
        {"shared_out_of_bounds", shared_out_of_bounds__emulated},
        {"block_race", block_race__emulated},
    };
    for (auto& entry : entries) {
        if (strcmp(entry.name, argv[1]) == 0) {
            const unsigned grid[3] = {2, 1, 1}, block[3] = {64, 1, 1};
            auto* x = static_cast<float*>(aligned_alloc(16, 128 * sizeof(float)));
            auto* y = static_cast<float*>(aligned_alloc(16, 128 * sizeof(float)));
            memset(x, 0, 128 * sizeof(float));
            unsigned params = 0;
            void* arguments[] = {&x, &y, &params};
            int status = entry.run(grid, block, 64 * sizeof(float), arguments);
            free(x);
            free(y);
            return status != 0;
        }
    }
    return 2;
}

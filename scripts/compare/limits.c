// What the processor can do at best, measured: bytes read from memory and f32 multiply-adds, on N threads. The share of
// these that an engine reaches is a figure that does not depend on another engine. The bytes are read over and over
// from a buffer of the size given, for which the weights' size is meant: what a shared cache keeps of the weights from
// one token to the next, it keeps of this buffer too. Prints one JSON object.

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_THREADS = 256, LANES = 16, CHAINS = 10, ROUNDS = 15 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

struct job {
    const uint64_t * words;
    size_t count;
    uint64_t sum;
    float product;
};

static void * read_all(void * arg) {
    struct job * job = arg;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 8 <= job->count; i += 8) {
        for (int k = 0; k < 8; k++) {
            sum[k] += job->words[i + k];
        }
    }
    for (int k = 0; k < 8; k++) {
        job->sum += sum[k];
    }
    return NULL;
}

// Enough independent chains to fill the pipelines; the compiler turns LANES into vectors and keeps them in registers.
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
static const long MULTIPLY_STEPS = 4000000;

static void * multiply_all(void * arg) {
    struct job * job = arg;
    lanes x[CHAINS], a, b;
    for (int k = 0; k < LANES; k++) {
        a[k] = 0.999f + (float) (job->count % 7) * 1e-9f;
        b[k] = 1e-4f;
        for (int c = 0; c < CHAINS; c++) {
            x[c][k] = (float) c;
        }
    }
    for (long i = 0; i < MULTIPLY_STEPS; i++) {
        for (int c = 0; c < CHAINS; c++) {
            x[c] = x[c] * a + b;
        }
    }
    for (int c = 0; c < CHAINS; c++) {
        for (int k = 0; k < LANES; k++) {
            job->product += x[c][k];
        }
    }
    return NULL;
}

static double best_time(void * (*work)(void *), struct job * jobs, int threads) {
    double best = 1e300;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t ids[MAX_THREADS];
        double start = now();
        for (int t = 0; t < threads; t++) {
            if (pthread_create(&ids[t], NULL, work, &jobs[t]) != 0) {
                fprintf(stderr, "limits: no thread\n");
                exit(1);
            }
        }
        for (int t = 0; t < threads; t++) {
            pthread_join(ids[t], NULL);
        }
        double seconds = now() - start;
        best = seconds < best ? seconds : best;
    }
    return best;
}

int main(int argc, char ** argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    size_t words = (argc > 2 ? strtoull(argv[2], NULL, 10) : (size_t) 512 << 20) / sizeof(uint64_t);
    if (threads < 1 || threads > MAX_THREADS || words < (size_t) threads * 8) {
        fprintf(stderr, "usage: limits THREADS [BYTES]\n");
        return 1;
    }
    uint64_t * data = malloc(words * sizeof(*data));
    if (!data) {
        fprintf(stderr, "limits: no memory\n");
        return 1;
    }
    for (size_t i = 0; i < words; i++) {
        data[i] = i;
    }
    struct job jobs[MAX_THREADS];
    memset(jobs, 0, sizeof(jobs));
    for (int t = 0; t < threads; t++) {
        jobs[t].count = words / (size_t) threads;
        jobs[t].words = data + (size_t) t * jobs[t].count;
    }
    double read = best_time(read_all, jobs, threads);
    double multiply = best_time(multiply_all, jobs, threads);
    uint64_t sum = 0;
    float product = 0;
    for (int t = 0; t < threads; t++) {
        sum += jobs[t].sum;
        product += jobs[t].product;
    }
    printf("{\"threads\": %d, \"gb_per_s\": %.2f, \"gflop_per_s\": %.1f, \"check\": %g}\n", threads,
           (double) words * 8 / read / 1e9, 2.0 * LANES * CHAINS * (double) MULTIPLY_STEPS * threads / multiply / 1e9,
           (double) (sum % 1000) + (double) product);
    free(data);
    return 0;
}

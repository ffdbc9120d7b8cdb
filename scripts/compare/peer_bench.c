// Measures llama.cpp as `gemel bench` measures us: prefill of N tokens from an empty cache, then decode of N tokens one
// at a time from an empty cache, each after a warm-up of the same shape, and prints one JSON object. A few greedy
// tokens after a fixed prompt show that it computed the right thing.
//
// Built and run by compare.sh against the prebuilt libraries of one release, whose structs are passed by value: the
// headers must be of exactly that release.

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-backend.h"
#include "llama.h"

enum { MAX_REPS = 64, GREEDY_MAX = 64 };

static void die(const char * what) {
    fprintf(stderr, "peer_bench: %s\n", what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static void quiet(enum ggml_log_level level, const char * text, void * verbose) {
    if (level >= GGML_LOG_LEVEL_ERROR || *(const bool *) verbose) {
        fputs(text, stderr);
    }
}

static void decode(struct llama_context * ctx, llama_token * tokens, int n) {
    if (llama_decode(ctx, llama_batch_get_one(tokens, n)) != 0) {
        die("llama_decode failed");
    }
}

// Seconds for n tokens in one batch, or one by one. The tokens' values do not matter to the speed.
static double measure(struct llama_context * ctx, int n, bool one_by_one, int n_vocab) {
    llama_token * tokens = malloc(sizeof(*tokens) * (size_t) n);
    for (int i = 0; i < n; i++) {
        tokens[i] = (i * 7919 + 13) % n_vocab;
    }
    llama_memory_clear(llama_get_memory(ctx), true);
    llama_synchronize(ctx);
    double start = now();
    if (one_by_one) {
        for (int i = 0; i < n; i++) {
            decode(ctx, &tokens[i], 1);
            llama_synchronize(ctx);
        }
    } else {
        decode(ctx, tokens, n);
        llama_synchronize(ctx);
    }
    double seconds = now() - start;
    free(tokens);
    return seconds;
}

static void bench(struct llama_context * ctx, const char * name, int n, int reps, bool one_by_one, int n_vocab) {
    if (n <= 0) {
        return;
    }
    double warmup = measure(ctx, one_by_one && n > 2 ? 2 : n, one_by_one, n_vocab);
    double best = 1e300, sum = 0;
    for (int r = 0; r < reps; r++) {
        double s = measure(ctx, n, one_by_one, n_vocab);
        best = s < best ? s : best;
        sum += s;
    }
    printf(", \"%s\": {\"tokens\": %d, \"reps\": %d, \"tokens_per_s\": %.3f, \"tokens_per_s_mean\": %.3f, \"warmup_s\": %.3f}",
           name, n, reps, n / best, n * reps / sum, warmup);
    fflush(stdout);
}

static void greedy(struct llama_context * ctx, const struct llama_vocab * vocab, const char * prompt, int n) {
    llama_token tokens[512];
    int count = llama_tokenize(vocab, prompt, (int) strlen(prompt), tokens, 512, true, true);
    if (count <= 0) {
        die("the prompt gives no tokens, or more than 512");
    }
    llama_memory_clear(llama_get_memory(ctx), true);
    decode(ctx, tokens, count);
    printf(", \"greedy\": [");
    for (int i = 0; i < n; i++) {
        const float * logits = llama_get_logits_ith(ctx, -1);
        llama_token best = 0;
        for (llama_token t = 1; t < llama_vocab_n_tokens(vocab); t++) {
            best = logits[t] > logits[best] ? t : best;
        }
        printf("%s%d", i ? ", " : "", best);
        if (i + 1 < n) {
            decode(ctx, &best, 1);
        }
    }
    printf("]");
}

int main(int argc, char ** argv) {
    const char * libs = NULL, * model_path = NULL, * backend = "cpu", * prompt = "The capital of France is";
    int n_prompt = 32, n_gen = 8, n_threads = 2, n_greedy = 8, reps = 2, ngl = 999;
    bool verbose = false;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char * key = argv[i], * value = argv[i + 1];
        if (!strcmp(key, "--libs")) libs = value;
        else if (!strcmp(key, "-m")) model_path = value;
        else if (!strcmp(key, "--backend")) backend = value;
        else if (!strcmp(key, "--prompt")) prompt = value;
        else if (!strcmp(key, "-p")) n_prompt = atoi(value);
        else if (!strcmp(key, "-n")) n_gen = atoi(value);
        else if (!strcmp(key, "-t")) n_threads = atoi(value);
        else if (!strcmp(key, "-r")) reps = atoi(value);
        else if (!strcmp(key, "--greedy")) n_greedy = atoi(value);
        else if (!strcmp(key, "-ngl")) ngl = atoi(value);
        else if (!strcmp(key, "-v")) verbose = atoi(value) != 0;
        else die("unknown option; see the source");
    }
    if (!libs || !model_path || argc % 2 == 0 || reps < 1 || reps > MAX_REPS || n_greedy > GREEDY_MAX) {
        die("usage: peer_bench --libs DIR -m MODEL [--backend cpu|vulkan] [-p N] [-n N] [-t N] [-r N] [-ngl N] "
            "[--greedy N] [--prompt TEXT] [-v 0|1]");
    }

    llama_log_set(quiet, &verbose);
    ggml_backend_load_all_from_path(libs);
    llama_backend_init();

    // An empty list of devices means the CPU alone; no list would mean every device found.
    ggml_backend_dev_t devices[2] = {NULL, NULL};
    const char * device = "CPU";
    if (strcmp(backend, "cpu") != 0) {
        for (size_t i = 0; i < ggml_backend_dev_count() && !devices[0]; i++) {
            ggml_backend_dev_t dev = ggml_backend_dev_get(i);
            if (!strncmp(ggml_backend_dev_name(dev), "Vulkan", 6)) {
                devices[0] = dev;
                device = ggml_backend_dev_description(dev);
            }
        }
        if (!devices[0]) {
            die("no Vulkan device; a software one must be named: GGML_VK_VISIBLE_DEVICES=0");
        }
    }

    double start = now();
    struct llama_model_params mp = llama_model_default_params();
    mp.devices = devices;
    mp.n_gpu_layers = devices[0] ? ngl : 0;
    struct llama_model * model = llama_model_load_from_file(model_path, mp);
    if (!model) {
        die("the model did not load");
    }
    struct llama_context_params cp = llama_context_default_params();
    int longest = n_prompt > n_gen ? n_prompt : n_gen;
    cp.n_ctx = (uint32_t) (longest < 1024 ? 1024 : longest);
    cp.n_batch = cp.n_ctx;
    cp.n_threads = n_threads;
    cp.n_threads_batch = n_threads;
    struct llama_context * ctx = llama_init_from_model(model, cp);
    if (!ctx) {
        die("the context did not open");
    }
    const struct llama_vocab * vocab = llama_model_get_vocab(model);
    int n_vocab = llama_vocab_n_tokens(vocab);

    printf("{\"engine\": \"llama.cpp\", \"backend\": \"%s\", \"device\": \"%s\", \"threads\": %d, \"params\": %llu, "
           "\"weight_bytes\": %llu, \"load_s\": %.3f",
           backend, device, n_threads, (unsigned long long) llama_model_n_params(model),
           (unsigned long long) llama_model_size(model), now() - start);
    bench(ctx, "prefill", n_prompt, reps, false, n_vocab);
    bench(ctx, "decode", n_gen, reps, true, n_vocab);
    if (n_greedy > 0) {
        greedy(ctx, vocab, prompt, n_greedy);
    }
    printf("}\n");
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}

#!/usr/bin/env bash
# Measures llama.cpp and Gemel on this machine, on the same file, and prints one table: tokens a second, the ratio, and
# the share of what the machine can do.
#
#   scripts/compare.sh [-m MODEL.gguf] [-p TOKENS] [-n TOKENS] [-t THREADS] [-r REPS] [--rounds N]
#                      [--driver system|lavapipe|swiftshader] [--gb-per-s X --gflop-per-s Y] [--limit MINUTES]
#                      [--peer-only] [-o FILE.json]
#
#   -p, -n     tokens of prefill and of decode, both from an empty cache (64 and 16)
#   -r         repetitions inside a process, after a warm-up (3)
#   --rounds   how often the engines are run in turn; the best of all counts, since a busy machine only slows down (2)
#   --driver   the Vulkan driver: `system` is whatever the loader finds, the others those of setup-test-drivers.sh.
#              Default: system where there is a GPU, else lavapipe
#   --gb-per-s, --gflop-per-s
#              the limits of the GPU, from its data sheet. Without them the shares are of the processor's own limits,
#              measured, which is right for the CPU and for software drivers
#   --limit    how many minutes one process may take (30). llama.cpp gave no prefill of a Q4_K_M model on lavapipe within
#              20; -p 0 leaves prefill out, -n 0 decode
#
# llama.cpp comes prebuilt from the npm package @node-llama-cpp/linux-x64-vulkan, its headers from the sources that the
# package node-llama-cpp carries; both are unpacked into $cache/peer and nothing of them is compiled but our own
# compare/peer_bench.c. A first run on a software driver compiles shaders for minutes.
#
# Not alike: llama.cpp copies all logits to the host after each token, `gemel bench` takes the argmax on the device.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
scripts=$root/scripts

release=3.22.1
model='' prompt=64 generate=16 threads=$(nproc) reps=3 rounds=2 driver='' gb='' gflop='' peer_only=no out='' minutes=30
while [ $# -gt 0 ]; do
    case $1 in
        --peer-only) peer_only=yes; shift; continue ;;
        -m | -p | -n | -t | -r | -o | --limit | --rounds | --driver | --gb-per-s | --gflop-per-s) [ $# -ge 2 ] || die "$1 needs a value" ;;
        *) die "unknown argument '$1'; the usage is at the top of $0" ;;
    esac
    case $1 in
        -m) model=$2 ;;
        -p) prompt=$2 ;;
        -n) generate=$2 ;;
        -t) threads=$2 ;;
        -r) reps=$2 ;;
        -o) out=$2 ;;
        --limit) minutes=$2 ;;
        --rounds) rounds=$2 ;;
        --driver) driver=$2 ;;
        --gb-per-s) gb=$2 ;;
        --gflop-per-s) gflop=$2 ;;
    esac
    shift 2
done

[ "$(uname -sm)" = "Linux x86_64" ] || die "the prebuilt llama.cpp is for Linux on x86-64"
need npm "install nodejs and npm"
need git "install git"
need cc "install gcc"
need python3 "install python3"
if [ -z "$driver" ]; then
    if has_gpu; then driver=system; else driver=lavapipe; fi
fi
[ -n "$model" ] || model=$("$scripts/fetch-models.sh" smollm2)
[ -f "$model" ] || die "no file $model"

# --- The peer's libraries and headers, once --------------------------------------------------------------------------

peer=$cache/peer/$release
if [ ! -d "$peer" ]; then
    scratch=$(scratch_dir)
    trap 'rm -rf "$scratch"' EXIT
    log "fetching llama.cpp (60 MB)"
    (
        cd "$scratch"
        npm pack --silent "@node-llama-cpp/linux-x64-vulkan@$release" "node-llama-cpp@$release" >/dev/null
        mkdir -p new/lib new/include
        tar -xzf "node-llama-cpp-linux-x64-vulkan-$release.tgz" -C new/lib --strip-components=3 package/bins/linux-x64-vulkan
        tar -xzf "node-llama-cpp-$release.tgz" package/llama/gitRelease.bundle
        git -c init.defaultBranch=main clone --quiet --bare package/llama/gitRelease.bundle sources.git
        git -C sources.git archive HEAD include ggml/include | tar -x
        mv include/*.h ggml/include/*.h new/include/
    )
    mkdir -p "$cache/peer"
    mv "$scratch/new" "$peer"
fi

# The linker wants names without the release in them.
library() {
    local found=("$peer"/lib/"$1"*.so)
    printf -- '-l:%s' "$(basename "${found[0]}")"
}
cc -O2 -std=c11 -D_POSIX_C_SOURCE=200809L -I "$peer/include" "$scripts/compare/peer_bench.c" -o "$peer/peer_bench" \
    -L "$peer/lib" "$(library libllama.)" "$(library libggml.)" "$(library libggml-base)" "-Wl,-rpath,$peer/lib"
cc -O3 -march=native -std=gnu11 -pthread "$scripts/compare/limits.c" -o "$peer/limits"

# --- The driver, the same for both -----------------------------------------------------------------------------------

environment=()
case $driver in
    system) ;;
    lavapipe | swiftshader)
        [ -f "$cache/drivers/$driver.env" ] || "$scripts/setup-test-drivers.sh" >/dev/null
        mapfile -t environment < "$cache/drivers/$driver.env"
        # llama.cpp leaves software devices out unless one is named.
        environment+=(GGML_VK_VISIBLE_DEVICES=0)
        ;;
    *) die "unknown driver '$driver'; system, lavapipe or swiftshader" ;;
esac
environment+=("MESA_SHADER_CACHE_DIR=${MESA_SHADER_CACHE_DIR:-$cache/mesa}")

# --- The runs, each in its own process -------------------------------------------------------------------------------

results=$(scratch_dir)
trap 'rm -rf "$results" "${scratch:-}"' EXIT

# measure NAME COMMAND... : one run; a failure is told and leaves its row empty.
measure() {
    local name=$1
    shift
    log "$name"
    if ! timeout "${minutes}m" env "${environment[@]}" "$@" > "$results/$name.json" 2> "$results/$name.log"; then
        log "warning: $name failed: $(tail -n 3 "$results/$name.log")"
        rm -f "$results/$name.json"
    fi
}

gemel=''
if [ "$peer_only" = no ]; then
    need cargo "install Rust 1.90 or later, or use --peer-only"
    log "building gemel"
    cargo build --release --quiet --manifest-path "$root/Cargo.toml" -p gemel
    gemel=${CARGO_TARGET_DIR:-$root/target}/release/gemel
fi
load=$(cut -d' ' -f1 /proc/loadavg)
[ "${load%.*}" -lt 1 ] || log "warning: other work is running here (load $load); the figures are lower bounds"
for round in $(seq "$rounds"); do
    # The weights' size is near enough the file's.
    measure "limits.$round" "$peer/limits" "$threads" "$(stat -Lc %s "$model")"
    for backend in cpu vulkan; do
        measure "llama.cpp-$backend.$round" "$peer/peer_bench" --libs "$peer/lib" -m "$model" --backend "$backend" \
            -p "$prompt" -n "$generate" -t "$threads" -r "$reps"
    done
    [ -z "$gemel" ] || measure "gemel-vulkan.$round" "$gemel" bench -m "$model" -p "$prompt" -n "$generate" -r "$reps" -o json
done
python3 "$scripts/compare/table.py" "$results" "${out:--}" "${gb:-0}" "${gflop:-0}"

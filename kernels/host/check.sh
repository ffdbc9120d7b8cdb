#!/usr/bin/env bash
# The self-test of the emulation (ops are held against the reference by the conformance suite): check.sh [OUT_DIR].
# Prints "N passed, N failed" for each order of threads and blocks, with delayed streams, and for the builds with
# sanitisers; its exit status says whether all was well.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
out=${1:-$(mktemp -d)}
mkdir -p "$out"
out=$(realpath "$out")
cd "$here/../.."
compiler=${CXX:-g++}
kernel="-std=c++20 -O1 -g1 -march=x86-64-v3 -ffp-contract=off -fno-strict-aliasing -fvisibility=hidden -w
    -include kernels/host/emulation.hpp -I kernels -x c++"
shared="-fPIC -shared -fno-gnu-unique -Wl,-Bsymbolic"

"$here/build.sh" "$out"

source_of() { # threads, entries
    {
        echo "constexpr unsigned THREADS = $1u;"
        echo "struct Params { unsigned unused; };"
        echo '#include "host/check_kernels.cu"'
        for entry in $2; do echo "EMULATION_EXPORT($entry)"; done
    } >"$out/check_kernels_$1.module.cu"
}
entries=$(sed -n 's/^KERNEL \([a-z0-9_]*\)(.*/\1/p' kernels/host/check_kernels.cu)
source_of 32 "$entries"
source_of 64 "$entries"
# Two compilers at a time.
find "$out" -name '*.module.cu' -print0 | sed -z 's/\.module\.cu$//' |
    xargs -0 -P 2 -I{} $compiler $kernel $shared {}.module.cu -o {}.so
$compiler -std=c++20 -O1 -g1 -march=x86-64-v3 -w -I kernels kernels/host/check.cpp -o "$out/check" \
    "$out/libcuda.so.1" -Wl,-rpath,"$out"

status=0
for setting in ORDER=forward ORDER=reverse ORDER=7 ORDER=31 ASYNC=1 ASYNC=2; do
    env GEMEL_EMULATION_DEVICES=2 GEMEL_EMULATION_MB=64 "GEMEL_EMULATION_$setting" \
        "$out/check" "$out" >"$out/result" 2>"$out/log-$setting" || status=1
    echo "$setting: $(tail -5 "$out/result")"
done

# Sanitisers: kernels and runtime in one program. The race build checks the kernels' accesses only.
passed=0
failed=0
expect() { # build, entry, text that the report must have, or nothing for no report
    local log="$out/log-$1-$2"
    timeout 60 "$out/one-$1" "$2" >"$log" 2>&1 && code=0 || code=$?
    if { [ -z "$3" ] && [ "$code" = 0 ]; } || { [ -n "$3" ] && [ "$code" != 0 ] && grep -q "$3" "$log"; }; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $1 build, $2: exit $code, see $log"
    fi
}
one() { # build, flags of kernels, flags of the runtime
    $compiler $kernel -g $2 -c "$out/check_kernels_64.module.cu" -o "$out/kernels-$1.o"
    $compiler -std=c++20 -O1 -g -w -march=x86-64-v3 -I kernels $3 -c kernels/host/runtime.cpp -o "$out/runtime-$1.o"
    $compiler -std=c++20 -g -w $3 -c kernels/host/check_one.cpp -o "$out/one-$1.o"
    $compiler $2 "$out/kernels-$1.o" "$out/runtime-$1.o" "$out/one-$1.o" -o "$out/one-$1" -pthread
}
one address "-fsanitize=address -fno-omit-frame-pointer" "-fsanitize=address -fno-omit-frame-pointer"
expect address reversed ""
expect address copied ""
expect address out_of_bounds heap-buffer-overflow
expect address shared_out_of_bounds heap-buffer-overflow
one race "-fsanitize=thread" "-DGEMEL_EMULATION_RACES"
expect race reversed ""
expect race copied ""
expect race no_barrier "data race"
expect race block_race "data race"
echo "sanitisers: $passed passed, $failed failed"
[ "$failed" = 0 ] || status=1
exit $status

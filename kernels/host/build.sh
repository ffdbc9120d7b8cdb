#!/usr/bin/env bash
# Builds the pretend driver: build.sh OUT_DIR makes OUT_DIR/libcuda.so.1, when it is missing or older than its sources.
# It calls itself `libcuda.so`, the first name that programs ask for: once loaded by its path it is what they find, also
# on machines that have the real one.
set -euo pipefail
out=${1:?usage: build.sh OUT_DIR}
mkdir -p "$out"
out=$(realpath "$out")
cd "$(dirname "$0")"
library="$out/libcuda.so.1"
newest=$(ls -t driver.cpp runtime.cpp emulation.hpp ../lib/device.cuh ../lib/mma.cuh build.sh | head -1)
if [ "$library" -nt "$newest" ]; then
    exit 0
fi
flags="-std=c++20 -O2 -g1 -march=x86-64-v3 -ffp-contract=off -fno-strict-aliasing -fPIC -Wall -Wextra -I .. -pthread"
# Two compilers at once, and a rename at the end, so that a running test never sees half a library.
work=$(mktemp -d "$out/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
${CXX:-g++} $flags -c runtime.cpp -o "$work/runtime.o" &
${CXX:-g++} $flags -c driver.cpp -o "$work/driver.o"
wait $!
${CXX:-g++} -shared "$work/runtime.o" "$work/driver.o" -o "$work/libcuda.so.1" -Wl,-soname,libcuda.so -ldl -pthread
ln -sfn libcuda.so.1 "$out/libcuda.so"
mv "$work/libcuda.so.1" "$library"

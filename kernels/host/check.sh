#!/usr/bin/env bash
# The self-test of the emulation: check.sh [OUT_DIR]. Prints "N passed, N failed" for each order of threads and blocks,
# with delayed streams, and for the builds with sanitisers; its exit status says whether all was well.
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

elementwise="unsigned n_rows, n, chunk, n_chunks, n1, a_s0, a_s1, a_off"
repeated="unsigned b_m0, b_m1, b_s0, b_s1, b_off, b_n, b_step"
source_of() { # name, file, threads, lanes, parameters, entries, more of the prelude, prefixes and piece
    {
        echo "constexpr unsigned THREADS = $3u;"
        echo "constexpr unsigned LANES = $4u;"
        echo "${7-}"
        echo "struct Params { $5; };"
        local prefix
        for prefix in ${8-}; do
            echo '#include "lib/device.cuh"'
            sed "s/SELF_/${prefix}_/g" "kernels/lib/$9.cuh"
        done
        echo "#include \"$2\""
        for entry in $6; do echo "EMULATION_EXPORT($entry)"; done
    } >"$out/$1.module.cu"
}
norm="unsigned n_rows, n; float eps; unsigned x_n1, x_s0, x_s1, x_off"
source_of rms_norm_32 rms_norm.cu 256 32 "$norm" rms_norm
source_of rms_norm_256 rms_norm.cu 256 256 "$norm" rms_norm
source_of add add.cu 64 1 "$elementwise; $repeated" add
source_of mul mul.cu 64 1 "$elementwise; $repeated" mul
source_of scale scale.cu 64 1 "$elementwise; float scale, bias" scale
x_rows="unsigned x_n1, x_s0, x_s1, x_off"
source_of add_rms_norm add_rms_norm.cu 64 32 "unsigned n_rows, n; float eps; unsigned a_n1, a_s0, a_s1, a_off,
    b_n1, b_s0, b_s1, b_off" add_rms_norm
source_of glu glu.cu 64 1 "$elementwise; $repeated" glu "constexpr unsigned KIND = 0u;"
source_of softcap softcap.cu 64 1 "$elementwise; float cap, inv_cap" softcap
source_of copy_cast copy_cast.cu 64 1 "$elementwise; unsigned x_n_rows, x_n, x_chunk, x_n_chunks, x_n1, x_a_s0, x_a_s1,
    x_a_off, n_elems, x_type, y_type" copy_cast
source_of argmax argmax.cu 64 1 "unsigned n_rows, n, slice, n_slices; $x_rows" "argmax argmax_merge"
source_of softmax_stats softmax_stats.cu 64 1 "unsigned n_rows, n, slice, n_slices; $x_rows" \
    "softmax_stats softmax_stats_merge"
source_of top_k_logits top_k_logits.cu 64 1 "unsigned n_rows, n, k, group, n_groups, n_blocks, n_candidates; $x_rows" \
    "top_k_logits_groups top_k_logits"
source_of rope rope.cu 64 1 "unsigned n_items, items, n_heads, heads_per_thread, head_dim, pairs, first, second, n_coarse,
    x_s0, x_s1, x_off, pos_off" rope
source_of quantize_q8 quantize_q8.cu 64 1 "$x_rows; unsigned n_rows, n; float step, smallest" quantize_q8_quads "" x quads_scalar
source_of gather_rows gather_rows.cu 64 1 "unsigned n_ids, ids_off, ids_s, n, n_total, row0, n_rows; float scale;
    unsigned w_n1, w_s0, w_s1, w_off" gather_rows "" g gather_plain
source_of scatter_rows scatter_rows.cu 64 1 "unsigned n_items, n, n_rows, x_s, x_off, y_s, y_off, idx_off" scatter_rows
kv="unsigned n_items, items, n_heads, head_dim, n_cells, row_words, narrow, slots_off; $x_rows"
source_of kv_write_q8_0 kv_write.cu 64 1 "$kv" kv_write_blocks \
    "constexpr unsigned BITS = 8u; constexpr bool BF16 = false, RANGED = false;"
source_of kv_write_q5_1 kv_write.cu 64 1 "$kv" kv_write_blocks \
    "constexpr unsigned BITS = 5u; constexpr bool BF16 = false, RANGED = true;"
source_of kv_write_f16 kv_write.cu 64 1 "$kv" kv_write \
    "constexpr unsigned BITS = 16u; constexpr bool BF16 = false, RANGED = false;"
source_of attention attention.cu 64 1 "unsigned n_blocks, n_merged, n_splits, n_tokens, n_heads, n_kv_heads, group, dk,
    v_quads, k_words, k_narrow, v_words, v_narrow, n_pages, n_seq_rows, max_pages, window; float scale, softcap;
    unsigned record, q_s0, q_s1, q_off, table_off, seq_off, pos_off" "attention attention_merge" \
    "constexpr unsigned CHUNK = 32u, Q_LEN = 64u, ROW_TILES = 1u, TEAM = 1u, V_BLOCKS = 1u, CELLS = 16u, SHARED_BYTES = 0u;" "k v" cache_f32
entries=$(sed -n 's/^KERNEL \([a-z0-9_]*\)(.*/\1/p' kernels/host/check_kernels.cu)
source_of check_kernels_32 host/check_kernels.cu 32 1 "unsigned unused" "$entries"
source_of check_kernels_64 host/check_kernels.cu 64 1 "unsigned unused" "$entries"
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

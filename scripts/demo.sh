#!/usr/bin/env bash
# From a fresh clone to an answer: makes sure there is a GPU driver (or a software one), fetches a small model, builds
# the program and asks it a question. Arguments are passed on to `gemel run`; -m and -p replace the model and the question.
#
#   scripts/demo.sh
#   scripts/demo.sh -p "Name three rivers."
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
scripts=$root/scripts

need cargo "install Rust 1.90 or later"
"$scripts/setup-driver.sh"

model=() prompt=(-p "What is the capital of France?")
own_model=no
for arg in "$@"; do
    case $arg in
        -m | -m?* | --model | --model=*) own_model=yes ;;
        -p | -p?* | --prompt | --prompt=*) prompt=() ;;
    esac
done
if [ "$own_model" = no ]; then
    file=$("$scripts/fetch-models.sh" smollm2)
    model=(-m "$file")
fi

log "building (a first build takes some minutes)"
cargo build --release --quiet --manifest-path "$root/Cargo.toml" -p gemel
exec "${CARGO_TARGET_DIR:-$root/target}/release/gemel" run "${model[@]}" "${prompt[@]}" "$@"

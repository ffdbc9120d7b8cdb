# Functions shared by the scripts. Source it; it defines names and runs nothing.
# shellcheck shell=bash

# The repository's root, whatever directory the script was started from.
# shellcheck disable=SC2034  # used by the scripts that source this file
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Everything that is fetched or derived lives here and may be deleted at any time.
cache=${GEMEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gemel}

# log MESSAGE... : one progress line on standard error.
log() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
}

# die MESSAGE... : the same, and the script fails.
die() {
    log "error: $*"
    exit 1
}

# need COMMAND HOW-TO-GET-IT : fails with the remedy when the command is missing.
need() {
    command -v "$1" >/dev/null 2>&1 || die "'$1' is not installed; $2"
}

# sha256_is FILE SUM : whether the file exists and has that checksum.
sha256_is() {
    [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]
}

# sha256_check FILE SUM : fails when the file is not the one that was meant.
sha256_check() {
    sha256_is "$1" "$2" || die "$1 has sha256 $(sha256sum "$1" | cut -d' ' -f1), expected $2; delete it and try again"
}

# scratch_dir : a new folder inside the cache, so that a later mv into the cache is atomic.
# The caller removes it.
scratch_dir() {
    mkdir -p "$cache/tmp"
    mktemp -d "$cache/tmp/XXXXXXXX"
}

# has_apt : whether packages are managed by apt here.
has_apt() {
    command -v apt-get >/dev/null 2>&1 && command -v dpkg-query >/dev/null 2>&1
}

# installed PACKAGE : whether the Debian package is installed.
installed() {
    has_apt && [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# apt_update : refreshes the package lists, once per script.
apt_update() {
    [ -n "${apt_updated:-}" ] && return
    log "refreshing the package lists"
    apt-get -qq -o DPkg::Lock::Timeout=600 update >&2 || log "warning: apt-get update failed; using the lists that are here"
    apt_updated=1
}

# apt_install [APT-OPTION...] PACKAGE... : installs what is missing; without root it says what to install. With an
# option (another suite, say) packages that are here are offered to apt all the same.
apt_install() {
    local options=() packages=() word output
    for word in "$@"; do
        if [ "${word#-}" != "$word" ]; then
            options+=("$word")
        elif [ "${#options[@]}" -gt 0 ] || ! installed "$word"; then
            packages+=("$word")
        fi
    done
    [ "${#packages[@]}" -gt 0 ] || return 0
    has_apt || die "this script installs packages with apt only; install what your system calls: ${packages[*]}"
    [ "$(id -u)" -eq 0 ] || die "not root; run 'sudo apt-get install ${packages[*]}', then run this script again"
    apt_update
    log "installing ${packages[*]}"
    output=$(DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 \
        --no-install-recommends "${options[@]}" install "${packages[@]}" 2>&1) ||
        die "apt-get install ${packages[*]} failed: $output"
}

# has_gpu : whether the kernel shows a GPU.
has_gpu() {
    local node
    for node in /dev/nvidia[0-9]* /dev/dri/renderD* /dev/dxg /dev/kfd; do
        [ -e "$node" ] && return 0
    done
    return 1
}

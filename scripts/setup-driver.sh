#!/usr/bin/env bash
# Makes sure that there is a Vulkan driver to run on.
#
#   scripts/setup-driver.sh              does nothing where a GPU driver is found, else installs Mesa's software driver
#   scripts/setup-driver.sh --software   installs the software driver in any case, beside what is there
#
# A GPU driver that works is never changed. The software driver (lavapipe) of Mesa 25 runs our shaders three to
# five times as fast as the one of Debian 12, so on Debian 12 it is taken from the suite bookworm-backports, which
# is added to apt with the mirror that apt already uses. Where that suite cannot be reached the stock one is used.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

software=no
case ${1:-} in
    '') ;;
    --software) software=yes ;;
    *) die "unknown argument '$1'; usage: setup-driver.sh [--software]" ;;
esac

icd_dirs=(/etc/vulkan/icd.d /usr/local/etc/vulkan/icd.d /usr/share/vulkan/icd.d /usr/local/share/vulkan/icd.d
    "${XDG_DATA_HOME:-$HOME/.local/share}/vulkan/icd.d")

# Drivers that need no GPU: a machine that has only these is a machine without a GPU driver.
is_software_icd() {
    case $(basename "$1") in
        lvp_icd*|vk_swiftshader_icd*|gfxstream_*|virtio_*) return 0 ;;
        *) return 1 ;;
    esac
}

# Prints the driver manifests of GPU drivers. Mesa's package brings manifests for all GPUs it knows, so they count
# only on a machine that has a GPU.
gpu_icds() {
    local dir icd
    has_gpu || return 0
    for dir in "${icd_dirs[@]}"; do
        for icd in "$dir"/*.json; do
            [ -e "$icd" ] && ! is_software_icd "$icd" && printf '%s\n' "$icd"
        done
    done
    return 0
}

lavapipe_icd() {
    local dir icd
    for dir in "${icd_dirs[@]}"; do
        for icd in "$dir"/lvp_icd*.json; do
            [ -e "$icd" ] && { printf '%s\n' "$icd"; return; }
        done
    done
}

has_loader() {
    ldconfig -p 2>/dev/null | grep -q 'libvulkan\.so\.1 '
}

mesa_version() {
    dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null || true
}

codename() {
    # shellcheck disable=SC1091
    (. /etc/os-release 2>/dev/null && printf '%s' "${VERSION_CODENAME:-}")
}

# Adds bookworm-backports with the mirror and the key of the bookworm suite, and says whether it offers the driver.
add_backports() {
    local target uri key signed=''
    has_apt && [ "$(id -u)" -eq 0 ] && [ "$(codename)" = bookworm ] || return 1
    apt_update
    if ! apt-cache madison mesa-vulkan-drivers | grep -q bookworm-backports; then
        # Words of apt-get's own format language, not of the shell.
        # shellcheck disable=SC2016
        target=$(apt-get indextargets --format '$(SUITE) $(CODENAME) $(COMPONENT) $(CREATED_BY) $(SIGNED_BY) $(REPO_URI)' |
            grep -E '^[^ ]+ bookworm main Packages ' | head -n 1) || true
        [ -n "$target" ] || return 1
        uri=${target##* }
        key=$(printf '%s' "$target" | sed -E 's/^[^ ]+ [^ ]+ [^ ]+ [^ ]+ (.*) [^ ]+$/\1/')
        [ -f "$key" ] && signed="[signed-by=$key] "
        log "adding the suite bookworm-backports to apt"
        printf 'deb %s%s bookworm-backports main\n' "$signed" "$uri" > /etc/apt/sources.list.d/gemel-backports.list
        apt_updated=''
        apt_update
    fi
    if ! apt-cache madison mesa-vulkan-drivers | grep -q bookworm-backports; then
        rm -f /etc/apt/sources.list.d/gemel-backports.list
        return 1
    fi
}

icds=$(gpu_icds)
if [ "$software" = no ] && [ -n "$icds" ]; then
    log "a GPU driver is here: $(printf '%s' "$icds" | tr '\n' ' ')"
    has_loader || apt_install libvulkan1
    exit 0
fi
if has_gpu && [ -z "$icds" ]; then
    log "warning: there is a GPU but no Vulkan driver for it; Mesa's drivers are installed, an NVIDIA card needs its vendor's"
fi

have=$(mesa_version)
if [ -n "$(lavapipe_icd)" ] && has_loader && { [ -z "$have" ] || dpkg --compare-versions "$have" ge 25; }; then
    log "the software driver is here already: $(lavapipe_icd) ${have:+(Mesa $have)}"
elif add_backports; then
    apt_install libvulkan1
    apt_install --target-release=bookworm-backports mesa-vulkan-drivers
else
    apt_install libvulkan1 mesa-vulkan-drivers
fi

icd=$(lavapipe_icd)
[ -n "$icd" ] || die "no driver manifest lvp_icd*.json found after the installation, looked in: ${icd_dirs[*]}"
mkdir -p "$cache/drivers"
printf 'VK_DRIVER_FILES=%s\nVK_ICD_FILENAMES=%s\n' "$icd" "$icd" > "$cache/drivers/lavapipe.env"
log "software driver: $icd, Mesa $(mesa_version)"

#!/usr/bin/env bash
# Installs the software drivers that the conformance run uses side by side, each with its own weaknesses:
#
#   lavapipe     Vulkan  Mesa's: subgroups of 8, f16, 1024 invocations
#   swiftshader  Vulkan  from Debian's chromium: subgroups of 4, no f16, 256 invocations, few bindings, subnormals flushed
#   gl           GL      Mesa's llvmpipe: no subgroups at all
#
# and writes the environment that selects each to $cache/drivers/NAME.env (lines NAME=VALUE; use as
# `env $(cat FILE) COMMAND`), printing the paths of those files.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)

drivers=$cache/drivers
mkdir -p "$drivers"

"$here/setup-driver.sh" --software

# GL needs no display: the surfaceless platform of EGL serves. An empty manifest list hides the Vulkan drivers.
apt_install libegl1 libegl-mesa0 libgl1-mesa-dri
cat > "$drivers/gl.env" <<END
WGPU_BACKEND=gl
EGL_PLATFORM=surfaceless
LIBGL_ALWAYS_SOFTWARE=1
VK_DRIVER_FILES=/dev/null
VK_ICD_FILENAMES=/dev/null
END

# SwiftShader is not packaged alone; two files of the browser's package are all it needs.
swiftshader=$drivers/swiftshader
if [ ! -f "$swiftshader/vk_swiftshader_icd.json" ]; then
    has_apt || die "SwiftShader is taken from Debian's package chromium and there is no apt here; put libvk_swiftshader.so and vk_swiftshader_icd.json into $swiftshader"
    need dpkg-deb "install the package dpkg"
    scratch=$(scratch_dir)
    trap 'rm -rf "$scratch"' EXIT
    [ "$(id -u)" -ne 0 ] || apt_update
    mkdir "$scratch/swiftshader"
    # Newer releases of the browser keep the two files in chromium-common, older ones in chromium.
    for package in chromium-common chromium; do
        log "downloading $package for its SwiftShader"
        # apt's own user cannot enter root's folders; its warning about that is expected and harmless.
        (cd "$scratch" && apt-get -qq download "$package" 2>"$scratch/log") || { log "$(cat "$scratch/log")"; continue; }
        dpkg-deb --fsys-tarfile "$scratch/${package}"_*.deb |
            tar -x -C "$scratch/swiftshader" --strip-components=4 --wildcards '*/libvk_swiftshader.so' '*/vk_swiftshader_icd.json' \
                2>/dev/null && break
    done
    [ -f "$scratch/swiftshader/libvk_swiftshader.so" ] || die "neither chromium-common nor chromium holds libvk_swiftshader.so"
    sed -i -E "s#(\"library_path\": *\")[^\"]*\"#\1$swiftshader/libvk_swiftshader.so\"#" "$scratch/swiftshader/vk_swiftshader_icd.json"
    grep -q "$swiftshader/libvk_swiftshader.so" "$scratch/swiftshader/vk_swiftshader_icd.json" ||
        die "no library_path in chromium's vk_swiftshader_icd.json"
    rm -rf "$swiftshader"
    mv "$scratch/swiftshader" "$swiftshader"
fi
printf 'VK_DRIVER_FILES=%s\nVK_ICD_FILENAMES=%s\n' "$swiftshader/vk_swiftshader_icd.json" "$swiftshader/vk_swiftshader_icd.json" \
    > "$drivers/swiftshader.env"

printf '%s\n' "$drivers/lavapipe.env" "$drivers/swiftshader.env" "$drivers/gl.env"

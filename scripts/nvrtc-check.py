#!/usr/bin/env python3
"""Compiles every kernels/*.cu with NVRTC, without a GPU: nvrtc-check.py [--lib PATH] [sm_75 ...].

The prelude is a sample: constants and parameters are guessed from what the file uses. The library comes from
`pip install nvidia-cuda-nvrtc-cu12==12.9.86`, by default in ~/.cache/gemel/nvrtc.
"""

import ctypes
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent / "kernels"
TARGETS = ["sm_75", "sm_80", "sm_90", "sm_120"]
FLOATS = {"eps", "scale", "bias", "cap", "inv_cap", "step", "smallest"}


# Sample values of specialisations; the pieces that stand for those chosen by type.
CONSTANTS = {"THREADS": "256u", "LANES": "32u", "KIND": "1u", "BITS": "5u", "RANGED": "true"}
FLAGS = {"kv_write.cu": {"BF16": "false"}}
PIECES = {"gather_rows.cu": [("g", "gather_plain")], "quantize_q8.cu": [("x", "quads_scalar")]}


def assemble(path: pathlib.Path, pieces: list[tuple[str, str]]) -> str:
    """Prelude, pieces and text; the parameter block has every name that they use."""
    body = path.read_text()
    for prefix, piece in pieces:
        body = (ROOT / f"lib/{piece}.cuh").read_text().replace("SELF_", f"{prefix}_") + body
        body = '#include "lib/device.cuh"\n' + body
    text = with_includes(body, set())
    constants = CONSTANTS | FLAGS.get(path.name, {})
    lines = [
        f"constexpr {'bool' if value in ('true', 'false') else 'unsigned'} {name} = {value};"
        for name, value in constants.items()
        if re.search(rf"\b{name}\b", text)
    ]
    fields = sorted(set(re.findall(r"\bp\.(\w+)", text)) - {"x", "y"})
    members = " ".join(f"{'float' if f in FLOATS else 'unsigned'} {f};" for f in fields) or "unsigned unused;"
    return "\n".join([*lines, f"struct Params {{ {members} }};", body])


def with_includes(text: str, seen: set[str]) -> str:
    """The text followed by everything that it includes."""
    for name in re.findall(r'#include "(.+?)"', text):
        if name not in seen:
            seen.add(name)
            text += with_includes((ROOT / name).read_text(), seen)
    return text


def main() -> int:
    arguments = sys.argv[1:]
    places = sorted((pathlib.Path.home() / ".cache/gemel/nvrtc").glob("lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1*"))
    if arguments[:1] == ["--lib"]:
        places, arguments = [pathlib.Path(arguments[1])], arguments[2:]
    if not places:
        print("nvrtc-check: skipped, no libnvrtc (pip install nvidia-cuda-nvrtc-cu12==12.9.86 into ~/.cache/gemel/nvrtc)")
        return 0
    nvrtc = ctypes.CDLL(str(places[0]))
    passed = failed = 0
    headers = [f"lib/{path.name}" for path in sorted((ROOT / "lib").glob("*.cuh"))]
    contents = [(ROOT / name).read_bytes() for name in headers]
    n = len(headers)
    sources = sorted(ROOT.glob("*.cu")) + [ROOT / "host/check_kernels.cu"]
    jobs = [(path, PIECES.get(path.name, [])) for path in sources]
    tiles = sorted(path.stem for path in (ROOT / "lib").glob("tile_*.cuh"))
    jobs += [(ROOT / "gather_rows.cu", [("g", "gather_tile"), ("w", tile)]) for tile in tiles]
    for path, pieces in jobs:
        source = assemble(path, pieces)
        for target in arguments or TARGETS:
            program = ctypes.c_void_p()
            nvrtc.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), path.name.encode(), n,
                (ctypes.c_char_p * n)(*contents), (ctypes.c_char_p * n)(*[h.encode() for h in headers]),
            )
            options = [b"--std=c++17", f"--gpu-architecture={target}".encode()]
            status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
            if status:
                size = ctypes.c_size_t()
                nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
                log = ctypes.create_string_buffer(size.value)
                nvrtc.nvrtcGetProgramLog(program, log)
                print(f"FAILED: {path.name} {pieces} for {target}:\n{log.value.decode()}")
                failed += 1
            else:
                passed += 1
            nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    print(f"nvrtc: {passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

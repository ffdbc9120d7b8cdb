"""Turns the JSON of compare.sh's runs into one table: table.py FOLDER OUT.json|- GB_PER_S GFLOP_PER_S"""

import json
import pathlib
import sys

folder, out, gb_per_s, gflop_per_s = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])

runs = {}
for path in sorted(folder.glob("*.json")):
    engine = path.name.rsplit(".", 2)[0]
    runs.setdefault(engine, []).append(json.loads(path.read_text()))


def best(engine, *keys):
    """The largest value under the keys in any of the engine's runs, or None."""
    values = []
    for run in runs.get(engine, []):
        for key in keys:
            run = run.get(key) if isinstance(run, dict) else None
        if isinstance(run, (int, float)):
            values.append(run)
    return max(values, default=None)


def speed(engine, part):
    """Tokens a second in the best repetition of any run: what other work on the machine disturbed least."""
    lists = [result.get("samples", []) for run in runs.get(engine, []) for result in run.get("results", [])
             if result.get({"prefill": "n_prompt", "decode": "n_gen"}[part], 0) > 0]
    return max((sample for samples in lists for sample in samples), default=best(engine, part, "tokens_per_s"))


engines = [e for e in ("gemel-vulkan", "llama.cpp-vulkan", "llama.cpp-cpu") if e in runs]
if not engines:
    sys.exit("compare: no engine finished")
# A decode step reads every weight once; a prefill token costs a multiply and an add for each weight. Both are too much
# for a model with experts, and leave out attention, which does not count at these lengths.
weight_bytes = next((b for e in engines if (b := best(e, "weight_bytes"))), None)
params = next((b for e in engines if (b := best(e, "params"))), None)
host = best("limits", "gb_per_s"), best("limits", "gflop_per_s")


def cell(value, form="{:.1f}"):
    return "-" if value is None else form.format(value)


def share(rate, engine, what):
    limit_gb, limit_gflop = host
    if not engine.endswith("-cpu"):
        limit_gb, limit_gflop = gb_per_s or limit_gb, gflop_per_s or limit_gflop
    if rate is None or not weight_bytes or not params or not limit_gb or not limit_gflop:
        return None
    if what == "decode":
        return 100 * rate * weight_bytes / 1e9 / limit_gb
    return 100 * rate * 2 * params / 1e9 / limit_gflop


rows = [("engine", "device", "prefill tok/s", "decode tok/s", "gemel / it, pp / tg", "% of GFLOP/s", "% of GB/s")]
table = []
for engine in engines:
    prefill, decode = speed(engine, "prefill"), speed(engine, "decode")
    ours = speed("gemel-vulkan", "prefill"), speed("gemel-vulkan", "decode")
    ratios = [cell(a / b if a and b else None, "{:.3f}") for a, b in zip(ours, (prefill, decode))]
    ratio = " / ".join(ratios) if any(ours) else "-"
    device = str(runs[engine][0].get("device", "-"))[:36]
    shares = share(prefill, engine, "prefill"), share(decode, engine, "decode")
    rows.append((engine, device, cell(prefill), cell(decode), ratio, cell(shares[0], "{:.2f}"), cell(shares[1], "{:.2f}")))
    table.append({"engine": engine, "device": device, "prefill_tokens_per_s": prefill, "decode_tokens_per_s": decode,
                  "prefill_share_percent": shares[0], "decode_share_percent": shares[1]})

widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
for i, row in enumerate(rows):
    print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |")
    if i == 0:
        print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
print(f"processor: {cell(host[0])} GB/s, {cell(host[1])} GFLOP/s in f32, measured"
      + (f"; GPU limits as given: {gb_per_s} GB/s, {gflop_per_s} GFLOP/s" if gb_per_s or gflop_per_s else ""))
greedy = {e: runs[e][0]["greedy"] for e in engines if "greedy" in runs[e][0]}
for engine, ids in greedy.items():
    print(f"{engine}: greedy ids {' '.join(map(str, ids))}")
if out != "-":
    pathlib.Path(out).write_text(json.dumps({"limits": {"gb_per_s": host[0], "gflop_per_s": host[1]}, "rows": table, "runs": runs}, indent=1))

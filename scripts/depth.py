#!/usr/bin/env python3
"""Measures what depth costs, and says whether it is what it may be.

    scripts/depth.py [--gemel PROGRAM] [--device DEVICE] [--model ARCH:SIZE:TYPE] [--shallow N] [--deep N] [-n STEPS]
                     [-r REPETITIONS]

Every comparison is made within one run whose repetitions alternate, by the medians of all steps:

- decode at the deep end takes at most 1.15 times as long as at the shallow one, with caches in f16 and in q8_0;
- so do steps that verify drafts of 4 tokens, on caches in q8_0, and they attend to selected blocks only;
- five deep sequences in one step have each 0.6 of the rate of one alone, per token, or more;
- whatever the depth, a step is one submission and moves the same bytes between host and device in as many launches;
- a prompt that is read at depth takes memory beyond weights and caches that does not depend on the depth.

The exit code is 1 if one of them does not hold. Without --gemel the program is built in release mode first.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_RATIO = 1.15
LEAST_SHARE = 0.6
# Scores of blocks, the search among them, and activations, of 512 tokens.
MOST_ACTIVATIONS_MIB = 192


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gemel")
    parser.add_argument("--device", default="wgpu")
    parser.add_argument("--model", default="qwen4exp:tiny-deep:q4_k")
    parser.add_argument("--shallow", type=int, default=4096)
    parser.add_argument("--deep", type=int, default=131_072)
    parser.add_argument("-n", type=int, default=6, help="decode steps of a repetition")
    parser.add_argument("-r", type=int, default=12, help="repetitions")
    return parser.parse_args()


def program(args):
    if args.gemel:
        return args.gemel
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "gemel"], cwd=ROOT, check=True)
    return str(ROOT / "target/release/gemel")


class Verdicts:
    def __init__(self):
        self.failed = False

    def say(self, holds, text):
        self.failed |= not holds
        print(f"{'ok  ' if holds else 'FAIL'} {text}", flush=True)


def main():
    args = arguments()
    gemel = program(args)
    verdicts = Verdicts()

    def bench(depths, *flags):
        command = [gemel, "bench", "--synthetic", args.model, "--device", args.device]
        command += ["-d", ",".join(map(str, depths)), "--interleave", "--explain", "-o", "json", *flags]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    def decode(depths, *flags):
        return bench(depths, "-p", "0", "-n", str(args.n), "-r", str(args.r), *flags)

    def by_kind(report):
        return {(row["depth"], row["parallel"], row["verify"]): row["step"] for row in report["results"]}

    both = [args.shallow, args.deep]
    for cache, verify in [("f16", [1]), ("q8_0", [1, 5])]:
        rows = by_kind(decode(both, "-ctk", cache, "-ctv", cache, "--verify", ",".join(map(str, verify))))
        for n in verify:
            shallow, deep = (rows[depth, 1, n] for depth in both)
            what = f"{cache}, {n} tokens a step" if n > 1 else cache
            times = [step["median_us"] / 1e3 for step in (shallow, deep)]
            verdicts.say(
                times[1] <= MOST_RATIO * times[0],
                f"decode ({what}): {times[0]:.2f} ms at {args.shallow}, {times[1]:.2f} ms at {args.deep}, "
                f"ratio {times[1] / times[0]:.3f} (at most {MOST_RATIO})",
            )
            counters = ["submits", "uploaded_bytes", "read_back_bytes", "launches"]
            equal = all(shallow[key] == deep[key] for key in counters)
            verdicts.say(
                equal and deep["submits"] == 1,
                f"step ({what}): {deep['submits']:.0f} submission, {deep['uploaded_bytes']:.0f} B up, "
                f"{deep['read_back_bytes']:.0f} B back, {deep['launches']:.0f} launches at either depth",
            )
            ops = {op["op"] for op in deep["ops"]}
            verdicts.say(
                "sparse_attention" in ops and "attention" not in ops,
                f"attention ({what}): to selected blocks only",
            )

    rows = by_kind(decode([args.deep], "--parallel", "1,5"))
    one, five = (rows[args.deep, n, 1]["median_us"] / 1e3 for n in (1, 5))
    share = 5 * one / five
    verdicts.say(
        share >= LEAST_SHARE,
        f"five sequences at {args.deep}: {five:.2f} ms a step, one {one:.2f} ms: {share:.2f} of its rate per token "
        f"(at least {LEAST_SHARE})",
    )

    beyond = []
    for depth in both:
        report = bench([depth], "-p", "512", "-n", "0", "-r", "1")
        held = report["weight_bytes"] + report["cache_bytes"]
        beyond.append((report["peak_memory_bytes"] - held) / 2**20)
        rate = report["prefill"]["tokens_per_s"]
        print(f"     prompt of 512 at {depth}: {rate:.1f} tokens/s, {beyond[-1]:.1f} MiB beyond weights and caches")
    verdicts.say(
        beyond[1] <= MOST_ACTIVATIONS_MIB,
        f"memory of a prompt at {args.deep}: {beyond[1]:.1f} MiB beyond weights and caches (at most {MOST_ACTIVATIONS_MIB})",
    )
    return int(verdicts.failed)


if __name__ == "__main__":
    sys.exit(main())

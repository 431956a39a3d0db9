#!/usr/bin/env python3
"""CPU time and peak memory of `shardplan plan`, whole process, beside what is wanted.

The rows are those of the project's goal for meshes of up to four axes; two more tables fit how the
time grows with layers (12 to 96) and with devices (8 to 4,096): an exponent of 1 is linear, and the
devices' one should be near 0. `--quick` leaves out the rows that take more than ten seconds.
"""

import math
import sys

import program

# model, cluster, axes, seconds wanted, MB wanted; None = not asked for
ROWS = [
    ("gpt2-small", "8xA100-80GB", 2, 0.2, None),
    ("gpt2-small", "8xA100-80GB", 3, None, None),
    ("llama3-8b", "dgx-a100:8", 2, None, None),
    ("llama3-8b", "dgx-a100:8", 3, 0.5, 500),
    ("llama3-8b", "dgx-a100:8", 4, 6.0, 500),
    ("gpt3-175b", "dgx-a100:128", 2, None, None),
    ("gpt3-175b", "dgx-a100:128", 3, 1.0, 1000),
    ("gpt3-175b", "dgx-a100:128", 4, 20.0, 1000),
]
LAYERS = [12, 24, 48, 96]
DEVICES = [8, 64, 512, 4096]


def measure(model, cluster, axes):
    """CPU seconds, peak MB and the lines of the answer that say what was found."""
    words = ["plan", model, "--cluster", cluster, "--max-mesh-axes", axes]
    seconds, memory, text = program.measure(*words, allowed=(0, 1))
    step = next((line.split()[1:3] for line in text.splitlines() if line.startswith("step ")), ["-"])
    return seconds, memory, " ".join(step)


def exponent(sizes, seconds):
    """Least-squares slope in log-log space."""
    x = [math.log(size) for size in sizes]
    y = [math.log(second) for second in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def wanted(value, unit):
    return "-" if value is None else f"< {value:g} {unit}"


def main():
    quick = "--quick" in sys.argv[1:]
    print(f"{'model':<12}{'cluster':<14}{'axes':>4}{'CPU s':>9}{'wanted':>10}{'MB':>7}{'wanted':>11}  step")
    for model, cluster, axes, seconds_wanted, memory_wanted in ROWS:
        if quick and axes > 3:
            continue
        seconds, memory, step = measure(model, cluster, axes)
        print(
            f"{model:<12}{cluster:<14}{axes:>4}{seconds:>9.2f}{wanted(seconds_wanted, 's'):>10}"
            f"{memory:>7.0f}{wanted(memory_wanted, 'MB'):>11}  {step}",
            flush=True,
        )
    for title, sizes, case in [
        ("layers (GPT of width 1024, dgx-a100:8, 3 axes)", LAYERS,
         lambda n: (f"gpt:layers={n},hidden=1024,heads=16,seq=1024,batch=64", "dgx-a100:8")),
        ("devices (GPT-2 small, batch 64, dgx-a100:N, 3 axes)", DEVICES,
         lambda n: ("gpt2-small:batch=64", f"dgx-a100:{n // 8}")),
    ]:
        seconds = [measure(*case(size), 3)[0] for size in sizes]
        shown = ", ".join(f"{size}: {second:.2f} s" for size, second in zip(sizes, seconds))
        print(f"growth with {title}: {shown}; exponent {exponent(sizes, seconds):.2f}", flush=True)


if __name__ == "__main__":
    main()

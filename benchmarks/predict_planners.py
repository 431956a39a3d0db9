#!/usr/bin/env python3
"""The formulas of `shardplan predict` beside Shardplan's own plans and simulator.

    predict_planners.py

GPTs with dropout in bf16 with Adam on A100 boxes, laid out alike on both sides: tensor-parallel
with sequence parallelism (planner megatron), data-parallel (dp), both (megatron_dp). No pipeline
and no recomputation, which these planners do not do; memory is not limited. Seconds and GiB of one
device; `kept` is activations with embedding and head, the simulator's are activations, inputs and
temporaries.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from program import program

GIB = 2**30


# name, layers, hidden, heads, nodes, planner, tensor, data, microbatch, microbatches
CASES = [
    ("1.7B", 24, 2304, 24, 1, "dp", 1, 8, 4, 1),
    ("1.7B", 24, 2304, 24, 1, "dp", 1, 8, 4, 4),
    ("3.6B", 30, 3072, 32, 2, "megatron_dp", 2, 8, 4, 1),
    ("7.5B", 36, 4096, 32, 1, "megatron_dp", 4, 2, 4, 2),
    ("7.5B", 36, 4096, 32, 1, "megatron", 8, 1, 8, 1),
    ("22B", 48, 6144, 64, 1, "megatron", 8, 1, 4, 1),
    ("22B", 48, 6144, 64, 1, "megatron", 8, 1, 4, 4),
    ("39.1B", 48, 8192, 64, 2, "megatron_dp", 8, 2, 2, 1),
]


def shardplan(*words):
    done = subprocess.run(
        [program(), *map(str, words), "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{words}: {done.stderr}")
    return json.loads(done.stdout)


def simulated(case, folder):
    _, layers, hidden, heads, nodes, planner, tensor, data, microbatch, microbatches = case
    batch = data * microbatch * microbatches
    model = f"gpt:layers={layers},hidden={hidden},heads={heads},seq=2048,batch={batch}"
    plan = pathlib.Path(folder) / "plan.json"
    words = ["plan", f"{model},vocab=51200,dropout=0.1", "--cluster", f"dgx-a100:{nodes}"]
    words += ["--planner", planner, "--precision", "bf16", "--optimizer", "adam"]
    words += ["--microbatches", microbatches, "--memory", "1000GiB", "-o", plan]
    words += ["--mesh", f"data={data},tensor={tensor}"] if planner == "megatron_dp" else []
    shardplan(*words)
    return shardplan("simulate", plan)


def predicted(case):
    _, layers, hidden, heads, nodes, planner, tensor, data, microbatch, microbatches = case
    model = f"gpt:layers={layers},hidden={hidden},heads={heads},seq=2048,vocab=51200"
    words = ["predict", model, "--cluster", f"dgx-a100:{nodes}", "--tp", tensor, "--dp", data]
    words += ["--microbatch", microbatch, "--batch", data * microbatch * microbatches]
    words += ["--overlap-gradients"]
    return shardplan(*words, *(["--sequence-parallel"] if tensor > 1 else []))


def row_of(case, ours, theirs):
    name, *_, planner, tensor, data, microbatch, microbatches = case
    peak, memory = ours["memory_at_peak"], theirs["memory"]
    kept = sum(peak[name] for name in ("activations", "inputs", "temporary")) / GIB
    formula = (memory["activations"] + memory["embedding_and_head"]) / GIB
    resident = [
        " + ".join(f"{of[part] / GIB:.1f}" for part in ("parameters", "gradients", "optimizer"))
        for of in (peak, memory)
    ]
    seconds = theirs["step_seconds"], ours["step_seconds"]
    return [
        *(name, planner, f"{tensor} · {data}", f"{microbatches} × {microbatch}"),
        *(f"{seconds[0]:.3f}", f"{seconds[1]:.3f}", f"{100 * (seconds[0] / seconds[1] - 1):+.1f} %"),
        *(f"{formula:.1f}", f"{kept:.1f}", f"{100 * (formula / kept - 1):+.1f} %"),
        *(resident[1], resident[0]),
    ]


def main():
    header = ["model", "planner", "tp · dp", "microbatches", "formulas s", "simulated s", ""]
    header += ["kept GiB, formulas", "simulated", "", "resident GiB, formulas", "simulated"]
    print("| " + " | ".join(header) + " |\n| " + " | ".join(["---"] * len(header)) + " |")
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            row = row_of(case, simulated(case, folder), predicted(case))
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()

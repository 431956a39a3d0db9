#!/usr/bin/env python3
"""Shardplan's executor against the same model parallelised by hand in PyTorch, in one run.

    hand_bench.py [--ranks 2] [--rounds 3] [--steps 6] [--width 256 ...]

GPT-2 (12 layers, reduced so that a step takes about a second), AdamW, one thread a rank, Gloo.
Each of Shardplan's expert plans meets what a user would write: `dp` meets DistributedDataParallel,
`zero3` FSDP2 (`fully_shard` of every block), `megatron` DTensor (`parallelize_module` and
`loss_parallel`). The systems take turns, one process a rank each time; a row is the median over the
steps of all rounds, without the first of each. Peak bytes are those of rank 0's CPU tensors,
counted by the same allocator on both sides.
"""

import argparse
import dataclasses
import fcntl
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

import by_hand

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "shardplan"
PAIRS = [("dp", "ddp", "DDP"), ("zero3", "fsdp", "FSDP2"), ("megatron", "tensor", "DTensor")]


@dataclasses.dataclass
class Row:
    """What one system took: seconds of each step, rank 0's peak."""

    seconds: list
    peak_bytes: int = 0

    def median(self):
        return statistics.median(self.seconds)


def environment():
    path = str(ROOT / "shardplan" / "python")
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_by_hand(way, size, ranks, steps):
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    script = pathlib.Path(by_hand.__file__)
    command = [sys.executable, script, way, f"--steps={steps}", *size.arguments()]
    processes = [
        subprocess.Popen(
            command, env={**environment(), **here, "RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        sys.exit(f"{way} failed")
    return json.loads(outputs[0].splitlines()[-1])


def shardplan(*words):
    """Standard output of one run of the program."""
    done = subprocess.run(
        [PROGRAM, *map(str, words)], capture_output=True, text=True, check=False, env=environment()
    )
    if done.returncode != 0:
        sys.exit(f"shardplan {words[0]}: {done.stderr.strip()}")
    return done.stdout


def export(size, path):
    import shardplan as package

    tokens, labels = by_hand.batch_of(size)
    package.export(
        by_hand.gpt2(size),
        {"tokens": tokens, "labels": labels},
        str(path),
        loss=lambda logits, batch: by_hand.loss_of(logits, batch["labels"]),
    )


def make_plans(model, cluster, folder):
    plans = {}
    for planner, _, _ in PAIRS:
        plans[planner] = folder / f"{planner}.json"
        words = ("--cluster", cluster, "--planner", planner, "--optimizer", "adamw:lr=0.001")
        shardplan("plan", model, *words, "-o", plans[planner])
    return plans


def run_plan(plan, steps):
    found = json.loads(shardplan("run", plan, "--steps", steps, "--json"))
    return {
        "seconds": found["step_seconds"],
        "peak_bytes": found["measured_peak_bytes"][0],
        "predicted_peak_bytes": found["predicted_peak_bytes"][0],
    }


def measure(plans, size, ranks, rounds, steps):
    rows = {}

    def take(name, found):
        row = rows.setdefault(name, Row([]))
        row.seconds += found["seconds"][1:]
        row.peak_bytes = max(row.peak_bytes, found["peak_bytes"])

    for _ in range(rounds):
        for planner, way, name in PAIRS:
            take(planner, run_plan(plans[planner], steps))
            take(name, run_by_hand(way, size, ranks, steps))
    return rows


def show(rows):
    mib = 1 << 20
    print("| plan | step | peak | by hand | step | peak | step, ours / theirs | peak |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for planner, _, name in PAIRS:
        ours, theirs = rows[planner], rows[name]
        print(
            f"| {planner} | {ours.median():.3f} s | {ours.peak_bytes / mib:.1f} MiB "
            f"| {name} | {theirs.median():.3f} s | {theirs.peak_bytes / mib:.1f} MiB "
            f"| {ours.median() / theirs.median():.2f} | {ours.peak_bytes / theirs.peak_bytes:.2f} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--lock", help="file to hold a lock on while steps are timed")
    for field in dataclasses.fields(by_hand.Size):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    given = vars(parser.parse_args())
    ranks, rounds, steps, lock = (given.pop(k) for k in ("ranks", "rounds", "steps", "lock"))
    size = by_hand.Size(**given)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        export(size, folder / "gpt2.pt2")
        plans = make_plans(folder / "gpt2.pt2", f"local:{ranks}", folder)
        with open(lock or folder / "lock", "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            rows = measure(plans, size, ranks, rounds, steps)
    print(f"{size}, {ranks} ranks of one thread, {os.cpu_count()} cores\n")
    show(rows)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Predicted against measured step times of about twenty plans of one model on this machine.

    truth_bench.py [--ranks 2] [--rounds 2] [--steps 5] [--cluster probed.yaml] [--width 256 ...]

Probes the machine first, unless it is given a cluster file. The plans: every expert plan that the
mesh allows and MAP's under several memory limits, each with 1 and 2 microbatches. They are run in
turn, some steps each, over and over; a measured time is the median of all steps but the first of
each run. Printed: the table, the rank correlation, and how far the plan that was predicted to be
the best is from the best measured one. Peaks are compared too.
"""

import argparse
import dataclasses
import fcntl
import json
import pathlib
import statistics
import tempfile

import by_hand
import hand_bench

EXPERTS = ["dp", "zero1", "zero2", "zero3", "megatron"]
LIMITS = [1.0, 0.9, 0.8, 0.75, 0.7]  # of the peak of MAP's plan without a limit
MICROBATCHES = [1, 2]


@dataclasses.dataclass
class Plan:
    name: str
    path: pathlib.Path
    predicted: float
    predicted_peak: int
    seconds: list = dataclasses.field(default_factory=list)
    peak: int = 0

    def measured(self):
        return statistics.median(self.seconds)


def make_plan(model, cluster, folder, planner, microbatches, memory=None):
    """None where no plan fits the memory."""
    name = f"{planner}{'' if memory is None else f', {memory >> 20} MiB'}, {microbatches} mb"
    path = folder / f"{len(list(folder.iterdir()))}.json"
    words = ["plan", model, "--cluster", cluster, "--planner", planner, "-o", path, "--json"]
    words += ["--optimizer", "adamw:lr=0.001", "--microbatches", microbatches]
    try:
        hand_bench.shardplan(*words, *([] if memory is None else ["--memory", memory]))
    except SystemExit:
        return None
    predicted = json.loads(hand_bench.shardplan("simulate", path, "--json"))
    return Plan(name, path, predicted["step_seconds"], predicted["peak_bytes"][0])


def make_plans(model, cluster, folder):
    plans = []
    for microbatches in MICROBATCHES:
        for planner in EXPERTS:
            plans.append(make_plan(model, cluster, folder, planner, microbatches))
        free = make_plan(model, cluster, folder, "map", microbatches)
        for part in LIMITS:
            limit = int(part * free.predicted_peak)
            plans.append(make_plan(model, cluster, folder, "map", microbatches, limit))
    return [plan for plan in plans if plan is not None]


def measure(plans, rounds, steps):
    for _ in range(rounds):
        for plan in plans:
            found = hand_bench.run_plan(plan.path, steps)
            plan.seconds += found["seconds"][1:]
            plan.peak = max(plan.peak, found["peak_bytes"])


def ranks_of(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    for rank, index in enumerate(order):
        ranks[index] = rank
    return ranks


def rank_correlation(a, b):
    """Spearman's."""
    n = len(a)
    squares = sum((x - y) ** 2 for x, y in zip(ranks_of(a), ranks_of(b)))
    return 1 - 6 * squares / (n * (n * n - 1))


def show(plans):
    print("| plan | predicted | measured | difference | peak, measured / predicted |")
    print("| --- | --- | --- | --- | --- |")
    for plan in plans:
        difference = plan.predicted / plan.measured() - 1
        print(
            f"| {plan.name} | {plan.predicted:.3f} s | {plan.measured():.3f} s "
            f"| {difference:+.1%} | {plan.peak / plan.predicted_peak:.4f} |"
        )
    correlation = rank_correlation(
        [plan.predicted for plan in plans], [plan.measured() for plan in plans]
    )
    best = min(plan.measured() for plan in plans)
    chosen = min(plans, key=lambda plan: plan.predicted)
    worst = max(abs(plan.predicted / plan.measured() - 1) for plan in plans)
    print(f"\nrank correlation over {len(plans)} plans {correlation:.3f}, largest error {worst:.1%}")
    print(f"best predicted plan ({chosen.name}): {chosen.measured() / best - 1:+.1%} of the best")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cluster", type=pathlib.Path, help="a cluster file of this machine")
    parser.add_argument("--lock", help="file to hold a lock on while anything is timed")
    for field in dataclasses.fields(by_hand.Size):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    given = vars(parser.parse_args())
    ranks, rounds, steps, cluster, lock = (
        given.pop(k) for k in ("ranks", "rounds", "steps", "cluster", "lock")
    )
    size = by_hand.Size(**given)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        hand_bench.export(size, folder / "gpt2.pt2")
        with open(lock or folder / "lock", "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if cluster is None:
                cluster = folder / "probed.yaml"
                hand_bench.shardplan("probe", "--ranks", ranks, "-o", cluster)
            fcntl.flock(held, fcntl.LOCK_UN)
            plans = make_plans(folder / "gpt2.pt2", cluster, folder)
            for _ in range(rounds):
                fcntl.flock(held, fcntl.LOCK_EX)
                measure(plans, 1, steps)
                fcntl.flock(held, fcntl.LOCK_UN)
    print(f"{size}, {ranks} ranks of one thread\n")
    show(plans)


if __name__ == "__main__":
    main()

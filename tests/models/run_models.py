"""Exports models, plans them on local ranks and checks each run against one device.

    run_models.py [--program build/shardplan] [--folder DIR] [--planners map,dp] [--ranks 4] [NAME ...]

Prints one line a model and planner; exits with 1 when one is wrong.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from networks import NETWORKS  # noqa: E402
from tiny import TINY  # noqa: E402

import shardplan  # noqa: E402

ALL = {**TINY, **NETWORKS}


def export(name, folder):
    """Path of the archive, and what went wrong."""
    path = folder / f"{name}.pt2"
    if path.exists():
        return path, ""
    torch.manual_seed(0)
    try:
        made = ALL[name]()
        model, batch, loss = made
        shardplan.export(model, batch, path, loss=loss)
    except Exception as error:  # a model that cannot be exported is one result of many
        return None, f"export: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return path, ""


def call(words, timeout):
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    last = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in last if "error" in line] or last[-1:]
    return done.returncode, done.stdout, " ".join(errors)[:300]


def check(program, path, planner, options):
    """What is wrong, or "", and the peak: predicted, measured."""
    plan = path.with_suffix(f".{planner}.json")
    code, out, error = call(
        [program, "plan", str(path), "--cluster", f"local:{options.ranks}", "--planner", planner]
        + ["--precision", options.precision, "--optimizer", options.optimizer]
        + (["--memory", options.memory] if options.memory else [])
        + ["-o", str(plan), "--json"],
        options.timeout,
    )
    if code == 1:
        return "no plan", ""
    if code != 0:
        return f"plan: {error}", ""
    code, out, error = call(
        [program, "run", str(plan), "--verify", "--steps", "2", "--json", "--oversubscribe"],
        options.timeout,
    )
    if not out.strip():
        return f"run: exit {code}: {error}", ""
    report = json.loads(out)
    peak = max(report.get("measured_peak_bytes") or [0])
    said = max(report.get("predicted_peak_bytes") or [0])
    note = f"peak {peak} of {said} ({100 * (peak / said - 1):+.1f} %)" if peak and said else ""
    return ("" if code == 0 else f"run: exit {code}: {error or out[:300]}"), note


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/shardplan")
    parser.add_argument("--folder")
    parser.add_argument("--planners", default="map,dp")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--precision", default="fp64")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--memory")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    folder = pathlib.Path(options.folder or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    unknown = [name for name in options.names if name not in ALL]
    if unknown:
        sys.exit(f"error: no model {unknown[0]}; there are {', '.join(ALL)}")
    wrong = 0
    for name in options.names or ALL:
        began = time.monotonic()
        path, error = export(name, folder)
        if error:
            wrong += 1
            print(f"{name:24} WRONG  {error}", flush=True)
            continue
        for planner in options.planners.split(","):
            try:
                error, note = check(options.program, path, planner, options)
            except subprocess.TimeoutExpired as late:
                error, note = f"no end after {late.timeout:.0f} s", ""
            wrong += bool(error)
            mark = f"WRONG  {error}" if error else f"equal  {note}"
            print(f"{name:24} {planner:10} {mark}  {time.monotonic() - began:.1f} s", flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

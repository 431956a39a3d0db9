"""Exports models, plans them on local ranks and checks each run against one device.

    run_models.py [--program build/shardplan] [--folder DIR] [--planners map,dp] [--ranks 4] [NAME ...]

A planner with "@tight" (map@tight) gets the smallest of 0.5 to 0.95 of the memory that its plan without a
limit takes for which it finds a plan. Prints one line a model and planner, then one a model: how far the
largest measured peak of a rank is from the predicted one, planner by planner. Exits with 1 when a run is not
equal to one device, something crashes, or, with --peak, a measured peak is further off than that (per cent).
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
from others import OTHERS  # noqa: E402
from tiny import TINY  # noqa: E402

import shardplan  # noqa: E402

ALL = {**TINY, **NETWORKS, **OTHERS}


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


TIGHT = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def make_plan(program, path, planner, memory, options):
    """The plan's file, its predicted peak, and what went wrong ("no plan" where none fits)."""
    plan = path.with_suffix(f".{planner}.json")
    code, out, error = call(
        [program, "plan", str(path), "--cluster", f"local:{options.ranks}", "--planner", planner]
        + ["--precision", options.precision, "--optimizer", options.optimizer]
        + ["--microbatches", str(options.microbatches)]
        + (["--memory", str(memory)] if memory else [])
        + ["-o", str(plan), "--json"],
        options.timeout,
    )
    if code == 1:
        return plan, 0, "no plan"
    if code != 0:
        return plan, 0, f"plan: exit {code}: {error}"
    return plan, json.loads(out)["peak_bytes"], ""


def make_tight_plan(program, path, planner, options):
    plan, peak, error = make_plan(program, path, planner, None, options)
    for part in TIGHT:
        if error:
            break
        limit = int(part * peak)
        tight, said, why = make_plan(program, path, planner, limit, options)
        if why != "no plan":
            return tight, said, why or (f"plans {said} bytes of {limit}" if said > limit else "")
    return plan, peak, error


def check(program, path, planner, options):
    """What is wrong, or "", and the largest peak of a rank: measured, predicted (0 where there is none)."""
    name, _, limit = planner.partition("@")
    if limit == "tight":
        plan, _, error = make_tight_plan(program, path, name, options)
    else:
        plan, _, error = make_plan(program, path, name, options.memory, options)
    if error:
        return error, 0, 0
    code, out, error = call(
        [program, "run", str(plan), "--verify", "--steps", str(options.steps), "--json", "--oversubscribe"],
        options.timeout,
    )
    if not out.strip():
        return f"run: exit {code}: {error}", 0, 0
    report = json.loads(out)
    peaks = zip(report.get("measured_peak_bytes") or [0], report.get("predicted_peak_bytes") or [0])
    measured, said = max(peaks, key=lambda pair: pair[0] / max(pair[1], 1))
    return ("" if code == 0 else f"run: exit {code}: {error or out[:300]}"), measured, said


def over(measured, said):
    """By how many per cent of what was predicted the measured peak is above it."""
    return 100 * (measured / said - 1) if measured and said else 0.0


def table(planners, rows):
    print("".join(["model".ljust(24), *(planner.rjust(max(9, len(planner) + 2)) for planner in planners)]))
    for name, cells in rows.items():
        shown = [cells.get(planner, "").rjust(max(9, len(planner) + 2)) for planner in planners]
        print("".join([name.ljust(24), *shown]))


def run(options, folder):
    """What is wrong, counted, and the cells of the table, by model and planner."""
    wrong, rows = 0, {}
    for name in options.names or ALL:
        began = time.monotonic()
        path, error = export(name, folder)
        if error:
            wrong += 1
            print(f"{name:24} WRONG  {error}", flush=True)
            continue
        for planner in options.planners.split(","):
            measured = said = 0
            try:
                error, measured, said = check(options.program, path, planner, options)
            except subprocess.TimeoutExpired as late:
                error = f"no end after {late.timeout:.0f} s"
            off = over(measured, said)
            if not error and options.peak is not None and abs(off) > options.peak:
                error = "the peak is not what was predicted"
            wrong += bool(error)
            note = f"peak {measured} of {said} ({off:+.1f} %)" if measured else ""
            mark = f"WRONG  {error} {note}" if error else f"equal  {note}"
            rows.setdefault(name, {})[planner] = "WRONG" if error else f"{off:+.2f} %"
            print(f"{name:24} {planner:10} {mark}  {time.monotonic() - began:.1f} s", flush=True)
    return wrong, rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/shardplan")
    parser.add_argument("--folder")
    parser.add_argument("--planners", default="map,dp")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--precision", default="fp64")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--memory")
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--peak", type=float, help="per cent by which a measured peak may be off")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    folder = pathlib.Path(options.folder or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    unknown = [name for name in options.names if name not in ALL]
    if unknown:
        sys.exit(f"error: no model {unknown[0]}; there are {', '.join(ALL)}")
    wrong, rows = run(options, folder)
    table(options.planners.split(","), rows)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

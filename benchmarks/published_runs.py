#!/usr/bin/env python3
"""Predicted against published runs of Megatron-LM, beside Calculon's predictions.

    published_runs.py [--baselines shared/baselines] [--no-fit]

Eighteen step times of A100 clusters: the ten rows of Table 1 of Narayanan et al., SC 2021, and the
eight of Table 5 of Korthikanti et al., 2022; and twenty figures of activation memory of the latter.
Every prediction is one call of `shardplan predict` with the constants of the cluster dgx-a100. Below
come what each assumption about the software is worth, and production runs of MT-NLG 530B. Last, the
two constants that were fitted (reachable parts of the peak and of the memory bandwidth) are fitted
anew, to all rows, to all but one, and to one paper only, by least largest error.

A published time of Table 1 follows from the printed TFLOP/s a GPU. Microbatches and model chunks
are not in the paper: they are those of Megatron-LM's examples/sc21/run_table_1.sh.
"""

import argparse
import csv
import functools
import json
import pathlib
import subprocess
import sys

from program import ROOT, program

MICROBATCHES = [16, 16, 16, 8, 4, 2, 2, 1, 1, 1]
CHUNKS = [1, 1, 1, 1, 1, 3, 2, 2, 3, 1]
PEAK = 312e12
KINDS = {  # of activation memory, with the names of the published figures
    "tp (none)": ["--recompute", "none"],
    "tp+sp": ["--recompute", "none", "--sequence-parallel"],
    "tp+selective": ["--recompute", "selective"],
    "tp+sp+selective": ["--recompute", "selective", "--sequence-parallel"],
    "full": ["--recompute", "full"],
}


class Row:
    def __init__(self, name, paper, words, seconds, calculon):
        self.name = name
        self.paper = paper
        self.words = tuple(map(str, words))
        self.seconds = seconds
        self.calculon = calculon  # seconds by its setting; None where it has no such row

    def error(self, constants=None):
        return predicted(self.words, constants)["step_seconds"] / self.seconds - 1


@functools.cache
def predicted(words, constants=None):
    more = []
    if constants:
        more = ["--matmul-efficiency", str(constants[0]), "--memory-efficiency", str(constants[1])]
    command = [program(), "predict", *words, *more, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def words_of(layers, hidden, heads, gpus, tp, pp, dp, microbatch, batch, chunks):
    model = f"gpt:layers={layers},hidden={hidden},heads={heads},seq=2048,vocab=51200"
    words = ["--model", model, "--cluster", f"dgx-a100:{gpus // 8}", "--tp", tp, "--pp", pp]
    words += ["--dp", dp, "--microbatch", microbatch, "--batch", batch, "--interleave", chunks]
    return words


def table_one(published, calculon):
    rows = []
    for row, microbatch, chunks in zip(published["sc21"], MICROBATCHES, CHUNKS):
        words = words_of(
            row["layers"], row["hidden"], row["heads"], row["gpus"], row["tp"], row["pp"],
            row["dp"], microbatch, row["batch"], chunks,
        )
        words += ["--recompute", "full", "--software", "2021"]
        words += ["--overlap-gradients"] if row["pp"] == 1 else []
        found = [line for line in calculon if line["tag"] == f"sc21-{row['B']}B"]
        by_size = {line["mbs"]: float(line["batch_s"]) for line in found if line["batch_s"]}
        seconds = row["flops"] / (row["gpus"] * row["tflops"] * 1e12)
        its = {"1": by_size.get("1"), "same": by_size.get(str(microbatch))}
        rows.append(Row(f"{row['B']}B", "SC'21", words, seconds, its))
    return rows


def table_five(published, calculon):
    rows = []
    kinds = {
        "full": (["--recompute", "full"], "iter_full_s", "tab5-full"),
        "selective": (KINDS["tp+sp+selective"], "iter_selsp_s", "tab5-seqsel"),
    }
    for name, row in published["korthikanti"].items():
        for kind, (more, key, tag) in kinds.items():
            found = [
                line for line in calculon if line["tag"] == tag and line["model"].endswith(name)
            ]
            seconds = float(found[0]["batch_s"]) if found else None
            words = words_of_korthikanti(row["cfg"]) + more
            its = {"1": seconds, "same": seconds}
            rows.append(Row(f"{name} {kind}", "K22", words, row[key], its))
    return rows


def words_of_korthikanti(c):
    return words_of(c["L"], c["h"], c["a"], c["n"], c["t"], c["p"], 1, c["b"], c["B"], c["m"])


def percent(part):
    return "" if part is None else f"{100 * part:+.1f} %"


def print_table(header, rows):
    print("| " + " | ".join(header) + " |\n| " + " | ".join(["---"] * len(header)) + " |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def print_times(rows):
    lines = []
    for row in rows:
        shown = predicted(row.words)
        cells = [row.paper, row.name, f"{row.seconds:.2f}", f"{shown['step_seconds']:.2f}"]
        cells += [percent(row.error())]
        for setting in ("1", "same"):
            its = row.calculon[setting]
            cells += [f"{its:.2f}" if its else "–", percent(its / row.seconds - 1 if its else None)]
        cells += [f"{100 * shown['mfu']:.1f} %", f"{shown['memory_bytes'] / 2**30:.1f}"]
        lines.append(cells)
    print_table(
        [
            *("paper", "model", "published s", "predicted s", "error"),
            *("Calculon s, microbatch 1", "error", "Calculon s, the run's microbatch", "error"),
            *("MFU", "GiB a GPU"),
        ],
        lines,
    )
    errors = [row.error() for row in rows]
    most = 100 * max(map(abs, errors))
    print(f"Largest error {most:.1f} %, mean {mean_of(errors):.1f} %.", end=" ")
    for setting, text in (("1", "microbatch 1"), ("same", "the run's microbatch")):
        its = [r.calculon[setting] / r.seconds - 1 for r in rows if r.calculon[setting]]
        if its:
            most = 100 * max(map(abs, its))
            print(f"Calculon, {text}: {most:.1f} %, {mean_of(its):.1f} %.", end=" ")
    print("\n")


def mean_of(errors):
    return 100 * sum(map(abs, errors)) / len(errors)


def print_memory(published):
    lines, equal = [], 0
    for name, row in published["korthikanti"].items():
        cells = [name]
        for kind, more in KINDS.items():
            words = tuple(map(str, words_of_korthikanti(row["cfg"]) + more))
            ours = round(predicted(words)["memory"]["activations"] / 2**30, 2)
            equal += ours == row["act_GiB"][kind]
            cells.append(f"{ours:.2f} ({row['act_GiB'][kind]:.2f})")
        lines.append(cells)
    print_table(["GiB of activations (published)", *KINDS], lines)
    print(f"{equal} of {5 * len(lines)} to the printed digit.\n")


def put(words, option, value):
    """The words with another value of an option, or with the option."""
    words = list(words)
    if option not in words:
        return [*words, option, value]
    words[words.index(option) + 1] = value
    return words


CHANGES = {  # of a row's words
    "nothing": lambda row: row.words,
    "all rows with the software of 2022": lambda row: put(row.words, "--software", "2022"),
    "all rows with the software of 2021": lambda row: put(row.words, "--software", "2021"),
    "microbatches of 1 in SC'21": lambda row: (
        put(row.words, "--microbatch", "1") if row.paper == "SC'21" else row.words
    ),
    "no interleaving": lambda row: put(row.words, "--interleave", "1"),
    "gradients never overlapped": lambda row: [
        word for word in row.words if word != "--overlap-gradients"
    ],
}


def print_changes(rows):
    lines = []
    for name, change in CHANGES.items():
        errors = {
            row.name: predicted(tuple(change(row)))["step_seconds"] / row.seconds - 1 for row in rows
        }
        worst = max(errors, key=lambda row: abs(errors[row]))
        lines.append([name, percent(errors[worst]), worst])
    print_table(["changed", "largest error", "in row"], lines)


def print_production():
    """MT-NLG 530B (SC'21's software), by GPUs."""
    for replicas, seconds in ((8, 60.1), (10, 50.2), (12, 44.4)):
        gpus = 280 * replicas
        words = words_of(105, 20480, 128, gpus, 8, 35, replicas, 1, 1920, 1)
        words += ["--recompute", "full", "--software", "2021"]
        error = predicted(tuple(map(str, words)))["step_seconds"] / seconds - 1
        print(f"MT-NLG 530B on {gpus} GPUs: {seconds} s, predicted {percent(error)}.")
    print()


def plane(row, at):
    """Relative error of a row as (constant, slope, slope) in x, y = the inverse constants, around
    `at`: a time is a sum of parts that are proportional to one of them, or to none."""
    x, y = 1 / at[0], 1 / at[1]
    base = row.error(at)
    along_x = (row.error((1 / (x * 1.01), at[1])) - base) / (x * 0.01)
    along_y = (row.error((at[0], 1 / (y * 1.01))) - base) / (y * 0.01)
    return base - along_x * x - along_y * y, along_x, along_y


def least(of, low, high):
    """Where a convex function of one number is least."""
    for _ in range(60):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if of(a) <= of(b) else (a, high)
    return (low + high) / 2


def fit(rows, at=(0.845, 0.73)):
    """The two constants of the least largest error."""
    for _ in range(3):
        planes = [plane(row, at) for row in rows]

        def worst(x, y):
            return max(abs(base + u * x + v * y) for base, u, v in planes)

        def best_y(x):
            return least(lambda y: worst(x, y), 1, 3)

        x = least(lambda x: worst(x, best_y(x)), 1, 1.8)
        at = round(1 / x, 4), round(1 / best_y(x), 4)
    return at


def print_fits(rows):
    at = fit(rows)
    everything = max(abs(row.error(at)) for row in rows)
    print(f"Fitted to all: {at[0]:.3f} and {at[1]:.3f}, largest error {100 * everything:.1f} %.\n")
    lines, worst = [], 0
    for left in rows:
        constants = fit([row for row in rows if row is not left], at)
        error = left.error(constants)
        worst = max(worst, abs(error))
        parts = [f"{part:.3f}" for part in constants]
        lines.append([left.paper, left.name, *parts, percent(error)])
    print_table(["left out", "", "of the peak", "of the memory bandwidth", "its error"], lines)
    print(f"Largest error of a row that was left out: {100 * worst:.1f} %.")
    for paper in ("SC'21", "K22"):
        constants = fit([row for row in rows if row.paper == paper], at)
        other = max(abs(row.error(constants)) for row in rows if row.paper != paper)
        print(
            f"Fitted to {paper} alone: {constants[0]:.3f} and {constants[1]:.3f}, "
            f"largest error on the other paper {100 * other:.1f} %."
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--baselines", type=pathlib.Path, default=None)
    parser.add_argument("--no-fit", action="store_true", help="leave the fits out")
    options = parser.parse_args()
    shared = [ROOT / "shared", ROOT.parent / "shared", pathlib.Path("/work/shared")]
    places = [options.baselines] if options.baselines else [at / "baselines" for at in shared]
    found = [at for at in places if (at / "published_training_runs.json").exists()]
    folder = found[0] if found else None
    if folder is None:
        print(f"skipped: no published_training_runs.json in {', '.join(map(str, places))}")
        return
    published = json.loads((folder / "published_training_runs.json").read_text())
    calculon = []
    if (folder / "calculon_a100_h100.csv").exists():
        with open(folder / "calculon_a100_h100.csv", newline="") as file:
            calculon = list(csv.DictReader(file))
    rows = table_one(published, calculon) + table_five(published, calculon)
    print_times(rows)
    print_memory(published)
    print_changes(rows)
    print_production()
    if not options.no_fit:
        print_fits(rows)


if __name__ == "__main__":
    main()

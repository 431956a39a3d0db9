#!/usr/bin/env python3
"""CPU seconds and peak memory of `shardplan solve` on layer graphs, whole process, beside what the
published code needs on the same inputs, and its objective.

Published inputs are looked for in $SHARDPLAN_WORKLOADS or ../shared/workloads; rows that need them
are left out where they are missing. Graphs of other shapes come from layer_graphs.py.
"""

import copy
import json
import os
import pathlib
import tempfile

import layer_graphs
import program

WORKLOADS = pathlib.Path(os.environ.get("SHARDPLAN_WORKLOADS", program.ROOT / ".." / "shared" / "workloads"))
GIB = 2**30

# name, file, planner, options, published objective, published CPU seconds, seconds wanted
BERT = "piper/bert32a100.json"
PLACEMENT = "dnn-partitioning/throughput/LayerGraphs"
OPERATORS = "dnn-partitioning/throughput/OperatorGraphs"


def bert(devices, memory, published, seconds):
    options = ["--devices", devices, "--memory", f"{memory}GiB", "--bandwidth", "25GiB"]
    return ("BERT-32", BERT, "piper", [*options, "--microbatches", 1920], published, seconds, 0.02)


def resnet(devices, memory, inner, published, seconds):
    options = ["--devices", devices, "--memory", f"{memory}GiB", "--bandwidth", "25GiB"]
    wanted = 0.1 if inner == "greedy" else 0.4
    return (
        f"ResNet, {inner}",
        "piper/resnet.json",
        "piper",
        [*options, "--option", f"inner={inner}"],
        published,
        seconds,
        wanted,
    )


ROWS = [
    bert(8, 8, 0.16585575, 0.066),
    bert(64, 2, 0.03203008123, 0.161),
    bert(512, 8, 0.002561127846, 3.521),
    bert(2048, 8, 0.0007035911844, 68.884),
    ("BERT-32", BERT, "piper", ["--devices", 2048, "--microbatches", 512], 0.001217127932, 14.15, 0.02),
    ("BERT-64", "bert64", "piper", ["--devices", 2048, "--microbatches", 2048], 0.001199263223, 132.086, 0.02),
    *[
        resnet(devices, memory, inner, published, seconds)
        for devices, memory, published, seconds in (
            (32, 2, 24.62589852, 6.204),
            (32, 4, 17.62395849, 6.158),
            (64, 2, 11.33379029, 7.841),
            (64, 4, 8.666772848, 8.747),
            (64, 8, 7.879013051, 9.861),
        )
        for inner in ("greedy", "exact")
    ],
    *[
        (shape, shape, "piper", ["--devices", devices, "--memory", f"{memory}GiB"], None, None, 5)
        for shape, memory in (
            ("three_chains", 4),
            ("four_chains", 4),
            ("two_long_chains", 16),
            ("many_forks", 16),
            ("series_parallel", 4),
        )
        for devices in (8, 64)
    ],
    *[
        (name, f"{folder}/{name}.json", "dnn_partitioning_dp", [], published, seconds, wanted)
        for folder, name, published, seconds, wanted in (
            (PLACEMENT, "bert24_inference", 17.78990625, None, None),
            (PLACEMENT, "resnet50_inference", 33.77466602, 0.09, None),
            (PLACEMENT, "resnet50_training", 78.6318125, 0.13, None),
            (PLACEMENT, "gnmt_inference", 32.9106582, 11.99, 0.5),
            (OPERATORS, "bert_l-3_inference", 27.91856768, 0.68, None),
            (OPERATORS, "bert_l-3_training", 65.30314912, 4.12, None),
        )
    ],
]


def deeper_bert(folder):
    """BERT with 64 layers: 32 copies of layer 34, each behind the last, without the mask's edge."""
    graph = json.loads((WORKLOADS / BERT).read_text())
    original = copy.deepcopy(next(node for node in graph["nodes"] if node["id"] == 34))
    mask, before, after = "4", "33", "35"
    last = 34
    for copy_id in range(100, 132):
        node = copy.deepcopy(original)
        node["id"] = copy_id
        for choices in node["TMPCs"].values():
            for choice in choices:
                choice["syncTimeFw"] = {str(last): choice["syncTimeFw"][before]}
        graph["nodes"].append(node)
        for edge in graph["edges"]:
            if edge["sourceId"] == last and edge["destId"] == 35:
                edge["sourceId"] = copy_id
                size = edge["communicationCost"]
        graph["edges"].append({"sourceId": last, "destId": copy_id, "communicationCost": size})
        for other in graph["nodes"]:
            for choices in other["TMPCs"].values():
                for choice in choices:
                    if other["id"] == last:
                        choice["syncTimeBw"] = {str(copy_id): choice["syncTimeBw"][after]}
                    elif other["id"] == 35:
                        extra = choice["syncTimeFw"]
                        if str(last) in extra:
                            extra[str(copy_id)] = extra.pop(str(last))
        last = copy_id
    assert mask in original["TMPCs"]["1"][0]["syncTimeFw"]
    path = folder / "bert64.json"
    path.write_text(json.dumps(graph))
    return path


def path_of(name, folder):
    if name in layer_graphs.SHAPES:
        path = folder / f"{name}.json"
        path.write_text(layer_graphs.SHAPES[name]().json(microbatches=256))
        return path
    if name == "bert64":
        return deeper_bert(folder) if (WORKLOADS / BERT).exists() else None
    return WORKLOADS / name if (WORKLOADS / name).exists() else None


def measure(path, planner, options):
    used, peak, text = program.measure("solve", path, "--planner", planner, *options, "--json")
    return used, peak, json.loads(text)


def main():
    print(f"{'input':<22}{'planner':<22}{'devices':>8}{'objective':>17}{'published':>17}"
          f"{'CPU s':>9}{'wanted':>8}{'published':>11}{'peak MB':>9}  proof")
    with tempfile.TemporaryDirectory() as holder:
        for name, file, planner, options, published, seconds, wanted in ROWS:
            path = path_of(file, pathlib.Path(holder))
            if path is None:
                continue
            used, peak, answer = measure(path, planner, options)
            devices = options[options.index("--devices") + 1] if "--devices" in options else "file"
            print(
                f"{name:<22}{planner:<22}{devices:>8}{answer['objective']:>17.10g}"
                f"{published if published is not None else '-':>17}{used:>9.3f}"
                f"{wanted if wanted is not None else '-':>8}"
                f"{seconds if seconds is not None else '-':>11}{peak:>9.1f}  {answer['status']}"
            )


if __name__ == "__main__":
    main()

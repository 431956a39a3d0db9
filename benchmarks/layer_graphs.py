#!/usr/bin/env python3
"""Layer graphs in Piper's form that are larger or of other shapes than the published ones.

    benchmarks/layer_graphs.py OUT     writes them all into the folder OUT

Every layer has a choice without and one with recomputation; times, activations and weights are
random. The same seed gives the same bytes.
"""

import json
import pathlib
import random
import sys

RECOMPUTE_TIME = 1.33
BOUNDARY = 0.09  # of the activations, which stays in flight when a layer recomputes


class Graph:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.layers = []
        self.edges = []

    def layer(self, *before):
        self.layers.append(
            (
                self.random.uniform(1, 10),
                float(self.random.randrange(10**6, 2 * 10**8)),
                float(self.random.randrange(4 * 10**7)),
            )
        )
        new = len(self.layers) - 1
        self.edges += [(one, new) for one in dict.fromkeys(before)]
        return new

    def chain(self, start, length):
        for _ in range(length):
            start = self.layer(start)
        return start

    def fork(self, start, lengths):
        """Chains side by side between `start` and a layer that joins them."""
        return self.layer(*[self.chain(start, length) for length in lengths])

    def series_parallel(self, start, size):
        if size <= 2:
            return self.chain(start, max(size, 1))
        left = self.random.randrange(1, size)
        if self.random.random() < 0.5:
            return self.series_parallel(self.series_parallel(start, left), size - left)
        return self.layer(
            self.series_parallel(start, left), self.series_parallel(start, size - left)
        )

    def json(self, microbatches):
        nodes = []
        before = {v: [] for v in range(len(self.layers))}
        after = {v: [] for v in range(len(self.layers))}
        for a, b in self.edges:
            before[b].append(a)
            after[a].append(b)
        for v, (time, activation, weights) in enumerate(self.layers):
            common = {
                "parameterSize": weights,
                "syncTimeFw": {str(u): 0.0 for u in before[v]},
                "syncTimeBw": {str(u): 0.0 for u in after[v]},
            }
            kept = {
                "id": "vanilla",
                "timePerSample": time,
                "memoryUsageA": activation,
                "memoryUsageB": 2 * weights,
            }
            again = {
                "id": "activation recomp",
                "timePerSample": RECOMPUTE_TIME * time,
                "memoryUsageA": BOUNDARY * activation,
                "memoryUsageB": 2 * weights + (1 - BOUNDARY) * activation,
            }
            nodes.append(
                {"id": v, "name": f"layer{v}", "TMPCs": {"1": [{**kept, **common}, {**again, **common}]}}
            )
        return json.dumps(
            {
                "maxDevices": 8,
                "maxMemoryPerDevice": 80e9,
                "bandwidth": 25e9,
                "mbsInBatch": microbatches,
                "nodes": nodes,
                "edges": [
                    {"sourceId": a, "destId": b, "communicationCost": self.layers[a][1]}
                    for a, b in self.edges
                ],
            }
        )


def three_chains():
    graph = Graph(2)
    graph.fork(graph.layer(), [25, 25, 25])
    return graph  # 26^3 downsets and a few


def four_chains():
    graph = Graph(1)
    start = graph.fork(graph.layer(), [10, 10, 10, 10])
    for _ in range(3):
        start = graph.fork(start, [5, 5])
    return graph  # 11^4 and a few


def two_long_chains():
    graph = Graph(3)
    graph.fork(graph.layer(), [130, 135])
    return graph  # 131 * 136


def many_forks():
    graph = Graph(4)
    start = graph.layer()
    for _ in range(18):
        start = graph.fork(start, [9, 9, 9])
    return graph  # 18 * 10^3


def series_parallel():
    graph = Graph(11)
    graph.series_parallel(graph.layer(), 60)
    return graph


SHAPES = {
    "three_chains": three_chains,
    "four_chains": four_chains,
    "two_long_chains": two_long_chains,
    "many_forks": many_forks,
    "series_parallel": series_parallel,
}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name, make in SHAPES.items():
        (out / f"{name}.json").write_text(make().json(microbatches=256))


if __name__ == "__main__":
    main()

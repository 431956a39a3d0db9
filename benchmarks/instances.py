#!/usr/bin/env python3
"""Problem files that are harder than the published ones, in our own form (docs/problem.md).

    benchmarks/instances.py INSTANCES OUT     INSTANCES: the folder of gpt_*_blocks.json.gz

From each published GPT: memory as 8 and as blocks + 1 rows (peaks of blocks over common sums,
prefixes that grow along the step, gradients that take over from activations, dense random sums);
the same with every block's costs perturbed, so that no two blocks are equal; and graphs of other
shapes (grids, long skips, dense layers, trees), which need no published file. Every file has three
cases, from a loose limit to a tight one. The same seed gives the same bytes.
"""

import gzip
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("SHARDPLAN", str(ROOT / "build" / "shardplan"))
TIGHTNESS = (0.6, 0.3, 0.1)  # of the way from the least memory to that of the free optimum
KINDS = ("peaks", "prefix", "gradients", "dense")


class Pool:
    """Tables, each once."""

    def __init__(self):
        self.tables = []
        self.places = {}

    def place(self, table):
        key = tuple(table)
        if key not in self.places:
            self.places[key] = len(self.tables)
            self.tables.append(list(table))
        return self.places[key]


def write(path, name, nodes, edges, rows, limits):
    """nodes: (name, costs); edges: (from, to, matrix); rows: (name, {node: bytes}); limits: a case."""
    pool = Pool()
    document = {
        "format": "shardplan.strategy_graph",
        "version": 1,
        "name": name,
        "nodes": [{"name": label, "cost": pool.place(costs)} for label, costs in nodes],
        "factors": [
            {"nodes": [a, b], "cost": pool.place([x for row in matrix for x in row])}
            for a, b, matrix in edges
        ],
        "rows": [
            {
                "name": label,
                "limit": None,
                "constant": 0,
                "nodes": [[v, pool.place(table)] for v, table in of.items()],
            }
            for label, of in rows
        ],
        "cases": [{"memory_limit": limit} for limit in limits],
        "tables": pool.tables,
    }
    # mtime=0: the same bytes each time.
    path.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0))
    print(f"{path.name}: {len(nodes)} nodes, {len(edges)} factors, {len(rows)} rows")


def limits_of(nodes, edges, rows):
    """Limits between what the rows need at least and what the free optimum needs."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "free.json"
        published = {
            "nodes": [{"cost": costs} for _, costs in nodes],
            "edges": [{"from": a, "to": b, "cost": matrix} for a, b, matrix in edges],
        }
        path.write_text(json.dumps(published))
        done = subprocess.run(
            [PROGRAM, "solve", path, "--solver", "beam", "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
    choices = json.loads(done.stdout)["choices"]
    least = max(sum(map(min, of.values())) for _, of in rows)
    free = max(sum(table[choices[v]] for v, table in of.items()) for _, of in rows)
    return [round(least + t * (free - least)) for t in TIGHTNESS]


def block_of(name):
    """L7.fc1 -> 7; None outside the blocks."""
    found = re.match(r"L(\d+)\.", name)
    return int(found.group(1)) if found else None


def is_parameter(name):
    return re.search(r"(^wte|^head|\.g|\.w\w|\.b\w+)$", name) is not None


def share(kind, point, points, block, blocks, parameter, rng):
    """Part of a node's bytes that lives at a program point, 0 to 1."""
    if kind == "dense":
        return rng.random()
    if block is None:
        return 1
    own = min(points - 1, block * points // blocks)  # the point at which the block runs
    if kind == "peaks":  # everything is recomputed; only one block's activations live
        return 1 if parameter or own == point else 0.05
    if kind == "prefix":  # activations pile up
        return 1 if parameter or own <= point else 0
    # Backward: activations go, gradients of the parameters come.
    if parameter:
        return 1.5 if own >= points - 1 - point else 1
    return 1 if own < points - 1 - point else (0.5 if own == points - 1 - point else 0)


def rows_of(kind, points, instance, rng):
    blocks = 1 + max(block_of(node["name"]) or 0 for node in instance["nodes"])
    rows = []
    for point in range(points):
        of = {}
        for v, node in enumerate(instance["nodes"]):
            part = share(
                kind, point, points, block_of(node["name"]), blocks, is_parameter(node["name"]), rng
            )
            if part > 0:
                of[v] = [round(part * x) for x in node["memory"]]
        rows.append((f"{kind} {point}", of))
    return rows


def perturbed(instance, rng):
    """Every cost of every node and edge a few percent up or down."""
    def near(x):
        return x * rng.uniform(0.95, 1.05)

    nodes = [{**node, "cost": [near(x) for x in node["cost"]]} for node in instance["nodes"]]
    edges = [
        {**edge, "cost": [[near(x) for x in row] for row in edge["cost"]]}
        for edge in instance["edges"]
    ]
    return {**instance, "nodes": nodes, "edges": edges}


def from_published(path, out):
    base = path.name.split("_blocks")[0]
    instance = json.loads(gzip.decompress(path.read_bytes()))
    blocks = int(base.split("_")[1])
    for differ in (False, True):
        rng = random.Random(f"{base}{differ}")
        source = perturbed(instance, rng) if differ else instance
        nodes = [(node["name"], node["cost"]) for node in source["nodes"]]
        edges = [(edge["from"], edge["to"], edge["cost"]) for edge in source["edges"]]
        asked = [(kind, points) for points in (8, blocks + 1) for kind in KINDS if blocks > 2]
        for kind, points in [("sum", 1), *asked]:
            if kind == "sum":
                rows = [("sum", {v: node["memory"] for v, node in enumerate(source["nodes"])})]
            else:
                rows = rows_of(kind, points, source, rng)
            name = f"{base}{'_differ' if differ else ''}_{kind}_{points}"
            write(out / f"{name}.json.gz", name, nodes, edges, rows, limits_of(nodes, edges, rows))


def edges_of(shape, n, rng):
    if shape == "grid":
        width = 12
        across = [(v, v + 1) for v in range(n - 1) if (v + 1) % width]
        return across + [(v, v + width) for v in range(n - width)]
    if shape == "skips":  # as in a U-net: the way down is joined with the way up
        return [(v, v + 1) for v in range(n - 1)] + [(v, n - 1 - v) for v in range(n // 2 - 1)]
    if shape == "layers":  # dense between layers of four
        return [(v, w) for v in range(n) for w in range(v // 4 * 4 + 4, v // 4 * 4 + 8) if w < n]
    return [(rng.randrange(v), v) for v in range(1, n)]


def other_shapes(out):
    for shape, n in (("grid", 144), ("skips", 120), ("layers", 80), ("tree", 500)):
        for points in (1, 8):
            rng = random.Random(f"{shape}{points}")
            sizes = [rng.randint(2, 6) for _ in range(n)]
            nodes = [(f"n{v}", [rng.uniform(0, 10) for _ in range(sizes[v])]) for v in range(n)]
            edges = [
                (a, b, [[rng.uniform(0, 5) for _ in range(sizes[b])] for _ in range(sizes[a])])
                for a, b in edges_of(shape, n, rng)
            ]
            memory = [[rng.randint(1, 1000) for _ in range(size)] for size in sizes]
            rows = []
            for point in range(points):
                of = {
                    v: [x if v % points == point else x // 4 for x in memory[v]] for v in range(n)
                }
                rows.append((f"point {point}", of))
            name = f"{shape}_{n}_{points}"
            write(out / f"{name}.json.gz", name, nodes, edges, rows, limits_of(nodes, edges, rows))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    published, out = map(pathlib.Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    other_shapes(out)
    for path in sorted(published.glob("gpt_*_blocks.json.gz"), key=lambda p: p.stat().st_size):
        from_published(path, out)


if __name__ == "__main__":
    main()

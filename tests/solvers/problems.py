"""Random strategy graphs for the oracle: trees, chains with skips, grids, dense; several rows.

A Problem knows its costs as plain lists, writes itself as a file in either form, and evaluates a
choice. Memory is whole numbers, so that no two solvers differ by a tolerance.
"""

import gzip
import json
import math
import random


class Problem:
    def __init__(self):
        self.nodes = []  # costs by strategy
        self.factors = []  # (nodes, flat costs)
        self.rows = []  # {"limit", "constant", "nodes": {v: list}, "factors": {f: list}}

    def sizes(self, nodes):
        return [len(self.nodes[v]) for v in nodes]

    def index(self, nodes, choice):
        at = 0
        for v in nodes:
            at = at * len(self.nodes[v]) + choice[v]
        return at

    def cost(self, choice):
        total = 0.0
        for v, costs in enumerate(self.nodes):
            total += costs[choice[v]]
        for nodes, costs in self.factors:
            total += costs[self.index(nodes, choice)]
        return total

    def memory(self, row, choice):
        total = row["constant"]
        total += sum(table[choice[v]] for v, table in row["nodes"].items())
        return total + sum(
            table[self.index(self.factors[f][0], choice)] for f, table in row["factors"].items()
        )

    def feasible(self, choice):
        return math.isfinite(self.cost(choice)) and all(
            self.memory(row, choice) <= row["limit"] for row in self.rows
        )

    def is_published(self):
        """Whether the published form can hold it: edges and one row of node memory."""
        return (
            all(len(nodes) == 2 for nodes, _ in self.factors)
            and len(self.rows) <= 1
            and all(not row["factors"] and not row["constant"] for row in self.rows)
            and all(len(row["nodes"]) == len(self.nodes) for row in self.rows)
        )

    def published(self):
        document = {"name": "random", "unit": "s", "nodes": [], "edges": [], "cases": []}
        for v, costs in enumerate(self.nodes):
            node = {"cost": costs}
            if self.rows:
                node["memory"] = self.rows[0]["nodes"][v]
            document["nodes"].append(node)
        for (a, b), costs in self.factors:
            width = len(self.nodes[b])
            matrix = [costs[i : i + width] for i in range(0, len(costs), width)]
            document["edges"].append({"from": a, "to": b, "cost": matrix})
        document["cases"].append({"memory_limit": self.rows[0]["limit"] if self.rows else None})
        return json.dumps(document)

    def own(self):
        def number(x):
            return "inf" if x == math.inf else x

        return json.dumps(
            {
                "format": "shardplan.strategy_graph",
                "version": 1,
                "nodes": [{"cost": [number(x) for x in costs]} for costs in self.nodes],
                "factors": [
                    {"nodes": list(nodes), "cost": [number(x) for x in costs]}
                    for nodes, costs in self.factors
                ],
                "rows": [
                    {
                        "limit": row["limit"],
                        "constant": row["constant"],
                        "nodes": [[v, table] for v, table in row["nodes"].items()],
                        "factors": [[f, table] for f, table in row["factors"].items()],
                    }
                    for row in self.rows
                ],
            }
        )

    def write(self, path, rng):
        """Writes one of the forms; returns the words that make the program use its limits."""
        if self.is_published() and rng.random() < 0.5:
            text, words = self.published(), ["--case", "0"]
        else:
            text, words = self.own(), []
        data = text.encode()
        path.write_bytes(gzip.compress(data) if rng.random() < 0.3 else data)
        return words


def edges_of(kind, n, rng):
    if kind == "tree":
        return [(rng.randrange(v), v) for v in range(1, n)]
    if kind == "chain":
        edges = [(v - 1, v) for v in range(1, n)]
        for _ in range(rng.randint(0, n // 3)):
            a = rng.randrange(max(1, n - 2))
            b = min(n - 1, a + rng.randint(2, 5))
            if a < b:
                edges.append((a, b))
        return edges
    if kind == "grid":
        width = rng.randint(2, 4)
        edges = [(v, v + 1) for v in range(n - 1) if (v + 1) % width]
        return edges + [(v, v + width) for v in range(n - width)]
    return [(a, b) for a in range(n) for b in range(a + 1, n) if rng.random() < 0.7]


def random_problem(rng):
    """At most 40 nodes; dense ones and grids smaller, so that the oracle ends in seconds."""
    kind = rng.choice(["tree", "chain", "grid", "dense"])
    n = rng.randint(1, {"tree": 40, "chain": 40, "grid": 20, "dense": 9}[kind])
    problem = Problem()
    whole = rng.random() < 0.3  # whole numbers tie
    repeated = rng.random() < 0.3  # equal tables, as equal layers have

    def costs(size, largest):
        if repeated:
            source = random.Random(size + 7 * rng.randrange(2))
        else:
            source = rng
        values = [source.uniform(0, largest) for _ in range(size)]
        return [float(round(x)) if whole else x for x in values]

    choices = [rng.randint(1, 5) for _ in range(n)]
    problem.nodes = [costs(size, 10) for size in choices]
    edges = edges_of(kind, n, rng)
    if edges and rng.random() < 0.3:
        edges.append(rng.choice(edges)[::-1])  # a parallel one, the other way round
    for nodes in edges:
        table = costs(choices[nodes[0]] * choices[nodes[1]], 10)
        if rng.random() < 0.1:
            table = [math.inf if rng.random() < 0.2 else x for x in table]
        problem.factors.append((nodes, table))
    if n >= 3 and rng.random() < 0.3:
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(n - 2)
            nodes = tuple(rng.sample(range(at, at + 3), 3))
            problem.factors.append((nodes, costs(math.prod(choices[v] for v in nodes), 5)))
    if rng.random() < 0.1:
        problem.nodes = [[x - 5 for x in table] for table in problem.nodes]  # negative costs
    add_rows(problem, rng)
    return problem


def add_rows(problem, rng):
    count = rng.choice([0, 1, 1, 2, 3, 5])
    plain = rng.random() < 0.5
    for _ in range(count):
        row = {"constant": 0 if plain else rng.randint(0, 20), "nodes": {}, "factors": {}}
        for v, costs in enumerate(problem.nodes):
            if plain or rng.random() < 0.8:
                row["nodes"][v] = [rng.randint(0, 30) for _ in costs]
        for f, (_, costs) in enumerate(problem.factors):
            if not plain and rng.random() < 0.3:
                row["factors"][f] = [rng.randint(0, 10) for _ in costs]
        tables = [*row["nodes"].values(), *row["factors"].values()]
        least = row["constant"] + sum(map(min, tables))
        most = row["constant"] + sum(map(max, tables))
        # Sometimes below what is possible, sometimes without effect.
        row["limit"] = round(least + (most - least) * rng.choice([-0.05, 0.15, 0.3, 0.45, 0.6, 1, 1]))
        problem.rows.append(row)

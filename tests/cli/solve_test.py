"""`shardplan solve`: what it prints, whose limits it uses, and what it refuses."""

import gzip
import json
import time
import unittest

from program import CommandLineTest

# Two nodes that want to differ from their neighbour's cheap choice; 5 to 9 bytes.
PROBLEM = {
    "name": "two",
    "unit": "s",
    "cases": [{"memory_limit": None, "optimum": 3.0}, {"memory_limit": 6}, {"memory_limit": 4}],
    "nodes": [
        {"name": "a", "cost": [1.0, 2.2], "memory": [5, 3]},
        {"cost": [1.0, 5.0, 2.5], "memory": [4, 3, 2]},
    ],
    "edges": [
        {"from": 0, "to": 1, "cost": [[1, 0, 0], [0, 0, 0.25]]},
        {"from": 1, "to": 0, "cost": [[0, 0.5], [0, 0], [0, 0]]},
    ],
}
KEYS = ["status", "objective", "lower_bound", "gap", "seconds", "memory", "choices"]


class SolveTest(CommandLineTest):
    def write(self, problem, name="problem.json"):
        (self.folder / name).write_text(json.dumps(problem))
        return name

    def test_prints_the_answer(self):
        answer = self.succeed_json("solve", self.write(PROBLEM))
        self.assertEqual(list(answer)[: len(KEYS)], KEYS)
        self.assertEqual(answer["status"], "optimal")
        self.assertEqual(answer["objective"], 3.0)
        self.assertEqual(answer["lower_bound"], 3.0)
        self.assertEqual(answer["gap"], 0)
        self.assertEqual(answer["memory"], 9)
        self.assertEqual(answer["choices"], [0, 0])
        self.assertEqual(answer["rows"][0]["limit"], None)

    def test_limits(self):
        name = self.write(PROBLEM)
        for words, choices, memory in (
            (["--case", "0"], [0, 0], 9),
            (["--case", "1"], [1, 2], 5),
            (["--memory-limit", "7"], [0, 2], 7),
            (["--case", "1", "--memory-limit", "1KiB"], [0, 0], 9),
        ):
            for solver in ("exact", "milp", "beam", "local"):
                answer = self.succeed_json("solve", name, "--solver", solver, *words)
                self.assertEqual((answer["choices"], answer["memory"]), (choices, memory))
        self.reject(["solve", name, "--case", "2"], 1, "no assignment meets the limits", "memory")
        done = self.run_program("solve", name, "--case", "2", "--json")
        self.assertEqual(done.returncode, 1)
        answer = json.loads(done.stdout)
        self.assertEqual((answer["status"], answer["objective"]), ("infeasible", None))
        self.assertEqual(answer["choices"], [])

    def test_gzip_by_content(self):
        (self.folder / "plain").write_bytes(gzip.compress(json.dumps(PROBLEM).encode()))
        self.assertEqual(self.succeed_json("solve", "plain")["objective"], 3.0)

    def test_own_form_with_several_rows(self):
        problem = {
            "format": "shardplan.strategy_graph",
            "version": 1,
            "tables": [[0, 1], [3, 0], [1, 1, 1, 8]],
            "nodes": [{"name": "x", "cost": 0, "strategies": ["cut", "whole"]}, {"cost": 0}],
            "factors": [{"nodes": [0, 1], "cost": [2, 0, 0, "inf"]}],
            "rows": [
                {"name": "start", "limit": 3, "constant": 0, "nodes": [[0, 1], [1, 1]]},
                {"name": "end", "limit": 10, "constant": 0, "factors": [[0, 2]]},
            ],
        }
        answer = self.succeed_json("solve", self.write(problem))
        self.assertEqual(answer["objective"], 1)
        self.assertEqual([row["memory"] for row in answer["rows"]], [3, 1])
        self.assertEqual(answer["memory"], 3)
        text = self.succeed("solve", "problem.json")
        self.assertIn("start", text)
        self.assertIn("2 memory rows", text)

    def test_wrong_use(self):
        name = self.write(PROBLEM)
        self.reject(["solve"], 2, "needs a FILE")
        self.reject(["solve", "none.json"], 2, "none.json")
        self.reject(["solve", name, "--solver", "exakt"], 2, "did you mean 'exact'?")
        self.reject(["solve", name, "--case", "3"], 2, "cases 0 to 2")
        self.reject(["solve", name, "--case", "-1"], 2, "--case")
        self.reject(["solve", name, "--memory-limit", "lots"], 2, "--memory-limit", "lots")
        self.reject(["solve", name, "--gap", "-1"], 2, "--gap")
        self.reject(["solve", name, "--time-limit", "nan"], 2, "--time-limit")
        self.reject(["solve", name, "--seed", "x"], 2, "--seed")
        free = [{"cost": node["cost"]} for node in PROBLEM["nodes"]]
        self.write({"nodes": free, "edges": PROBLEM["edges"]}, "free.json")
        self.reject(["solve", "free.json", "--memory-limit", "7"], 2, "no memory rows")
        self.reject(["solve", "free.json", "--case", "0"], 2, "no cases")

    def test_damaged_files(self):
        for content, part in (
            (b"", "ends"),
            (b"[]", "expected an object"),
            (b'{"format": "shardplan.plan"}', "shardplan.plan"),
            (gzip.compress(b"{}" * 1000)[:20], "truncated"),
            (b'{"nodes": [{"cost": [NaN]}]}', "nodes / 0 / cost / 0"),
        ):
            (self.folder / "bad.json").write_bytes(content)
            self.reject(["solve", "bad.json"], 2, "bad.json", part)

    def grid(self):
        """A problem that no solver closes in a moment."""
        side = 14
        cost = [[(v * 37 + c * 101 + 13 * c * v) % 89 for c in range(4)] for v in range(side * side)]
        nodes = [
            {"cost": costs, "memory": [(c * 53 + v * 29 + 7 * c * v) % 97 for c in range(4)]}
            for v, costs in enumerate(cost)
        ]
        edges = []
        for v in range(side * side):
            for other in ([v + 1] if (v + 1) % side else []) + [v + side]:
                if other < side * side:
                    table = [
                        [(a * 31 + b * 17 + a * b * v + other) % 41 for b in range(4)]
                        for a in range(4)
                    ]
                    edges.append({"from": v, "to": other, "cost": table})
        limit = 30 * side * side
        return self.write(
            {"nodes": nodes, "edges": edges, "cases": [{"memory_limit": limit}]}, "grid.json"
        )

    def test_time_limit(self):
        name = self.grid()
        for solver in ("exact", "milp", "beam", "local"):
            start = time.monotonic()
            done = self.run_program(
                "solve", name, "--solver", solver, "--case", "0", "--gap", "0",
                "--time-limit", "0.5", "--json",
            )
            self.assertLess(time.monotonic() - start, 10, solver)
            self.assertIn(done.returncode, (0, 1), solver)
            answer = json.loads(done.stdout)
            self.assertNotEqual(answer["status"], "infeasible")
            if answer["objective"] is not None and answer["lower_bound"] is not None:
                self.assertLessEqual(answer["lower_bound"], answer["objective"])

    def test_interrupt_gives_the_best_so_far(self):
        name = self.grid()
        _, output = self.interrupt(
            "solve", name, "--solver", "local", "--case", "0", "--gap", "0", "--json",
            "--time-limit", "60",
        )
        answer = json.loads(output)
        self.assertEqual(answer["status"], "feasible")
        self.assertIn(answer["stopped_by"], ("interrupted", "none"))

    def test_lists_solvers(self):
        names = [solver["name"] for solver in self.succeed_json("solvers")]
        self.assertEqual(names, ["exact", "milp", "beam", "local"])
        self.assertIn("exact", self.succeed("solvers"))


if __name__ == "__main__":
    unittest.main()

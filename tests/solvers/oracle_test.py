"""Random problems solved by `shardplan solve` with every solver, and by HiGHS.

An exact solver has to find the optimum to 1e-6 and to agree on what is infeasible; every bound has to
be at most the optimum, every answer to be what it says. SHARDPLAN_ORACLE_CASES sets the number of
problems (200), SHARDPLAN_ORACLE_SEED the first seed (0), SHARDPLAN_ORACLE_SOLVERS which ("exact,milp",
default all). Failures print the seed and keep the file.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import oracle
import problems

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = os.environ.get("SHARDPLAN", str(ROOT / "build" / "shardplan"))
CASES = int(os.environ.get("SHARDPLAN_ORACLE_CASES", "200"))
SEED = int(os.environ.get("SHARDPLAN_ORACLE_SEED", "0"))
EXACT = ("exact", "milp")  # the others may miss the optimum


def solver_names():
    asked = os.environ.get("SHARDPLAN_ORACLE_SOLVERS")
    if asked:
        return asked.split(",")
    listed = subprocess.run(
        [PROGRAM, "solvers", "--json"], capture_output=True, text=True, check=True
    )
    return [solver["name"] for solver in json.loads(listed.stdout)]


class OracleTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="shardplan_oracle_")
        self.addCleanup(holder.cleanup)
        self.path = pathlib.Path(holder.name) / "problem.json"

    def solve(self, solver, words):
        done = subprocess.run(
            [PROGRAM, "solve", self.path, "--solver", solver, "--gap", "1e-9", "--json", *words],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return json.loads(done.stdout)

    def compare(self, solver, problem, answer, status, best):
        """What the answer says against the truth; returns how far it is above the optimum."""
        if answer["choices"]:
            self.assertTrue(problem.feasible(answer["choices"]), "the answer is not feasible")
            self.assertEqual(problem.cost(answer["choices"]), answer["objective"])
            self.assertEqual(len(answer["choices"]), len(problem.nodes))
            if problem.rows:
                used = [problem.memory(row, answer["choices"]) for row in problem.rows]
                self.assertEqual(answer["memory"], max(used))
        if status == "infeasible":
            self.assertFalse(answer["choices"])
            if solver in EXACT:
                self.assertEqual(answer["status"], "infeasible")
            return None
        slack = 1e-6 * max(1, abs(best))
        self.assertNotEqual(answer["status"], "infeasible")
        if answer["lower_bound"] is not None:
            self.assertLessEqual(answer["lower_bound"], best + 1e-9 * max(1, abs(best)))
        if solver in EXACT or answer["status"] == "optimal":
            self.assertEqual(answer["status"], "optimal")
            self.assertLessEqual(abs(answer["objective"] - best), slack)
        if answer["objective"] is None:
            return None
        self.assertGreaterEqual(answer["objective"], best - slack)
        return (answer["objective"] - best) / max(1e-9, abs(best))

    def check(self, seed, solvers, counts):
        rng = random.Random(seed)
        problem = problems.random_problem(rng)
        status, choice = oracle.optimum(problem)
        if status == "unknown":
            counts["no oracle"] += 1
            return
        counts[status] += 1
        best = None
        if status == "optimal":
            self.assertTrue(problem.feasible(choice), "the oracle's choice is not feasible")
            best = problem.cost(choice)
        words = problem.write(self.path, rng)
        for solver in solvers:
            start = time.monotonic()
            answer = self.solve(solver, words)
            counts[f"{solver} seconds"] += time.monotonic() - start
            above = self.compare(solver, problem, answer, status, best)
            if above is not None and above < 1e-6:
                counts[f"{solver} at the optimum"] += 1
            if answer["status"] in ("optimal", "infeasible"):
                counts[f"{solver} proven"] += 1

    def test_random_problems(self):
        solvers = solver_names()
        counts = {"optimal": 0, "infeasible": 0, "no oracle": 0}
        for solver in solvers:
            for what in ("at the optimum", "proven", "seconds"):
                counts[f"{solver} {what}"] = 0
        print(f"seeds {SEED} to {SEED + CASES - 1}, solvers {', '.join(solvers)}")
        for seed in range(SEED, SEED + CASES):
            try:
                self.check(seed, solvers, counts)
            except (AssertionError, subprocess.SubprocessError) as failure:
                kept = pathlib.Path(tempfile.mkdtemp(prefix="shardplan_oracle_")) / self.path.name
                if self.path.exists():
                    shutil.copy(self.path, kept)
                raise AssertionError(f"seed {seed}, {kept}: {failure}") from failure
        for what, count in counts.items():
            print(f"  {what}: {count:.4g}")
        self.assertLess(counts["no oracle"], CASES / 50 + 1)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    unittest.main()

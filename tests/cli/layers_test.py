"""`shardplan solve` on layer graphs: what it prints, and what it refuses."""

import json
import os
import pathlib
import unittest

from program import ROOT, CommandLineTest

BRANCHES = ROOT / "tests" / "problem" / "branches.json"
WORKLOADS = pathlib.Path(os.environ.get("SHARDPLAN_WORKLOADS", ROOT / ".." / "shared" / "workloads"))
PLANNERS = (
    "piper",
    "gpipe",
    "torchgpipe",
    "dnn_partitioning_dp",
    "dnn_partitioning_linear",
    "dnn_partitioning_ip",
)


class LayersTest(CommandLineTest):
    def write(self, graph, name="graph.json"):
        (self.folder / name).write_text(json.dumps(graph))
        return name

    def branches(self):
        return json.loads(BRANCHES.read_text())

    def test_answer(self):
        layers = sorted(layer["id"] for layer in self.branches()["layers"])
        for planner in PLANNERS:
            answer = self.succeed_json("solve", BRANCHES, "--planner", planner, "--devices", 3)
            self.assertEqual(answer["planner"], planner)
            self.assertEqual(answer["unit"], "s")
            self.assertGreater(answer["objective"], 0)
            self.assertGreaterEqual(answer["objective"], (answer["lower_bound"] or 0) * (1 - 1e-9))
            self.assertGreaterEqual(answer["seconds"], 0)
            found = sorted(layer for stage in answer["stages"] for layer in stage["layers"])
            self.assertEqual(found, layers)
            self.assertEqual(max(stage["time"] for stage in answer["stages"]), answer["objective"])
            table = self.succeed("solve", BRANCHES, "--planner", planner, "--devices", 3)
            self.assertIn(planner, table)

    def test_machines(self):
        small = ["solve", BRANCHES, "--planner", "piper", "--devices", 2]
        tight = self.succeed_json(*small, "--memory", "400MB", "--microbatches", 4)
        wide = self.succeed_json(*small, "--memory", "10GB", "--microbatches", 4)
        self.assertGreater(tight["objective"], wide["objective"])
        self.assertEqual(wide["microbatches"], 4)
        done = self.run_program(*map(str, small), "--memory", "1MB", "--json")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(json.loads(done.stdout)["status"], "infeasible")
        self.assertIn("KiB", done.stderr)

    def test_lists(self):
        listed = {entry["name"]: entry for entry in self.succeed_json("planners")}
        for planner in PLANNERS:
            self.assertEqual(listed[planner]["takes"], "layer graph")
            self.assertTrue(listed[planner]["cannot"])
        self.assertEqual(listed["piper"]["options"][0]["values"], ["exact", "greedy"])

    def test_refusals(self):
        solve = ["solve", BRANCHES]
        self.reject(solve, 2, "--planner")
        self.reject([*solve, "--planner", "pipe"], 2, "did you mean 'piper'")
        piper = [*solve, "--planner", "piper"]
        self.reject([*piper, "--devices", "0"], 2, "--devices")
        self.reject([*piper, "--bandwidth", "0"], 2, "--bandwidth")
        self.reject([*piper, "--option", "inner"], 2, "NAME=VALUE")
        self.reject([*piper, "--option", "inner=best"], 2, "exact or greedy")
        self.reject([*piper, "--hierarchy", "2by2"], 2, "4x4")
        self.reject([*piper, "--hierarchy", "2x2", "--devices", "5"], 2, "4 devices together")
        self.reject(
            [*piper, "--hierarchy", "2x2", "--bandwidths", "1e9,1e8"], 2, "piper", "no hierarchy"
        )
        self.reject([*piper, "--hierarchy", "2x2", "--bandwidths", "1e9"], 2, "1 bandwidths for 2")
        self.reject([*piper, "--case", "0"], 2, "no cases")
        self.reject([*solve, "--planner", "gpipe", "--devices", "7"], 2, "6 layers", "7 devices")
        self.reject([*piper, "--microbatches", "0"], 2, "--microbatches")
        self.reject([*piper, "--hierarchy", "2x2", "--bandwidths", "1e9,0"], 2, "--bandwidths", "'0'")
        for planner in self.succeed_json("planners"):
            if planner["takes"] != "layer graph":
                continue
            words = [*solve, "--planner", planner["name"], "--devices", "2", "--microbatches", "8"]
            words += ["--time-limit", "2", "--bandwidth", "1e9", "--memory", "1KB"]
            done = self.run_program(*words)
            if "memory" in planner["cannot"]:
                self.assertIn("does not handle", done.stdout)
                continue
            self.assertEqual(done.returncode, 1, planner["name"])
            self.assertIn(f"{planner['name']} found no plan: ", done.stderr)
            self.assertEqual(done.stderr.count(planner["name"]), 1)
        name = self.write({"nodes": [{"cost": [1]}], "edges": []})
        self.reject(["solve", name, "--planner", "piper"], 2, "strategy graph")

    def test_bad_graphs(self):
        graph = self.branches()
        graph["edges"].append({"source": "head", "target": "embed"})
        self.reject(["solve", self.write(graph), "--planner", "gpipe"], 2, "circle", "'head'")
        graph = self.branches()
        graph["layers"][2]["choices"][0]["time"] = -1
        self.reject(["solve", self.write(graph), "--planner", "gpipe"], 2, "layers / 2", "-1")
        graph = self.branches()
        del graph["time_unit"]
        self.reject(["solve", self.write(graph), "--planner", "gpipe"], 2, "time_unit")
        graph = self.branches()
        graph["layers"] = []
        graph["edges"] = []
        self.reject(["solve", self.write(graph), "--planner", "gpipe"], 2, "no layers")

    def placed(self):
        """A chain of three on accelerators that hold two of them, and CPUs a third as fast."""
        return {
            "format": "shardplan.layer_graph",
            "version": 1,
            "time_unit": "ms",
            "machines": {"devices": 1, "cpus": 4, "memory_bytes": 2},
            "layers": [
                {
                    "id": name,
                    "choices": [{"time": 1, "constant_bytes": 1}],
                    "placement": {"cpu_time": 3},
                }
                for name in "abc"
            ],
            "edges": [
                {"source": source, "target": target, "transfer_time": 0.5}
                for source, target in ("ab", "bc")
            ],
        }

    def test_latency(self):
        words = ["solve", self.write(self.placed()), "--planner", "dnn_partitioning_latency"]
        answer = self.succeed_json(*words)
        self.assertEqual((answer["objective"], answer["objective_of"]), (5.5, "of latency"))
        self.assertEqual(answer["status"], "optimal")
        self.assertEqual([stage.get("on_cpu", False) for stage in answer["stages"]].count(True), 1)
        self.assertEqual(self.succeed_json(*words, "--devices", 2)["objective"], 4)
        self.reject([*words, "--option", "subgraphs=0"], 2, "dnn_partitioning_latency", "subgraphs")
        graph = self.placed()
        graph["layers"][2]["placement"]["backward"] = True
        words[1] = self.write(graph)
        self.reject(words, 2, "inference", "'c'", "backward pass")
        graph = self.placed()
        graph["machines"]["cpus"] = 0
        words[1] = self.write(graph)
        self.reject(words, 1, "nothing fits", "no CPUs")

    @unittest.skipUnless(WORKLOADS.exists(), "no published inputs (SHARDPLAN_WORKLOADS)")
    def test_published(self):
        for words, objective, unit in (
            (
                ["piper/bert32a100.json", "piper", "--devices", 8, "--memory", "8GiB"]
                + ["--bandwidth", "25GiB", "--microbatches", 1920],
                0.16585575,
                "s",
            ),
            (["piper/resnet.json", "gpipe", "--devices", 16], 31.666, "ms"),
            (["piper/resnet.json", "torchgpipe", "--devices", 16], 42.169, "ms"),
            (
                ["dnn-partitioning/throughput/LayerGraphs/bert24_training.json", "dnn_partitioning_dp"],
                41.7458125,
                "ms",
            ),
        ):
            file, planner, *more = words
            answer = self.succeed_json("solve", WORKLOADS / file, "--planner", planner, *more)
            self.assertEqual(answer["unit"], unit)
            self.assertAlmostEqual(answer["objective"] / objective, 1, delta=1e-5)
        training = WORKLOADS / "dnn-partitioning/throughput/LayerGraphs/bert24_training.json"
        for planner in ("piper", "gpipe"):
            words = ["solve", training, "--planner", planner, "--bandwidth", "1e9"]
            self.reject([*words, "--microbatches", "8"], 2, planner, "backward pass")


if __name__ == "__main__":
    unittest.main()

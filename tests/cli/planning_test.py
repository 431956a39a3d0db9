"""profile, plan, compare, explain, simulate: results, fields, files."""

import json
import unittest

from program import MLP, CommandLineTest

PLAN_FIELDS = [
    "planner",
    "step_seconds",
    "additive_seconds",
    "lower_bound_seconds",
    "gap",
    "peak_bytes",
    "search_seconds",
]


class ProfileTest(CommandLineTest):
    def test_fields_of_a_model_that_can_be_counted_by_hand(self):
        profile = self.succeed_json("profile", MLP)
        for field in (
            "parameters",
            "parameter_bytes",
            "forward_flops",
            "backward_flops",
            "saved_activation_bytes",
            "peak_bytes",
            "seconds",
        ):
            self.assertGreater(profile[field], 0, field)
        self.assertEqual(profile["parameter_bytes"], 4 * profile["parameters"])
        self.assertEqual(
            sum(layer["parameters"] for layer in profile["layers"]), profile["parameters"]
        )

    def test_gpt2_small_has_its_known_size(self):
        model = "gpt:layers=12,hidden=768,heads=12,seq=1024,batch=1,vocab=50257"
        profile = self.succeed_json("profile", model)
        self.assertAlmostEqual(profile["parameters"] / 124.4e6, 1, delta=0.01)

    def test_counts_beyond_64_bits_are_not_cut(self):
        seq, hidden = 99_999_999, 768
        profile = self.succeed_json("profile", f"gpt:layers=1,seq={seq},batch=1")
        self.assertGreater(profile["forward_flops"], 2 * 2 * seq * seq * hidden)
        self.assertGreater(profile["backward_flops"], profile["forward_flops"])

    def test_precision_halves_the_weights(self):
        full = self.succeed_json("profile", MLP, "--precision", "fp32")
        half = self.succeed_json("profile", MLP, "--precision", "bf16")
        self.assertEqual(full["parameter_bytes"], 2 * half["parameter_bytes"])

    def test_table(self):
        text = self.succeed("profile", MLP)
        for word in ("forward", "backward", "saved", "peak", "parameters"):
            self.assertIn(word, text)


class PlanTest(CommandLineTest):
    def test_fields_and_file(self):
        plan = self.succeed_json("plan", MLP, "--cluster", "local:2", "-o", "plan.json")
        for field in PLAN_FIELDS:
            self.assertIn(field, plan)
        self.assertEqual(plan["planner"], "map")
        self.assertGreater(plan["step_seconds"], 0)
        self.assertLessEqual(
            plan["lower_bound_seconds"], plan["additive_seconds"] * (1 + 1e-9)
        )
        self.assertEqual(self.files(), ["plan.json"])
        json.loads((self.folder / "plan.json").read_text())

    def test_only_a_proven_bound_gives_a_gap(self):
        proven = self.succeed_json("plan", MLP, "--cluster", "local:2")
        self.assertGreaterEqual(proven["gap"], 0)
        self.assertGreater(proven["lower_bound_seconds"], 0)
        unproven = self.succeed_json("plan", MLP, "--cluster", "local:2", "--planner", "dp")
        self.assertIsNone(unproven["gap"])

    def test_without_a_file_nothing_is_written(self):
        text = self.succeed("plan", MLP, "--cluster", "local:2")
        self.assertEqual(self.files(), [])
        for word in ("model", "cluster", "mesh", "step", "memory", "-o plan.json"):
            self.assertIn(word, text)

    def test_same_question_same_plan(self):
        def stable(name):
            plan = json.loads(self.make_plan(name).read_text())
            plan.get("prediction", {}).pop("search_seconds", None)
            return plan

        self.assertEqual(stable("a.json"), stable("b.json"))

    def test_given_mesh_is_used(self):
        plan = self.succeed_json(
            "plan", MLP, "--cluster", "local:4", "--mesh", "data=2,tensor=2"
        )
        self.assertEqual(plan["mesh"], {"data": 2, "tensor": 2})

    def test_any_shape_of_mesh_is_taken(self):
        model = "gpt:layers=1,hidden=96,heads=12,seq=16,batch=12,vocab=48"
        for cluster, mesh in (
            ("local:1", ""),
            ("local:3", "x=3"),
            ("local:6", "x=3,y=2"),
            ("local:6", "x=2,y=3"),
            ("8xA100-80GB", "x=8"),  # of which 12 heads are no multiple
            ("8xA100-80GB", "x=2,y=2,z=2"),
            ("dgx-a100:2", "w=2,x=2,y=2,z=2"),
        ):
            words = ["--mesh", mesh] if mesh else []
            plan = self.succeed_json("plan", model, "--cluster", cluster, *words)
            sizes = dict(axis.split("=") for axis in mesh.split(",")) if mesh else {}
            self.assertEqual(plan["mesh"], {name: int(size) for name, size in sizes.items()})

    def test_every_expert_plans(self):
        for planner in ("dp", "zero1", "zero2", "zero3", "megatron"):
            plan = self.succeed_json("plan", MLP, "--cluster", "local:2", "--planner", planner)
            self.assertEqual(plan["planner"], planner)

    def test_infeasible_tells_the_least_memory(self):
        done = self.reject(
            ["plan", MLP, "--cluster", "local:2", "--memory", "1KiB", "-o", "plan.json"],
            1,
            "1.00 KiB",
            "the smallest needs",
        )
        self.assertEqual(done.stdout, "")
        self.assertEqual(self.files(), [])


class InterruptTest(CommandLineTest):
    def test_interrupt_ends_a_search_with_the_best_plan_so_far(self):
        limit = 14 * 2**30
        words = ["plan", "llama2-7b", "--cluster", "8xA100-80GB", "--precision", "bf16", "--json"]
        code, output = self.interrupt(*words, "--memory", limit, after=3)
        self.assertEqual(code, 0)
        plan = json.loads(output)
        self.assertLessEqual(plan["peak_bytes"], limit)
        self.assertIn(plan["stopped_by"], ("interrupted", "none"))


class CompareTest(CommandLineTest):
    def test_plans_by_planner(self):
        compared = self.succeed_json(
            "compare", MLP, "--cluster", "local:2", "--planners", "dp,zero3,map"
        )
        self.assertEqual([plan["planner"] for plan in compared["plans"]], ["dp", "zero3", "map"])
        for plan in compared["plans"]:
            for field in PLAN_FIELDS:
                self.assertIn(field, plan)
        times = {plan["planner"]: plan["step_seconds"] for plan in compared["plans"]}
        self.assertLessEqual(times["map"], min(times.values()) * (1 + 1e-9))

    def test_table_of_all(self):
        text = self.succeed("compare", MLP, "--cluster", "local:2")
        for planner in self.succeed_json("planners"):
            if planner["takes"] == "model":
                self.assertIn(planner["name"], text)

    def test_published_planners_of_pipelines(self):
        gpt = "gpt:layers=4,hidden=64,heads=4,seq=32,batch=8,vocab=128"
        words = ("compare", gpt, "--microbatches", "4", "--planners", "gpipe,piper,pipedream,dp")
        text = self.succeed(*words, "--cluster", "local:4")
        rows = {line.split()[0]: line for line in text.splitlines() if line}
        self.assertIn("4 stages, gpipe", rows["gpipe"])
        for planner in ("gpipe", "piper", "pipedream"):
            self.assertIn("fits", rows[planner])
        text = self.succeed(*words, "--cluster", "local:1")
        self.assertIn("gpipe: one device has no stages", text)
        self.assertIn("piper: one device has no stages", text)

    def test_none_fits(self):
        done = self.run_program(
            "compare", MLP, "--cluster", "local:2", "--planners", "dp,zero1", "--memory", "1KiB"
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: no planner fits", done.stderr)


class ExplainTest(CommandLineTest):
    def test_layers(self):
        self.make_plan()
        explained = self.succeed_json("explain", "plan.json")
        self.assertGreater(len(explained["layers"]), 0)
        for layer in explained["layers"]:
            for field in ("layer", "choice", "compute_seconds", "communication_seconds"):
                self.assertIn(field, layer)
        self.assertIn("next best", self.succeed("explain", "plan.json"))

    def test_program(self):
        self.make_plan()
        self.assertGreater(len(self.succeed("explain", "plan.json", "--program")), 100)


class SimulateTest(CommandLineTest):
    def test_agrees_with_the_plan(self):
        plan = self.succeed_json("plan", MLP, "--cluster", "local:2", "-o", "plan.json")
        simulated = self.succeed_json("simulate", "plan.json")
        self.assertEqual(simulated["peak_bytes"], [plan["peak_bytes"]] * 2)
        self.assertAlmostEqual(
            simulated["step_seconds"] / plan["step_seconds"], 1, delta=1e-9
        )

    def test_trace_opens_as_json(self):
        self.make_plan()
        text = self.succeed("simulate", "plan.json", "--trace", "trace.json")
        self.assertIn("trace.json", text)
        trace = json.loads((self.folder / "trace.json").read_text())
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        self.assertTrue(any(event.get("ph") == "X" for event in events))

    def test_trace_of_a_pipeline(self):
        gpt = "gpt:layers=4,hidden=64,heads=4,seq=32,batch=8,vocab=128"
        words = ("--planner", "gpipe", "--microbatches", "4")
        plan = self.succeed_json("plan", gpt, "--cluster", "local:4", "-o", "plan.json", *words)
        self.succeed("simulate", "plan.json", "--trace", "trace.json")
        events = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
        tasks = [e for e in events if e.get("cat") in ("forward", "backward", "update")]
        self.assertEqual(len(tasks), 4 * (4 + 4 + 1))
        self.assertEqual({e["pid"] for e in tasks}, {0, 1, 2, 3})
        end = max(e["ts"] + e["dur"] for e in tasks) / 1e6
        self.assertAlmostEqual(end / plan["step_seconds"], 1, delta=1e-9)


if __name__ == "__main__":
    unittest.main()

"""check-plan: good plans of several models, limits and planners hold; whatever is changed is named."""

import json
import unittest

from program import MLP, CommandLineTest

GPT = "gpt:layers=3,hidden=64,heads=4,seq=32,batch=8,vocab=128"
LLAMA = "llama:layers=2,hidden=64,ffn=128,heads=4,kv_heads=2,seq=32,batch=8,vocab=128"
# Activations take most of the memory, so that tight limits need recomputation.
LONG_GPT = "gpt:layers=3,hidden=64,heads=4,seq=128,batch=16,vocab=128"
LONG_LLAMA = "llama:layers=3,hidden=64,ffn=128,heads=4,kv_heads=2,seq=128,batch=16,vocab=128"


class GoodPlansTest(CommandLineTest):
    def check(self, model, cluster, *words):
        plan = self.succeed_json("plan", model, "--cluster", cluster, "-o", "plan.json", *words)
        checked = self.succeed_json("check-plan", "plan.json")
        self.assertIs(checked["ok"], True)
        self.assertTrue(all(claim["holds"] for claim in checked["claims"]))
        self.assertEqual(checked["peak_bytes"], plan["peak_bytes"])
        self.assertLessEqual(checked["peak_bytes"], checked["memory_limit"])
        self.assertAlmostEqual(
            checked["additive_seconds"] / plan["additive_seconds"], 1, delta=1e-9
        )
        return plan

    def test_stages_that_share_a_weight_in_bf16(self):
        model = "gpt:layers=2,hidden=64,heads=4,seq=16,batch=8,vocab=64"
        words = ["--cluster", "local:2", "--planner", "gpipe", "--microbatches", "2"]
        self.succeed("plan", model, *words, "--precision", "bf16", "-o", "plan.json")
        self.assertIn("as the plan says", self.succeed("check-plan", "plan.json"))

    def test_models_and_clusters(self):
        for model in (MLP, GPT, LLAMA):
            for cluster in ("local:1", "local:4", "8xA100-80GB", "pairs8", "dgx-a100:2"):
                self.check(model, cluster)

    def test_limits_with_recomputation(self):
        recomputed = 0
        for model in (LONG_GPT, LONG_LLAMA):
            peak = self.check(model, "local:2")["peak_bytes"]
            for part in (0.9, 0.75, 0.6):
                limit = int(part * peak)
                plan = self.check(model, "local:2", "--memory", limit)
                self.assertLessEqual(plan["peak_bytes"], limit)
                recomputed += len(plan["recompute"])
        self.assertGreater(recomputed, 0)

    def test_recipes_and_planners(self):
        for words in (
            ("--microbatches", "4"),
            ("--precision", "bf16", "--clip-norm", "1"),
            ("--optimizer", "sgd:lr=0.1"),
        ):
            self.check(GPT, "8xA100-80GB", *words)
        for planner in ("dp", "zero1", "zero3", "megatron"):
            self.check(LLAMA, "local:4", "--planner", planner)

    def test_table(self):
        self.make_plan("plan.json", GPT, "8xA100-80GB")
        text = self.succeed("check-plan", "plan.json")
        for word in ("objective", "as the plan says", "peak", "limit", "bound"):
            self.assertIn(word, text)


class PipelinesTest(CommandLineTest):
    def make(self, model, cluster, planner, *words):
        words = ("--planner", planner, "--microbatches", "4", *words)
        return self.succeed_json("plan", model, "--cluster", cluster, "-o", "plan.json", *words)

    def test_good_plans(self):
        for model, cluster, planner in (
            (GPT, "local:2", "gpipe"),
            (LLAMA, "8xA100-80GB", "dapple"),
            (MLP, "local:2", "shardplan"),
            (GPT, "8xA100-80GB", "pipedream"),
        ):
            plan = self.make(model, cluster, planner)
            checked = self.succeed_json("check-plan", "plan.json")
            self.assertIs(checked["ok"], True)
            self.assertEqual(checked["peak_bytes"], plan["peak_bytes"])
            saved = json.loads((self.folder / "plan.json").read_text())
            if "pipeline" in saved:
                groups = saved["pipeline"]["groups"]
                self.assertEqual(len(checked["group_peak_bytes"]), groups)
                self.assertEqual(max(checked["group_peak_bytes"]), plan["peak_bytes"])
                self.assertLessEqual(
                    checked["least_step_seconds"], plan["step_seconds"] * (1 + 1e-9)
                )
        text = self.succeed("check-plan", "plan.json")
        for word in ("as the plan says", "chain of tasks", "passes, each once", "peak", "group"):
            self.assertIn(word, text)

    def reject_claim(self, plan, *parts):
        (self.folder / "changed.json").write_text(json.dumps(plan))
        self.reject(["check-plan", "changed.json"], 1, "changed.json", "does not hold", *parts)

    def test_edited_plans(self):
        self.make(GPT, "local:2", "gpipe")
        plan = json.loads((self.folder / "plan.json").read_text())
        saved = dict(plan["prediction"])
        for field, value in (
            ("step_seconds", saved["step_seconds"] * 1.001),
            ("additive_seconds", saved["step_seconds"] * 2),
            ("peak_bytes", saved["peak_bytes"] - 1),
            ("memory_limit", saved["peak_bytes"] - 1),
            ("objective_seconds", saved["additive_seconds"] * 1.01),
        ):
            plan["prediction"] = {**saved, field: value}
            self.reject_claim(plan, f"{field} does not hold")
        plan["prediction"] = saved
        plan["pipeline"]["schedule"] = "1f1b"
        self.reject_claim(plan, "peak_bytes does not hold")
        plan["pipeline"]["schedule"] = "gpipe"
        plan["pipeline"]["stages"][0]["recompute"] = ["transformer.h.0"]
        self.reject_claim(plan, "step_seconds does not hold")


class ChangedPlansTest(CommandLineTest):
    def setUp(self):
        super().setUp()
        free = self.succeed_json("plan", LONG_GPT, "--cluster", "local:2")
        limit = int(0.6 * free["peak_bytes"])
        self.plan = json.loads(
            self.make_plan("plan.json", LONG_GPT, "local:2", "--memory", limit).read_text()
        )

    def changed(self, name="changed.json"):
        (self.folder / name).write_text(json.dumps(self.plan))
        return name

    def reject_claim(self, *parts):
        name = self.changed()
        done = self.reject(["check-plan", name], 1, name, "does not hold", *parts)
        self.assertEqual(done.stdout, "")

    def test_edited_numbers(self):
        saved = dict(self.plan["prediction"])
        for field, value in (
            ("additive_seconds", saved["additive_seconds"] * 1.0001),
            ("additive_seconds", None),
            ("step_seconds", saved["additive_seconds"] * 2),
            ("step_seconds", saved["step_seconds"] / 100),
            ("peak_bytes", saved["peak_bytes"] - 1),
            ("memory_limit", saved["peak_bytes"] - 1),
            ("objective_seconds", saved["additive_seconds"] * 1.01),
            ("lower_bound_seconds", saved["objective_seconds"] * 1.01),
            ("gap", saved["gap"] + 0.001),
            ("step_lower_bound_seconds", saved["step_seconds"] * 1.01),
        ):
            self.plan["prediction"] = {**saved, field: value}
            self.reject_claim(f"{field} does not hold")

    def test_binding_moment_above_the_limit(self):
        limit = self.plan["prediction"]["memory_limit"]
        row = {"where": "somewhere", "bytes": limit + 1, "seconds_per_gib": 1.0}
        self.plan["prediction"]["binding"] = [row]
        self.reject_claim("binding does not hold: somewhere has", limit + 1)

    def test_other_strategy(self):
        ops = self.plan["strategies"]["transformer.h.1.mlp.c_fc"]
        matmul = next(op for op in ops if op.startswith("einsum"))
        del ops[matmul]  # what is left out is replicated
        self.reject_claim("additive_seconds does not hold")

    def test_other_layout(self):
        self.assertGreater(len(self.plan["layouts"]), 0)
        self.plan["layouts"] = {}
        self.reject_claim("does not hold")

    def test_other_recomputation(self):
        self.assertGreater(len(self.plan["recompute"]), 0)
        self.plan["recompute"] = []
        self.reject_claim("peak_bytes does not hold", "memory_limit does not hold")

    def test_other_cluster(self):
        lines = self.plan["cluster"]
        at = next(i for i, line in enumerate(lines) if line.strip().startswith("memory_bandwidth"))
        lines[at] = "  memory_bandwidth: 9000000000"
        self.reject_claim("additive_seconds does not hold")

    def test_other_model(self):
        self.plan["model"] = LLAMA
        self.reject(["check-plan", self.changed()], 2, "graph_hash")

    def test_json_lists_every_claim(self):
        self.plan["prediction"]["peak_bytes"] += 1
        done = self.run_program("check-plan", self.changed(), "--json")
        self.assertEqual(done.returncode, 1)
        checked = json.loads(done.stdout)
        self.assertIs(checked["ok"], False)
        wrong = [claim["name"] for claim in checked["claims"] if not claim["holds"]]
        self.assertEqual(wrong, ["peak_bytes"])

    def test_plan_by_hand_claims_nothing(self):
        del self.plan["prediction"]
        self.assertIn("says nothing", self.succeed("check-plan", self.changed()))


if __name__ == "__main__":
    unittest.main()

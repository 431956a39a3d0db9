"""run --verify at budgets from unlimited to the least feasible: equal to one device, and the measured
peak within the limit every time. Needs a build with the runtime."""

import json
import unittest

from program import CommandLineTest, has_runtime

# Activations take most of the memory, so that tight limits need recomputation.
GPT = "gpt:layers=2,hidden=32,heads=4,seq=64,batch=8,vocab=64"
LLAMA = "llama:layers=2,hidden=32,ffn=64,heads=4,kv_heads=2,seq=64,batch=8,vocab=64"
BUDGETS = 5


@unittest.skipUnless(has_runtime(), "this build has no runtime")
class RunBudgetsTest(CommandLineTest):
    def plan_json(self, model, *words):
        return self.succeed_json(
            "plan", model, "--cluster", "local:2", "--time-limit", "4", *words
        )

    def least_bytes(self, model):
        """Of the smallest plan, as an impossible request tells it."""
        done = self.run_program(
            "plan", model, "--cluster", "local:2", "--memory", "1KiB", "--json"
        )
        self.assertEqual(done.returncode, 1)
        return int(json.loads(done.stdout)["peak_bytes"])

    def verify(self, limit):
        report = self.succeed_json("run", "plan.json", "--verify", "--steps", "2")
        self.assertIs(report["ok"], True)
        self.assertLess(report["max_relative_error"], 1e-4)
        for measured in report["measured_peak_bytes"]:
            self.assertLessEqual(measured, limit)

    def check(self, model):
        free = self.plan_json(model, "-o", "plan.json")
        self.verify(free["peak_bytes"])
        least = self.least_bytes(model)
        self.assertLess(2 * least, free["peak_bytes"] * 1.1)
        recomputed = 0
        for k in range(1, BUDGETS):
            limit = free["peak_bytes"] + (least - free["peak_bytes"]) * k // (BUDGETS - 1)
            plan = self.plan_json(model, "--memory", limit, "-o", "plan.json")
            self.assertLessEqual(plan["peak_bytes"], limit)
            self.succeed("check-plan", "plan.json")
            self.verify(limit)
            recomputed += len(plan["recompute"])
        self.assertGreater(recomputed, 0)
        below = least * 99 // 100
        words = ["plan", model, "--cluster", "local:2", "--memory", below]
        self.reject(words, 1, "the smallest needs", "more)", "parameters")

    def test_gpt(self):
        self.check(GPT)

    def test_llama(self):
        self.check(LLAMA)


if __name__ == "__main__":
    unittest.main()

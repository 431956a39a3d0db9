"""plan over a range of memory limits and over growing numbers of devices."""

import json
import unittest

from program import MLP, CommandLineTest

# Activations take most of the memory, so that tight limits need recomputation.
GPT = "gpt:layers=3,hidden=64,heads=4,seq=128,batch=16,vocab=128"


class MemorySweepTest(CommandLineTest):
    def sweep(self, text):
        return ["plan", GPT, "--cluster", "local:2", "--memory", text]

    def test_every_limit_has_its_plan_and_proof(self):
        swept = self.succeed_json(*self.sweep("5MiB:17MiB:2MiB"))
        self.assertEqual(swept["sweep"], "memory")
        self.assertIs(swept["interrupted"], False)
        plans = swept["plans"]
        self.assertEqual([plan["memory_limit"] >> 20 for plan in plans], [5, 7, 9, 11, 13, 15, 17])
        self.assertEqual(plans[0]["status"], "infeasible")
        self.assertIn("the smallest needs", plans[0]["explanation"])
        fitting = [plan for plan in plans if plan["status"] != "infeasible"]
        self.assertGreater(len(fitting), 4)
        for plan in fitting:
            self.assertLessEqual(plan["peak_bytes"], plan["memory_limit"])
            self.assertGreater(plan["lower_bound_seconds"], 0)
            self.assertLessEqual(plan["lower_bound_seconds"], plan["objective_seconds"])
            self.assertGreaterEqual(plan["gap"], 0)
        for less, more in zip(fitting, fitting[1:]):
            self.assertGreaterEqual(less["step_seconds"], more["step_seconds"])
        self.assertGreater(len(fitting[0]["recompute"]), len(fitting[-1]["recompute"]))

    def test_a_limit_of_a_sweep_is_no_worse_than_alone(self):
        swept = self.succeed_json(*self.sweep("8MiB:14MiB:3MiB"))["plans"]
        for plan in swept:
            alone = self.succeed_json(*self.sweep(plan["memory_limit"]))
            self.assertLessEqual(plan["step_seconds"], alone["step_seconds"] * (1 + 1e-9))

    def test_table_and_plot(self):
        text = self.succeed(*self.sweep("5MiB:17MiB:2MiB"))
        for word in ("memory limit", "peak", "step", "additive", "gap", "recomputed", "mesh"):
            self.assertIn(word, text)
        for limit in (5, 7, 9):
            self.assertIn(f"{limit}.00 MiB", text)
        self.assertIn("none: needs", text)
        plot = text[text.index("\nstep\n") :]
        self.assertGreaterEqual(plot.count("*"), 3)
        self.assertIn("+x", plot)  # the first limit has no plan

    def test_no_limit_fits(self):
        self.reject(self.sweep("1KiB:2KiB:1KiB"), 1, "the smallest needs")

    def test_interrupt_keeps_the_best_so_far(self):
        words = ["plan", "gpt2-small", "--cluster", "8xA100-80GB", "--json"]
        code, output = self.interrupt(*words, "--memory", "600MiB:3GiB:100MiB", after=0.7)
        swept = json.loads(output)
        self.assertEqual(len(swept["plans"]), 25)
        fitting = [plan for plan in swept["plans"] if plan["status"] in ("feasible", "optimal")]
        self.assertEqual(code, 0 if fitting else 1)
        for plan in fitting:
            self.assertLessEqual(plan["peak_bytes"], plan["memory_limit"])


class DeviceSweepTest(CommandLineTest):
    def test_powers_of_two_of_the_cluster(self):
        swept = self.succeed_json("plan", GPT, "--cluster", "8xA100-80GB", "--sweep", "devices")
        self.assertEqual(swept["sweep"], "devices")
        plans = swept["plans"]
        self.assertEqual([plan["devices"] for plan in plans], [1, 2, 4, 8])
        for plan in plans:
            self.assertAlmostEqual(plan["samples_per_second"] * plan["step_seconds"], 16)
            self.assertAlmostEqual(plan["tokens_per_second"] * plan["step_seconds"], 16 * 128)
            speed_up = plans[0]["step_seconds"] / plan["step_seconds"]
            self.assertAlmostEqual(plan["speed_up"], speed_up)
            self.assertAlmostEqual(plan["efficiency"], speed_up / plan["devices"])
            self.assertLessEqual(plan["lower_bound_seconds"], plan["objective_seconds"])
        self.assertEqual(plans[0]["speed_up"], 1)

    def test_nodes(self):
        words = ["plan", MLP, "--cluster", "dgx-a100:4", "--planner", "dp"]
        swept = self.succeed_json(*words, "--sweep", "devices=8,16,32")
        clusters = [plan["cluster"] for plan in swept["plans"]]
        self.assertEqual(clusters, ["dgx-a100:1", "dgx-a100:2", "dgx-a100:4"])

    def test_efficiency_is_against_the_first_that_fits(self):
        words = ["plan", GPT, "--cluster", "8xA100-80GB", "--sweep", "devices=1,4,8"]
        plans = self.succeed_json(*words, "--memory", "9MiB")["plans"]
        self.assertEqual(plans[0]["status"], "infeasible")
        self.assertNotIn("speed_up", plans[0])
        self.assertEqual(plans[1]["efficiency"], 1)

    def test_interrupt_keeps_what_is_done(self):
        words = ["plan", "llama2-7b", "--cluster", "dgx-a100:8", "--precision", "bf16"]
        code, output = self.interrupt(
            *words, "--max-mesh-axes", "3", "--sweep", "devices=8,16,32,64", "--json"
        )
        self.assertIn(code, (0, 1))  # 1: it has found none yet
        swept = json.loads(output)
        devices = [plan["devices"] for plan in swept["plans"]]
        self.assertEqual(devices, [8, 16, 32, 64][: len(devices)])
        self.assertTrue(swept["interrupted"] or len(devices) == 4)

    def test_table(self):
        text = self.succeed("plan", GPT, "--cluster", "local:4", "--sweep", "devices")
        for word in ("devices", "step", "tokens/s", "speed-up", "efficiency", "memory", "mesh"):
            self.assertIn(word, text)


class MicrobatchSweepTest(CommandLineTest):
    WORDS = ["plan", "mlp:layers=4,hidden=512,batch=24", "--cluster", "8xA100-80GB",
             "--planner", "shardplan"]

    def test_every_number_that_the_batch_allows_and_the_fastest_is_kept(self):
        swept = self.succeed_json(*self.WORDS, "--sweep", "microbatches", "-o", "plan.json")
        self.assertEqual(swept["sweep"], "microbatches")
        self.assertEqual([plan["microbatches"] for plan in swept["plans"]],
                         [1, 2, 3, 4, 6, 8, 12, 24])
        fastest = min(swept["plans"], key=lambda plan: plan["step_seconds"])
        self.assertEqual(swept["fastest"], fastest["microbatches"])
        kept = json.loads((self.folder / "plan.json").read_text())
        self.assertEqual(kept["recipe"]["microbatches"], fastest["microbatches"])
        self.assertEqual(kept["prediction"]["step_seconds"], fastest["step_seconds"])
        one = self.succeed_json(*self.WORDS, "--microbatches", str(fastest["microbatches"]))
        self.assertEqual(one["step_seconds"], fastest["step_seconds"])

    def test_pipelines_of_few_microbatches_can_be_simulated(self):
        words = ["--cluster", "local:4", "--planner", "chimera", "--sweep", "microbatches=2,4"]
        swept = self.succeed_json("plan", "gpt:layers=4,hidden=64,heads=4,seq=16,batch=8,vocab=64",
                                  *words, "-o", "plan.json")
        self.assertEqual(len(swept["plans"]), 2)
        self.succeed("simulate", "plan.json")

    def test_auto_is_the_fastest_of_the_sweep(self):
        model = "gpt:layers=2,hidden=64,heads=4,seq=16,batch=8,vocab=64"
        for planner in ("map", "shardplan"):
            words = [model, "--cluster", "8xA100-80GB", "--planner", planner]
            swept = self.succeed_json("plan", *words, "--sweep", "microbatches")
            auto = self.succeed_json("plan", *words, "--microbatches", "auto", "-o", "plan.json")
            self.assertEqual(auto["microbatches"], swept["fastest"])
            least = min(plan["step_seconds"] for plan in swept["plans"])
            self.assertEqual(auto["step_seconds"], least)
            self.succeed("check-plan", "plan.json")
        text = self.succeed("plan", *words, "--microbatches", "auto")
        self.assertRegex(text, rf"(?m)^batch +in {auto['microbatches']} .* the fastest of 1, 2, 4, 8$")
        odd = ["mlp:layers=2,hidden=64,batch=15", "--cluster", "local:1", "--microbatches", "auto"]
        self.assertIn("of 1, 3, 5, 15", self.succeed("plan", *odd))
        words = [model, "--cluster", "8xA100-80GB", "--planners", "dp,map", "--microbatches", "auto"]
        self.assertIn("microbatches", self.succeed("compare", *words))

    def test_plans_with_stale_weights_are_called_so(self):
        text = self.succeed("plan", "mlp:layers=4,hidden=128,batch=64", "--cluster", "local:2",
                            "--planner", "pipedream_2bw", "--sweep", "microbatches=4,8")
        self.assertIn("weights   stale", text)

    def test_table_of_a_list(self):
        text = self.succeed(*self.WORDS, "--sweep", "microbatches=2,6")
        self.assertIn("fastest", text)
        self.assertRegex(text, r"(?m)^ *6 ")


class WrongSweepTest(CommandLineTest):
    def test_messages(self):
        words = ["plan", MLP, "--cluster", "dgx-a100:2"]
        for given, parts in (
            (["--memory", "1GiB:2GiB:1GiB", "-o", "p"], ["-o", "sweep"]),
            (["--memory", "1GiB:2GiB:1GiB", "--microbatches", "auto"], ["auto", "sweep"]),
            (["--sweep", "devices", "-o", "p"], ["-o", "sweep"]),
            (["--sweep", "devices", "--memory", "1GiB:2GiB:1GiB"], ["--sweep", "one of them"]),
            (["--sweep", "devices", "--mesh", "data=16"], ["--mesh", "--sweep"]),
            (["--sweep", "layers"], ["'layers'", "devices=1,2,4,8"]),
            (["--sweep", "devices=1,x"], ["'x'", "devices=1,x"]),
            (["--sweep", "devices=4,2"], ["must grow"]),
            (["--sweep", "devices="], ["''"]),
            (["--sweep", "devices=12"], ["12 devices", "groups of 8"]),
            (["--sweep", "microbatches", "--microbatches", "2"], ["--microbatches", "--sweep"]),
            (["--sweep", "microbatches=3"], ["3"]),
            (["--sweep", "microbatches=1,0"], ["'0'", "no number of microbatches"]),
            (["--sweep", "devices=32"], ["32 devices", "has 16 devices"]),
        ):
            self.reject([*words, *given], 2, *parts)
        self.assertEqual(self.files(), [])


if __name__ == "__main__":
    unittest.main()

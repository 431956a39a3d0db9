"""run: fields, ranks, and what goes wrong with them. Needs a build with the runtime."""

import os
import pathlib
import signal
import socket
import subprocess
import time
import unittest

from program import MLP, PROGRAM, CommandLineTest, has_runtime


@unittest.skipUnless(has_runtime(), "this build has no runtime")
class RunTest(CommandLineTest):
    def test_verify_on_two_ranks(self):
        self.make_plan()
        report = self.succeed_json("run", "plan.json", "--verify", "--steps", "2")
        self.assertIs(report["ok"], True)
        self.assertLess(report["max_relative_error"], 1e-4)
        self.assertEqual(len(report["losses"]), 2)
        self.assertEqual(len(report["predicted_peak_bytes"]), 2)
        self.assertEqual(len(report["measured_peak_bytes"]), 2)
        self.assertEqual(len(report["measured_rank_seconds"]), 2)
        self.assertGreater(report["predicted_step_seconds"], 0)
        self.assertGreater(report["measured_step_seconds"], 0)
        for predicted, measured in zip(
            report["predicted_peak_bytes"], report["measured_peak_bytes"]
        ):
            self.assertAlmostEqual(measured / predicted, 1, delta=0.05)

    def test_sizes_that_do_not_divide(self):
        gpt = "gpt:layers=2,hidden=48,heads=6,seq=17,batch=6,vocab=50257"
        for planner in ("map", "dp", "zero3", "megatron"):
            with self.subTest(planner=planner):
                self.succeed(
                    "plan", gpt, "--cluster", "local:4", "--planner", planner, "-o", "plan.json"
                )
                report = self.succeed_json(
                    "run", "plan.json", "--verify", "--steps", "2", "--oversubscribe"
                )
                self.assertIs(report["ok"], True)
                self.assertLess(report["max_relative_error"], 1e-4)
                # Rank 0 has the largest part of everything: what is predicted.
                predicted = report["predicted_peak_bytes"][0]
                measured = report["measured_peak_bytes"]
                self.assertAlmostEqual(measured[0] / predicted, 1, delta=0.01)
                self.assertLessEqual(max(measured), measured[0] * 1.001)

    def test_published_planners_of_pipelines(self):
        gpt = "gpt:layers=4,hidden=64,heads=4,seq=16,batch=8,vocab=128"
        for planner in ("gpipe", "piper"):
            with self.subTest(planner=planner):
                words = ("--cluster", "local:4", "--microbatches", "4", "--precision", "fp64")
                self.succeed("plan", gpt, *words, "--planner", planner, "-o", "plan.json")
                report = self.succeed_json(
                    "run", "plan.json", "--verify", "--steps", "2", "--oversubscribe"
                )
                self.assertIs(report["ok"], True)
                self.assertLess(report["max_relative_error"], 1e-9)
                for predicted, measured in zip(
                    report["predicted_peak_bytes"], report["measured_peak_bytes"]
                ):
                    self.assertAlmostEqual(measured / predicted, 1, delta=0.01)

    def test_steps_without_a_flush(self):
        mlp = "mlp:layers=4,hidden=128,batch=64"
        for planner, microbatches in (("pipedream", 1), ("pipedream_2bw", 4)):
            with self.subTest(planner=planner):
                words = ("--cluster", "local:2", "--microbatches", microbatches)
                planned = self.succeed_json(
                    "plan", mlp, *words, "--precision", "fp64", "--planner", planner, "-o", "plan.json"
                )
                self.assertIs(planned["stale_weights"], True)
                start = time.monotonic()
                report = self.succeed_json("run", "plan.json", "--verify", "--steps", "2")
                wall = time.monotonic() - start
                self.assertIs(report["ok"], True)
                self.assertLess(report["max_relative_error"], 1e-9)
                self.assertGreater(report["steps_a_run"], 1)
                self.assertEqual(len(report["losses"]), 2)
                # Of one step, though a run has many.
                self.assertLess(report["measured_step_seconds"] * report["steps_a_run"], wall)
                for predicted, measured in zip(
                    report["predicted_peak_bytes"], report["measured_peak_bytes"]
                ):
                    self.assertAlmostEqual(measured / predicted, 1, delta=0.01)
                text = self.succeed("run", "plan.json", "--verify", "--steps", "1")
                for words in ("stale weights", "not from training on one"):
                    self.assertIn(words, text)

    def test_one_rank_needs_no_launcher(self):
        self.make_plan("plan.json", MLP, "local:1")
        report = self.succeed_json("run", "plan.json", "--verify", "--steps", "1")
        self.assertIs(report["ok"], True)
        self.assertEqual(len(report["measured_peak_bytes"]), 1)

    def test_times_name_what_ran(self):
        self.make_plan()
        report = self.succeed_json("run", "plan.json", "--times", "--steps", "2")
        self.assertEqual(len(report["step_seconds"]), 2)
        self.assertGreater(report["seconds_by_name"]["einsum"], 0)
        self.assertGreater(report["predicted_seconds_by_name"]["einsum"], 0)

    def test_table_is_printed_once(self):
        self.make_plan()
        text = self.succeed("run", "plan.json", "--verify", "--steps", "1")
        self.assertEqual(text.count("verify    equal"), 1)
        for word in ("peak predicted", "step predicted", "measured", "difference"):
            self.assertIn(word, text)

    def test_wrong_number_of_ranks(self):
        self.make_plan()
        env = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        self.reject(["run", "plan.json"], 2, "2 ranks and 3", env=env)

    def test_too_many_ranks_for_the_machine(self):
        self.make_plan("plan.json", "mlp:layers=2,hidden=64,batch=512", "dgx-a100:64")
        self.reject(["run", "plan.json"], 2, "512 ranks", "--oversubscribe")

    def test_busy_port(self):
        self.make_plan()
        with socket.socket() as busy:
            busy.bind(("127.0.0.1", 0))
            busy.listen()
            env = {
                "RANK": "0",
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(busy.getsockname()[1]),
            }
            done = self.run_program("run", "plan.json", "--timeout", "5", env=env, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn(env["MASTER_PORT"], done.stderr)

    def test_impossible_port(self):
        self.make_plan()
        for port in ("99999", "-1"):
            env = {"MASTER_PORT": port}
            self.reject(["run", "plan.json"], 2, "MASTER_PORT", port, env=env)

    def disturb(self, send, *words):
        """Starts a long run, calls `send(launcher, ranks)` (process ids) once it trains; exit code and
        standard error of the run, after which no rank may be left over."""
        self.make_plan()
        run = subprocess.Popen(
            [PROGRAM, "run", "plan.json", "--steps", "1000000", *words],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        deadline = time.monotonic() + 30
        ranks = []
        while len(ranks) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
            children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text()
            ranks = [int(child) for child in children.split()]
        time.sleep(2)  # until they train
        send(run.pid, ranks)
        _, stderr = run.communicate(timeout=30)
        for rank in ranks:
            self.assertFalse(pathlib.Path(f"/proc/{rank}").exists(), "a rank is left over")
        return run.returncode, stderr

    def break_a_rank(self, signal_number, *words):
        return self.disturb(lambda _, ranks: os.kill(ranks[1], signal_number), *words)

    def test_interrupt_ends_all_with_one_message(self):
        # kill -INT of the launcher, and Ctrl-C, which every process of the terminal gets.
        for send in (os.kill, os.killpg):
            code, stderr = self.disturb(lambda launcher, _: send(launcher, signal.SIGINT))
            self.assertEqual(code, 2)
            errors = [line for line in stderr.splitlines() if "error" in line]
            self.assertEqual(errors, ["error: interrupted; all ranks were ended"])

    def test_dead_rank_is_named_and_the_others_end(self):
        code, stderr = self.break_a_rank(signal.SIGKILL)
        self.assertEqual(code, 2)
        self.assertIn("error: rank 1", stderr)

    def test_hung_rank_is_named_and_all_end(self):
        code, stderr = self.break_a_rank(signal.SIGSTOP, "--timeout", "3")
        self.assertEqual(code, 2)
        self.assertIn("error: rank 1", stderr)

    def test_wrong_numbers(self):
        self.make_plan()
        self.reject(["run", "plan.json", "--steps", "0"], 2, "--steps")
        self.reject(["run", "plan.json", "--timeout", "0"], 2, "--timeout")


if __name__ == "__main__":
    unittest.main()

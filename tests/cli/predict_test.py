"""predict: a Megatron-LM run by formulas, and the sweep of all configurations."""

import subprocess
import sys
import unittest

from program import PROGRAM, ROOT, CommandLineTest

GPT = "gpt:layers=24,hidden=2048,heads=16,seq=2048,vocab=51200"
ROW = ["predict", "--model", "gpt:layers=48,hidden=6144,heads=64,seq=2048,vocab=51200"]
ROW += ["--cluster", "dgx-a100:1", "--tp", "8", "--microbatch", "4", "--batch", "4"]


class PredictTest(CommandLineTest):
    def test_a_published_row(self):
        """22B of Korthikanti et al., Table 5: 1.10 s and 41.5 % with 8 GPUs."""
        row = self.succeed_json(*ROW, "--recompute", "selective", "--sequence-parallel")
        self.assertAlmostEqual(row["step_seconds"] / 1.10, 1, delta=0.05)
        self.assertAlmostEqual(row["mfu"], 0.415, delta=0.02)
        self.assertEqual(row["devices"], 8)
        self.assertAlmostEqual(sum(row["seconds"].values()), row["step_seconds"], places=9)
        self.assertAlmostEqual(row["memory"]["activations"] / 2**30, 9.56, delta=0.005)
        parts = {name: part for name, part in row["memory"].items() if name != "optimizer_copies"}
        self.assertAlmostEqual(sum(parts.values()), row["memory_bytes"], delta=len(parts))
        self.assertIs(row["fits"], True)

    def test_text_names_every_part(self):
        text = self.succeed(*ROW, "--recompute", "full", "--software", "2021")
        for word in ("MFU", "HFU", "bubble", "tensor communication", "optimizer copies", "fits"):
            self.assertIn(word, text)

    def test_more_than_a_device_holds_is_said(self):
        row = self.succeed_json(*ROW, "--memory", "20GiB")
        self.assertIs(row["fits"], False)
        self.assertIn("does not fit", self.succeed(*ROW, "--memory", "20GiB"))

    def test_absurd_sizes_do_not_fit(self):
        words = ["predict", "gpt:seq=2147483648,vocab=2147483648", "--cluster", "dgx-a100:1"]
        row = self.succeed_json(*words, "--batch", "2147483648")
        self.assertIs(row["fits"], False)
        self.assertGreater(row["memory_bytes"], 2**62)

    def test_replicas_fill_the_cluster(self):
        words = ["predict", GPT, "--cluster", "dgx-a100:4", "--tp", "4", "--batch", "64"]
        self.assertEqual(self.succeed_json(*words)["configuration"]["dp"], 8)
        self.assertEqual(self.succeed_json(*words, "--dp", "2")["devices"], 8)

    def test_wrong_words(self):
        base = ["predict", GPT, "--cluster", "dgx-a100:2", "--batch", "48"]
        for words, *parts in (
            (["--tp", "0"], "tp must be"),
            (["--tp", "3", "--dp", "1"], "16 heads", "tp = 3"),
            (["--tp", "3"], "16 devices", "--dp"),
            (["--pp", "32", "--dp", "1"], "more devices than the 16"),
            (["--pp", "5", "--dp", "1"], "24 layers", "pp = 5"),
            (["--interleave", "2"], "one stage"),
            (["--pp", "2", "--interleave", "5", "--dp", "1"], "pp · interleave = 10"),
            (["--microbatch", "7"], "batch of 48"),
            (["--microbatch", "-2"], "microbatch must be"),
            (["--tp", "x"], "--tp", "'x'"),
            (["--recompute", "some"], "--recompute", "selective"),
            (["--software", "2020"], "--software", "2021"),
            (["--matmul-efficiency", "1.5"], "--matmul-efficiency"),
            (["--memory", "12parsecs"], "12parsecs"),
            (["--memory", "0"], "--memory", "at least 1 byte"),
            (["--sweep", "--top", "0"], "--top"),
            (["--sweep", "--max-tp", "-1"], "--max-tp"),
        ):
            with self.subTest(words=words):
                self.reject([*base, *words], 2, *parts)
        words = ["predict", GPT, "--cluster", "dgx-a100:2", "--batch", "0"]
        self.reject(words, 2, "batch must be")
        self.reject([*words, "--sweep"], 2, "batch must be")
        self.reject(["predict"], 2, "predict needs a --model")
        self.reject(["predict", GPT], 2, "predict needs a --cluster")
        self.reject(["predict", "llama2-7b", "--cluster", "dgx-a100:1"], 2, "family llama")
        self.reject(["predict", "gtp", "--cluster", "dgx-a100:1"], 2, "did you mean 'gpt'?")
        self.reject(["predict", "gpt:heads=5", "--cluster", "dgx-a100:1"], 2, "not divisible")
        flat = "gpt:layers=32,hidden=1024,heads=16,seq=64"
        words = ["predict", flat, "--cluster", "dgx-a100:2", "--pp", "33", "--dp", "1"]
        self.reject(words, 2, "more devices")
        self.reject([*words[:3], "dgx-a100:8", *words[4:]], 2, "more stages than layers")

    def test_sweep_agrees_with_single_predictions(self):
        words = ["predict", "--model", GPT, "--cluster", "dgx-a100:2", "--batch", "48"]
        swept = self.succeed_json(*words, "--sweep", "--top", "4")
        self.assertEqual(len(swept["best"]), 4)
        self.assertGreater(swept["examined"], swept["fitting"])
        for found in swept["best"]:
            self.assertLessEqual(found["memory_bytes"], swept["memory_limit"])
            c = found["configuration"]
            single = [f"--{key}={c[key]}" for key in ("tp", "pp", "dp", "microbatch", "interleave")]
            single += ["--recompute", c["recompute"]]
            single += ["--sequence-parallel"] if c["sequence_parallel"] else []
            single += ["--distributed-optimizer"] if c["distributed_optimizer"] else []
            alone = self.succeed_json(*words, *single)
            self.assertAlmostEqual(alone["step_seconds"] / found["step_seconds"], 1, delta=1e-12)
            self.assertEqual(alone["memory_bytes"], found["memory_bytes"])
        lean = swept["leanest_within_one_percent"]
        self.assertLessEqual(lean["step_seconds"], 1.01 * swept["best"][0]["step_seconds"])
        self.assertLessEqual(lean["memory_bytes"], swept["best"][0]["memory_bytes"])
        text = self.succeed(*words, "--sweep")
        self.assertIn(f"{swept['examined']} configurations examined", text)

    def test_sweep_without_room(self):
        words = ["predict", GPT, "--cluster", "dgx-a100:1", "--batch", "8", "--sweep"]
        self.reject([*words, "--memory", "1GiB"], 1, "none of", "the smallest needs")


class PublishedRunsTest(unittest.TestCase):
    SCRIPT = ROOT / "benchmarks" / "published_runs.py"

    def run_script(self, *words):
        command = [sys.executable, str(self.SCRIPT), *words]
        environment = {"SHARDPLAN": PROGRAM, "PATH": ""}
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        ).stdout

    def test_skips_where_the_numbers_are_missing(self):
        self.assertIn("skipped", self.run_script("--baselines", "/nowhere"))

    def test_every_row_within_five_percent(self):
        out = self.run_script("--no-fit")
        if "skipped" in out:
            self.skipTest(out.strip())
        self.assertIn("20 of 20 to the printed digit", out)
        rows = [line.split("|") for line in out.splitlines() if line.startswith(("| SC", "| K22"))]
        self.assertEqual(len(rows), 18)
        for row in rows:
            self.assertLess(abs(float(row[5].strip().split()[0])), 5, row)


if __name__ == "__main__":
    unittest.main()

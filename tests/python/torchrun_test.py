"""The promise of the package under torchrun: a plain script on several ranks equals PyTorch."""

import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent


class Torchrun(unittest.TestCase):
    def run_ranks(self, ranks, *arguments):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={ranks}",
                str(HERE / "ranks_script.py"),
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIn("equal to PyTorch", done.stdout)
        return done.stdout

    def test_regression_on_two_ranks_by_zero3(self):
        self.run_ranks(2, "regression", "zero3", "1")

    def test_gpt2_on_two_ranks_by_map(self):
        self.run_ranks(2, "gpt2", "map", "2")

    def test_llama_on_four_ranks_by_megatron(self):
        self.run_ranks(4, "llama", "megatron", "1")

    def test_pipelines(self):
        for ranks, model, planner, microbatches, schedule in (
            (2, "gpt2", "gpipe", "4", "gpipe"),
            (4, "llama", "gpipe", "2", "gpipe"),
            (2, "gpt2", "chimera", "4", "chimera"),
            (3, "odd_sizes", "merak", "3", "1f1b"),  # batch normalisation, of each microbatch
        ):
            with self.subTest(model, planner=planner):
                self.assertIn(f"({schedule})", self.run_ranks(ranks, model, planner, microbatches))

    def test_statistics_of_microbatches_on_two_ranks(self):
        self.run_ranks(2, "odd_sizes", "map", "2")


if __name__ == "__main__":
    unittest.main()

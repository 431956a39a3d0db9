"""What trains on, but wrong, elsewhere: see bitten_script.py. On one, two and four ranks, and what is
refused before anything starts."""

import pathlib
import subprocess
import sys
import unittest

import torch

import shardplan
from truth import make

HERE = pathlib.Path(__file__).parent


class Bitten(unittest.TestCase):
    def run_ranks(self, ranks):
        begin = [sys.executable]
        if ranks > 1:
            begin += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run(
            [*begin, str(HERE / "bitten_script.py")], capture_output=True, text=True, timeout=600
        )
        self.assertEqual(done.returncode, 0, done.stdout[-1000:] + done.stderr[-3000:])
        self.assertIn("all cases done", done.stdout)

    def test_one_rank(self):
        self.run_ranks(1)

    def test_two_ranks(self):
        self.run_ranks(2)

    def test_four_ranks(self):
        self.run_ranks(4)


class Refused(unittest.TestCase):
    def test_microbatches_that_do_not_divide_the_batch(self):
        model, draw, _ = make("mlp")
        with self.assertRaisesRegex(ValueError, "input 'x' .* 8 rows cannot be cut into 3 microbatches"):
            shardplan.parallelize(model, draw(), microbatches=3)

    def test_statistics_of_one_value(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        with self.assertRaisesRegex(ValueError, "one value of each channel"):
            shardplan.parallelize(
                model, torch.randn(8, 4), loss=lambda y, _: y.pow(2).mean(), microbatches=8
            )

    def test_a_plan_for_another_shape(self):
        model, draw, _ = make("mlp")
        step = shardplan.parallelize(model, draw())
        longer = {name: torch.cat([value, value]) for name, value in draw().items()}
        with self.assertRaisesRegex(ValueError, "shape .*expected"):
            step(longer)


class Memory(unittest.TestCase):
    def test_smaller_limits_give_smaller_peaks(self):
        """And the same numbers: what is recomputed draws its dropout again."""
        model, draw, loss = make("gpt2_dropout")
        batches = [draw() for _ in range(2)]
        free = shardplan.parallelize(model, batches[0], loss=loss)
        losses = [free(batch) for batch in batches]
        peaks = [free.peak_bytes]
        for part in (0.9, 0.8, 0.7):
            try:
                step = shardplan.parallelize(
                    model, batches[0], loss=loss, memory=int(part * free.plan.peak_bytes)
                )
            except ValueError as error:
                self.assertIn("no plan fits", str(error))
                break
            self.assertEqual([step(batch) for batch in batches], losses)
            self.assertLessEqual(step.peak_bytes, part * free.plan.peak_bytes)
            peaks.append(step.peak_bytes)
        self.assertGreater(len(peaks), 1)
        self.assertEqual(peaks, sorted(peaks, reverse=True))


if __name__ == "__main__":
    unittest.main()

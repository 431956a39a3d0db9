"""Small networks of every kind, on one device against PyTorch and on four ranks against one device.
All models: tests/models/truth_models.py and tests/models/run_models.py."""

import pathlib
import sys
import tempfile
import types
import unittest
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "models")]

import run_models  # noqa: E402
import truth_models  # noqa: E402

PROGRAM = str(HERE.parents[1] / "build" / "shardplan")
NETWORKS = ["t5", "bert_masked_lm", "vit", "resnet50_tiny", "unet", "graph", "gshard", "stop_gradient", "frozen_base"]
PLANS = [("mixtral", "map"), ("opt", "zero3"), ("detr", "map"), ("lstm_classifier", "dp"), ("dlrm", "map"),
         ("swin", "megatron"), ("kalman", "map"), ("noise", "map"), ("dropout", "zero3"),
         ("unet", "spatial"), ("autoencoder", "spatial"),
         ("gshard", "expert_parallel"), ("moe", "expert_parallel")]  # fmt: skip


class Models(unittest.TestCase):
    def setUp(self):
        warnings.filterwarnings("ignore")

    def test_equal_to_pytorch(self):
        for name in [*truth_models.TINY, *NETWORKS]:
            if name not in truth_models.RANDOM:
                with self.subTest(name):
                    self.assertEqual(truth_models.check(name), "")

    def test_four_ranks_equal_to_one(self):
        options = types.SimpleNamespace(
            ranks=4, precision="fp64", optimizer="adamw", memory=None, timeout=120, steps=2, microbatches=1
        )
        with tempfile.TemporaryDirectory() as folder:
            for name, planner in PLANS:
                with self.subTest(name, planner=planner):
                    path, error = run_models.export(name, pathlib.Path(folder))
                    self.assertEqual(error, "")
                    self.assertEqual(run_models.check(PROGRAM, path, planner, options)[0], "")

    def test_narrow_batch_statistics_of_parts_are_those_of_the_batch(self):
        with tempfile.TemporaryDirectory() as folder:
            path, error = run_models.export("resnet50_tiny", pathlib.Path(folder))
            self.assertEqual(error, "")
            options = types.SimpleNamespace(
                ranks=4, precision="bf16", optimizer="adamw", memory=None, timeout=120, steps=3, microbatches=1
            )
            for planner in ("dp", "zero3"):
                with self.subTest(planner):
                    self.assertEqual(run_models.check(PROGRAM, path, planner, options)[0], "")

    def test_a_difference_that_may_be_rounding_says_how_to_tell(self):
        with tempfile.TemporaryDirectory() as folder:
            path, _ = run_models.export("resnet50_tiny", pathlib.Path(folder))
            plan = str(path.with_suffix(".json"))
            for precision, may_be in (("bf16", True), ("fp64", False)):
                words = [PROGRAM, "plan", str(path), "--cluster", "local:4", "--planner", "map", "-o", plan]
                run_models.call([*words, "--precision", precision], 120)
                words = [PROGRAM, "run", plan, "--verify", "--steps", "2", "--oversubscribe", "--json"]
                code, _, error = run_models.call(words, 120)
                with self.subTest(precision):
                    self.assertIn(code, (0, 1) if may_be else (0,))
                    self.assertEqual("--precision fp64 tells" in error, code == 1)

    def test_stages_with_batch_normalisation_equal_one_device(self):
        with tempfile.TemporaryDirectory() as folder:
            path, error = run_models.export("resnet50_tiny", pathlib.Path(folder))
            self.assertEqual(error, "")
            for ranks, planner in ((2, "gpipe"), (3, "merak"), (4, "gpipe"), (4, "dapple")):
                options = types.SimpleNamespace(
                    ranks=ranks, precision="fp64", optimizer="sgd", memory=None, timeout=120, steps=3, microbatches=4
                )
                with self.subTest(planner, ranks=ranks):
                    self.assertEqual(run_models.check(PROGRAM, path, planner, options)[0], "")


if __name__ == "__main__":
    unittest.main()

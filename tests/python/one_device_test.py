"""One device against PyTorch: losses and weights of exported models, and the messages of mistakes."""

import json
import pathlib
import unittest

import torch

import shardplan
from truth import difference, make, train


class OneDevice(unittest.TestCase):
    def check(self, name, optimizer, torch_optimizer, **options):
        model, draw, loss = make(name)
        batches = [draw() for _ in range(4)]
        before = {key: value.clone() for key, value in model.state_dict().items()}
        step = shardplan.parallelize(model, batches[0], optimizer=optimizer, loss=loss, **options)
        losses = [step(batch) for batch in batches]
        keys = {"microbatches", "clip_norm"}
        expected, truth = train(
            model,
            batches,
            torch_optimizer,
            loss,
            **{key: value for key, value in options.items() if key in keys},
        )
        for got, want in zip(losses, expected):
            self.assertLess(abs(got - want), 1e-9 * abs(want))
        worst, where = difference(step.state_dict(), truth)
        self.assertLess(worst, 1e-9, where)
        # The module is untouched, and takes the trained weights.
        self.assertEqual(difference(model.state_dict(), before)[0], 0)
        model.load_state_dict(step.state_dict())

    def test_models_with_adamw(self):
        for name in ("mlp", "regression", "gpt2", "llama"):
            with self.subTest(name):
                self.check(
                    name,
                    shardplan.AdamW(lr=1e-2),
                    lambda p: torch.optim.AdamW(p, lr=1e-2),
                )

    def test_optimizers(self):
        self.check(
            "mlp",
            shardplan.SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        )
        self.check(
            "mlp",
            shardplan.Adam(lr=1e-2, beta1=0.8, weight_decay=0.1),
            lambda p: torch.optim.Adam(p, lr=1e-2, betas=(0.8, 0.999), weight_decay=0.1),
        )

    def test_batch_normalisation_of_microbatches(self):
        self.check(
            "odd_sizes",
            shardplan.SGD(lr=0.1),
            lambda p: torch.optim.SGD(p, lr=0.1),
            microbatches=3,
        )

    def test_microbatches_and_clipping(self):
        self.check(
            "mlp",
            shardplan.AdamW(),
            torch.optim.AdamW,
            microbatches=2,
            clip_norm=0.5,
        )

    def test_mistakes_are_told(self):
        model, draw, _ = make("mlp")
        batch = draw()
        step = shardplan.parallelize(model, batch)
        for wrong, message in (
            ({"x": batch["x"]}, "missing"),
            ({**batch, "y": batch["x"]}, "unknown"),
            ({**batch, "x": batch["x"].float()}, "float32"),
            ({**batch, "x": batch["x"][:4]}, "shape"),
            ((batch["x"],), "1 tensors"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                step(wrong)
        self.assertIsInstance(step((batch["x"], batch["target"])), float)
        with self.assertRaisesRegex(ValueError, "memory|fit|least"):
            shardplan.parallelize(model, batch, memory=1000)
        with self.assertRaisesRegex(ValueError, "torchrun"):
            shardplan.parallelize(model, batch, cluster="local:2")
        with self.assertRaisesRegex(ValueError, "map"):
            shardplan.parallelize(model, batch, planner="mop")

    def test_state_goes_in_and_out(self):
        model, draw, _ = make("gpt2")
        batch = draw()
        step = shardplan.parallelize(model, batch)
        state = step.state_dict()
        self.assertEqual(difference(state, model.state_dict())[0], 0)
        first = step(batch)
        step.load_state_dict(state)
        self.assertEqual(step(batch), first)

    def test_plan_without_running(self):
        plan = shardplan.plan("gpt:layers=2,hidden=64,heads=4,seq=32,batch=8", cluster="local:4")
        self.assertEqual(plan.world_size, 4)
        self.assertGreater(plan.peak_bytes, 0)
        self.assertIn("planner map", plan.explain())
        self.assertIn('"planner"', plan.to_json())

    def test_plan_of_a_pipeline_without_running(self):
        plan = shardplan.plan(
            "gpt:layers=2,hidden=64,heads=4,seq=32,batch=8",
            cluster="local:2",
            planner="gpipe",
            microbatches=4,
        )
        self.assertEqual((plan.world_size, plan.schedule, plan.mesh), (2, "gpipe", {}))
        text = plan.explain()
        for words in ("planner gpipe, 2 stages, gpipe", "stage 0, mesh one device", "stage 1, mesh"):
            self.assertIn(words, text)
        self.assertIn("schedule='gpipe'", repr(plan))
        self.assertIn('"pipeline"', plan.to_json())

    def test_plan_of_a_file_that_leaves_dimensions_open(self):
        fixtures = pathlib.Path(__file__).resolve().parents[1] / "frontends/fixtures"
        archive = str(fixtures / "gpt2_dynamic.pt2")
        with self.assertRaisesRegex(ValueError, "--dim"):
            shardplan.plan(archive, cluster="local:2")
        plan = shardplan.plan(archive, cluster="local:2", dims={"batch": 4, "seq": 8})
        self.assertEqual(json.loads(plan.to_json())["model_binding"]["dims"], {"batch": 4, "seq": 8})
        onnx = str(fixtures / "mlp.onnx")
        plan = shardplan.plan(
            onnx, cluster="local:2", dims={"batch": 64}, loss="cross_entropy", target="label"
        )
        self.assertEqual(json.loads(plan.to_json())["model_binding"]["loss"], "cross_entropy")
        with self.assertRaisesRegex(ValueError, "text"):
            model, draw, _ = make("regression")
            shardplan.plan(model, draw(), cluster="local:2", loss="mse")


if __name__ == "__main__":
    unittest.main()

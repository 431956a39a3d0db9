"""shardplan.export: names in the archive, models on the meta device, mistakes."""

import json
import os
import tempfile
import unittest
import zipfile

import torch

import shardplan
from shardplan._export import named_inputs


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, scale=2.0):
        return self.linear(x) * scale


class OwnLoss(Scaled):
    def forward(self, x, target):
        return {"loss": ((self.linear(x) - target) ** 2).mean(), "other": x}


def signature(path):
    """Names of the parameters and of the user's inputs in an archive, and the sizes of its weights."""
    with zipfile.ZipFile(path) as archive:
        top = archive.namelist()[0].split("/")[0]
        model = json.loads(archive.read(f"{top}/models/model.json"))
        sizes = [i.file_size for i in archive.infolist() if "/data/weights/weight_" in i.filename]
    specs = model["graph_module"]["signature"]["input_specs"]
    parameters = [s["parameter"]["parameter_name"] for s in specs if "parameter" in s]
    inputs = [s["user_input"]["arg"]["as_tensor"]["name"] for s in specs if "user_input" in s]
    return parameters, inputs, sizes


class Export(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.path.join(folder.name, "model.pt2")

    def test_names_of_a_module_with_a_loss(self):
        model = Scaled()
        x, target = torch.randn(5, 4), torch.randn(5, 3)
        written = shardplan.export(
            model, (x, 3.0, target), self.path, loss=lambda out, batch: ((out - batch[2]) ** 2).mean()
        )
        self.assertEqual(written, self.path)
        parameters, inputs, sizes = signature(self.path)
        self.assertEqual(parameters, ["linear.weight", "linear.bias"])
        self.assertEqual(inputs, ["x", "target"])
        self.assertEqual(sorted(sizes), [12, 48])
        # The module computes as before.
        self.assertNotIn("forward", vars(model))
        torch.testing.assert_close(model(x), model.linear(x) * 2.0)
        self.assertEqual(os.listdir(self.folder), ["model.pt2"])

    def test_mappings_keep_their_names(self):
        batch = {"x": torch.randn(5, 4), "target": torch.randn(5, 3)}
        shardplan.export(OwnLoss(), batch, self.path)
        self.assertEqual(signature(self.path)[1], ["x", "target"])
        shardplan.export(Scaled(), batch, self.path, loss=lambda out, b: (out - b["target"]).abs().sum())
        self.assertEqual(signature(self.path)[1], ["x", "target"])

    def test_one_tensor_twice_is_two_inputs(self):
        x = torch.randn(5, 3)
        named = named_inputs(OwnLoss(), {"x": x, "target": x})
        self.assertIsNot(named["x"], named["target"])

    def test_meta_device_allocates_nothing(self):
        with torch.device("meta"):
            model = torch.nn.Linear(1 << 20, 1 << 20)
        shardplan.export(model, torch.zeros(1, 1 << 20), self.path, loss=lambda out, _: out.mean())
        self.assertEqual(set(signature(self.path)[2]), {0})

    def test_mistakes(self):
        x = torch.randn(5, 4)
        cases = [
            (lambda: shardplan.export(Scaled(), x, self.path), ValueError, "scalar loss is needed"),
            (
                lambda: shardplan.export(Scaled(), x, self.path, loss=lambda out, _: out),
                ValueError,
                r"loss function returned a tensor of shape \[5, 3\]",
            ),
            (
                lambda: shardplan.export(OwnLoss(), (x, x, x), self.path),
                ValueError,
                "takes 2 inputs, the batch has 3",
            ),
            (
                lambda: shardplan.export(OwnLoss(), {"y": x}, self.path),
                ValueError,
                "has no parameter 'y'; it has x, target",
            ),
            (lambda: shardplan.export(OwnLoss(), 3, self.path), TypeError, "not int"),
            (lambda: shardplan.export(OwnLoss(), x, "model.onnx"), ValueError, "must end in .pt2"),
            (
                lambda: shardplan.export(
                    Scaled(), x, os.path.join(self.folder, "none", "m.pt2"), loss=lambda out, _: out.mean()
                ),
                FileNotFoundError,
                "does not exist",
            ),
        ]
        for call, error, message in cases:
            with self.subTest(message), self.assertRaisesRegex(error, message):
                call()
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    unittest.main()

"""ONNX models from file to training: profile, plan and run --verify, and what is refused."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

PROGRAM = os.environ["SHARDPLAN"]
RANDOM = numpy.random.default_rng(1)


def weight(name, *shape):
    values = RANDOM.normal(size=shape) / numpy.sqrt(numpy.prod(shape[1:]) or 1)
    return numpy_helper.from_array(values.astype("float32"), name)


def save(path, nodes, weights, inputs, outputs, opset=18, **options):
    floats = lambda values: [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values
    ]
    graph = helper.make_graph(nodes, "model", floats(inputs), floats(outputs), weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    onnx.checker.check_model(model)
    onnx.save(model, path, **options)


def mlp(path, **options):
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "/net/net.0/Gemm", transB=1),
        helper.make_node("Gelu", ["h"], ["a"], "/net/net.1/Gelu"),
        helper.make_node("Gemm", ["a", "w2", "b2"], ["logits"], "/net/net.2/Gemm", transB=1),
    ]
    weights = [weight("w1", 32, 16), weight("b1", 32), weight("w2", 10, 32), weight("b2", 10)]
    save(path, nodes, weights, [("x", ["batch", 16])], [("logits", ["batch", 10])], 20, **options)


def convolutions(path):
    """Convolution, batch normalisation that trains, pooling, a linear layer."""
    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node(
            "BatchNormalization",
            ["c", "scale", "shift", "mean", "variance"],
            ["n", "mean_out", "variance_out"],
            training_mode=1,
        ),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    ones = numpy.ones(8, dtype="float32")
    weights = [
        weight("k1", 8, 3, 3, 3),
        weight("w", 8, 5),
        numpy_helper.from_array(ones, "scale"),
        numpy_helper.from_array(0 * ones, "shift"),
        numpy_helper.from_array(0 * ones, "mean"),
        numpy_helper.from_array(ones, "variance"),
    ]
    save(path, nodes, weights, [("x", ["batch", 3, 8, 8])], [("y", ["batch", 5])])


class OnnxRuns(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def shardplan(self, *arguments):
        return subprocess.run(
            [PROGRAM, *map(str, arguments)], capture_output=True, text=True, cwd=self.path, timeout=300
        )

    def train(self, model, *options):
        planned = self.shardplan(
            "plan", model, "--cluster", "local:2", "--precision", "fp64", *options, "-o", "plan.json"
        )
        self.assertEqual(planned.returncode, 0, planned.stderr)
        ran = self.shardplan("run", "plan.json", "--verify", "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout)

    def test_mlp_trains_under_every_loss(self):
        mlp(self.path / "mlp.onnx")
        for loss in ("cross_entropy", "mse", "bce_with_logits", "nll"):
            with self.subTest(loss):
                report = self.train("mlp.onnx", "--dim", "batch=8", "--loss", loss)
                self.assertLess(report["max_relative_error"], 1e-9)

    def test_convolutions_train_over_data(self):
        convolutions(self.path / "cnn.onnx")
        options = ["--dim", "batch=4", "--loss", "cross_entropy", "--planner", "dp"]
        self.assertLess(self.train("cnn.onnx", *options)["max_relative_error"], 1e-9)

    def test_external_weights_are_those_of_the_file(self):
        mlp(self.path / "one.onnx")
        model = onnx.load(self.path / "one.onnx")
        onnx.save(
            model,
            self.path / "two.onnx",
            save_as_external_data=True,
            location="two.bin",
            size_threshold=0,
        )
        options = ["--dim", "batch=8", "--loss", "mse", "--planner", "dp"]
        self.assertEqual(
            self.train("one.onnx", *options)["losses"], self.train("two.onnx", *options)["losses"]
        )

    def test_a_plan_is_for_its_sizes(self):
        mlp(self.path / "mlp.onnx")
        self.train("mlp.onnx", "--dim", "batch=8", "--loss", "mse")
        plan = json.loads((self.path / "plan.json").read_text())
        self.assertEqual(plan["model_binding"]["dims"], {"batch": 8})
        plan["model_binding"]["dims"]["batch"] = 16
        (self.path / "plan.json").write_text(json.dumps(plan))
        refused = self.shardplan("run", "plan.json")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("plan", refused.stderr)

    def test_what_is_missing_is_told(self):
        mlp(self.path / "mlp.onnx")
        for options, message in (
            ([], "leaves the dimension batch open; give each a size: --dim batch=N"),
            (["--dim", "batch=8"], "no scalar loss; give one with --loss"),
            (["--dim", "batsh=8"], "leaves the dimension batch open"),
            (["--dim", "batch=8", "--loss", "crossentropy"], "did you mean 'cross_entropy'?"),
            (["--dim", "batch=8", "--loss", "mse", "--target", "x"], "has an input 'x' already"),
            (["--dim", "batch=zero"], "is 'batch=zero'"),
        ):
            with self.subTest(message):
                refused = self.shardplan("profile", "mlp.onnx", *options)
                self.assertEqual(refused.returncode, 2)
                self.assertIn(message, refused.stderr)


if __name__ == "__main__":
    unittest.main()

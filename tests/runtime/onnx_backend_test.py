"""The cases of onnx.backend.test, evaluated forward on one device, against their shipped outputs.

With --meshes, for example 4,2x2: every op in every strategy over these meshes, in one process, held
against the op on whole tensors, and the outputs put together from parts against the shipped ones; of
the networks of `light` also what goes into their last softmax, in float and in double, against one
device (class Network).

Counts by kind: equal, refused (one clear message of the reader), random (results that are drawn:
only their types are compared), failed (a kernel's message on the case's data) and wrong. Wrong,
failed and crashed must be zero. With --table the operators of the node cases are listed too;
with --show NAME one case is run and told.
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import numpy
import onnx
import onnx.numpy_helper
import onnx_rounding

EVAL = os.environ.get("ONNX_EVAL", "build/rooms/runtime/onnx_eval")
DTYPES = {
    "bool": "bool",
    "u8": "uint8",
    "i32": "int32",
    "i64": "int64",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
}
# Units in the last place of the largest element: cases of narrow types round after every step.
NARROW = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
# Inputs that must be known when a model is read become initializers, as exporters write them.
MUST_BE_KNOWN = re.compile(r"needs its operand '([^']*)'")
OPEN = re.compile(r"leaves the dimensions? ")


def is_random(name):
    return "dropout" in name and "train" in name or "bernoulli" in name or "random" in name


class Evaluator:
    """A process of onnx_eval, started anew after a crash."""

    def __init__(self, meshes, *options):
        self.process, self.meshes, self.options = None, meshes, options

    def run(self, folder):
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [EVAL, *self.options, *self.meshes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        try:
            self.process.stdin.write(f"{folder}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.process.wait()
            return ["crashed", self.process.stderr.read()[-300:]]
        return line.rstrip("\n").split("\t")


def read_output(folder, index, text):
    dtype, shape = re.fullmatch(r"(\w+)\[([\d,]*)\]", text).groups()
    sizes = [int(size) for size in shape.split(",") if size]
    raw = (folder / f"output_{index}.bin").read_bytes()
    if dtype == "bf16":
        wide = numpy.frombuffer(raw, dtype="uint16").astype("uint32") << 16
        return wide.view("float32").reshape(sizes), "bfloat16"
    return numpy.frombuffer(raw, dtype=DTYPES[dtype]).reshape(sizes), DTYPES[dtype]


def as_array(value):
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    return numpy.asarray(value)


class Case:
    def __init__(self, name, model, data, rtol=1e-3, atol=1e-7):
        self.name, self.model, self.data = name, model, data
        self.rtol, self.atol = rtol or 1e-3, atol or 1e-7
        self.strategies, self.complaints = collections.Counter(), []

    def run(self, evaluator):
        """(state, message); the first data set that is not equal tells."""
        for inputs, outputs in self.data:
            state, message = self.run_set(evaluator, inputs, outputs)
            if state != "equal":
                return state, message
        return "equal", ""

    def run_set(self, evaluator, inputs, outputs):
        if any(isinstance(value, (list, dict)) or value is None for value in [*inputs, *outputs]):
            return "refused", "sequences, maps and optional values are not supported"
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        initializers = {tensor.name for tensor in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in initializers]
        values = dict(zip(names, (as_array(value) for value in inputs)))
        for name in [name for name, value in values.items() if self.is_list_of_nothing(value)]:
            self.make_known(model, name, values)
        while True:
            state, *rest = self.evaluate(evaluator, model, values)
            known = MUST_BE_KNOWN.search(rest[0]) if state == "refused" else None
            if known is None or known.group(1) not in values:
                break
            self.make_known(model, known.group(1), values)
        if state != "ok":
            return state, rest[0] if rest else ""
        if self.complaints:
            return "wrong", self.complaints[0]
        return self.compare(rest, [as_array(value) for value in outputs])

    @staticmethod
    def is_list_of_nothing(value):
        return value.shape == (0,) and value.dtype == numpy.int64

    @staticmethod
    def make_known(model, name, values):
        model.graph.initializer.append(onnx.numpy_helper.from_array(values.pop(name), name))

    def evaluate(self, evaluator, model, values):
        with tempfile.TemporaryDirectory() as folder:
            self.folder = pathlib.Path(folder)
            (self.folder / "model.onnx").write_bytes(model.SerializeToString())
            (self.folder / "dims.txt").write_text(self.dims(model, values))
            for index, value in enumerate(values.values()):
                contiguous = numpy.ascontiguousarray(value)
                (self.folder / f"input_{index}.bin").write_bytes(contiguous.tobytes())
            state, *rest = evaluator.run(folder)
            strategies = self.folder / "strategies.txt"
            if strategies.exists():
                self.count_strategies(strategies.read_text().splitlines())
            if state == "ok":
                self.got = [read_output(self.folder, i, text) for i, text in enumerate(rest)]
            return state, *rest

    def count_strategies(self, lines):
        numbers = map(int, lines[0].split())
        self.strategies.update(dict(zip(["ops", "repeated", "strategies", "wrong"], numbers)))
        self.complaints += lines[1:]

    @staticmethod
    def dims(model, values):
        lines = {}
        for info in model.graph.input:
            if info.name not in values:
                continue
            for index, dim in enumerate(info.type.tensor_type.shape.dim):
                if not dim.HasField("dim_value"):
                    name = dim.dim_param or f"{info.name}.{index}"
                    lines[name] = values[info.name].shape[index]
        return "".join(f"{name} {size}\n" for name, size in lines.items())

    def compare(self, types, outputs):
        for index, want in enumerate(outputs):
            got, dtype = self.got[index]
            if got.shape != want.shape or dtype != str(want.dtype):
                return "wrong", f"output {index} is {types[index]}, not {want.dtype}{want.shape}"
            if is_random(self.name):
                continue
            wide = want.astype("float32") if dtype == "bfloat16" else want
            narrow = NARROW.get(dtype, 0)
            finite = numpy.abs(wide[numpy.isfinite(wide)].astype("float64"))
            rtol = max(self.rtol, narrow)
            atol = max(self.atol, narrow * numpy.max(finite, initial=0))
            if not numpy.allclose(got, wide, rtol=rtol, atol=atol, equal_nan=True):
                worst = numpy.max(numpy.abs(got.astype("float64") - wide.astype("float64")))
                return "wrong", f"output {index} differs by {worst:.3g}"
        return ("random" if is_random(self.name) else "equal"), ""


class Network(Case):
    """A network of `light`.

    Five of them have logits of 4e12 to 4e31, all equal, in front of their softmax: its results are 0.001
    each where 1,000 logits are rounded alike, and anything else where they are not, which parts need not
    do. Where the outputs put together from parts differ from the shipped ones, they must be the softmax of
    the parts' own logits. Always, the logits must be those of one device, up to the difference that adding
    in another order can make (onnx_rounding.bound), in float and again in double.
    """

    def run(self, evaluator):
        state, message = super().run(evaluator)
        if not evaluator.meshes or self.complaints or state not in ("equal", "wrong"):
            return state, message
        outputs, types = self.got[0]
        model, cut = onnx_rounding.logits(self.model)
        told = []
        for dtype in ("float64", "float32"):
            whole = self.logits(Evaluator([]), model, dtype)
            parts = self.logits(Evaluator(evaluator.meshes, "--one"), model, dtype)
            if self.complaints:
                return "wrong", self.complaints[0]
            if whole is None or parts is None:
                return "failed", f"the logits in {dtype} have no values"
            off, allowed = onnx_rounding.difference(parts, whole), onnx_rounding.bound(model, dtype)
            told.append(f"{dtype} logits of {whole.max():.3g} are off by {off:.2g} of that, rounding by {allowed:.2g}")
            if off > allowed:
                return "wrong", told[-1]
        if state == "wrong":
            want = onnx_rounding.softmax(parts)
            close = outputs.shape == want.shape and numpy.allclose(outputs, want, rtol=self.rtol, atol=self.atol)
            if not (cut and types == "float32" and close):
                return "wrong", message
            told.append(f"{message} from the shipped one, as the softmax of these logits does")
        return "equal", "; ".join(told)

    def logits(self, evaluator, model, dtype):
        model = onnx_rounding.in_double(model) if dtype == "float64" else model
        initializers = {tensor.name for tensor in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in initializers]
        values = {name: value.astype(dtype) for name, value in zip(names, self.data[0][0])}
        counted = self.strategies.copy()
        state, *_ = self.evaluate(evaluator, model, values)
        self.strategies = counted  # of the model itself
        evaluator.process.kill()
        return self.got[0][0] if state == "ok" else None


def node_cases():
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(None):
        yield Case(case.name, case.model, case.data_sets, case.rtol, case.atol)


def read_proto(path, model_value):
    if not model_value.type.HasField("tensor_type"):
        return []
    return onnx.load_tensor(path)


def folder_cases(kind):
    from onnx.backend.test.loader import load_model_tests

    for case in load_model_tests(kind=kind):
        folder = pathlib.Path(case.model_dir)
        model = onnx.load(folder / "model.onnx")
        data = []
        for sets in sorted(folder.glob("test_data_set*")):
            count = len(list(sets.glob("input_*.pb")))
            results = len(list(sets.glob("output_*.pb")))
            inputs = [read_proto(sets / f"input_{i}.pb", model.graph.input[i]) for i in range(count)]
            outputs = [
                read_proto(sets / f"output_{i}.pb", model.graph.output[i]) for i in range(results)
            ]
            data.append((inputs, outputs))
        yield Case(case.name, model, data, case.rtol, case.atol)


def light_cases():
    folder = pathlib.Path(onnx.__file__).parent / "backend/test/data/light"
    for path in sorted(folder.glob("*.onnx")):
        model = onnx.load(path)
        initializers = {tensor.name for tensor in model.graph.initializer}
        inputs = []
        for info in model.graph.input:
            if info.name not in initializers:
                shape = [dim.dim_value or 1 for dim in info.type.tensor_type.shape.dim]
                count = int(numpy.prod(shape))
                inputs.append((numpy.arange(count).reshape(shape) / count).astype("float32"))
        outputs = [onnx.load_tensor(str(path)[: -len(".onnx")] + "_output_0.pb")]
        yield Network(path.stem, model, [(inputs, outputs)], 1e-3, 1e-5)


KINDS = {
    "node": node_cases,
    "pytorch-operator": lambda: folder_cases("pytorch-operator"),
    "pytorch-converted": lambda: folder_cases("pytorch-converted"),
    "simple": lambda: folder_cases("simple"),
    "light": light_cases,
}
STATES = ["equal", "random", "refused", "failed", "wrong", "crashed"]


def print_table(table):
    """Operators of the node cases with one node: how many of their cases are equal."""
    supported, refused = [], []
    for op, counts in sorted(table.items()):
        equal, total = counts["equal"] + counts["random"], sum(counts.values())
        if equal:
            supported.append(f"{op} {equal}" + ("" if equal == total else f" of {total}"))
        else:
            refused.append(f"{op} {total}")
    print("Supported: " + ", ".join(supported) + ".\n")
    print("Refused: " + ", ".join(refused) + ".")


def operators_of(case):
    return sorted({node.op_type for node in case.model.graph.node})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--show", help="part of the name of cases to run and tell")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--meshes", help="every strategy over these, such as 4,2x2")
    parser.add_argument("--refusals", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    evaluator = Evaluator(options.meshes.split(",") if options.meshes else [])
    strategies = collections.Counter()
    bad = []
    table = collections.defaultdict(collections.Counter)
    reasons = collections.Counter()
    print(f"{'kind':20}{'cases':>8}" + "".join(f"{state:>9}" for state in STATES))
    for kind in options.kind or KINDS:
        counts = collections.Counter()
        for case in KINDS[kind]():
            if options.show and options.show not in case.name:
                continue
            state, message = case.run(evaluator)
            counts[state] += 1
            strategies.update(case.strategies)
            if kind == "node" and len(case.model.graph.node) == 1:
                table[case.model.graph.node[0].op_type][state] += 1
            if state in ("failed", "wrong", "crashed"):
                bad.append(f"{state}: {case.name} ({', '.join(operators_of(case))}): {message}")
            if state == "refused":
                reasons[re.sub(r"^/tmp/[^:]*: (node '[^']*' )?", "", message)] += 1
            if options.show:
                print(f"{case.name}: {state} {message}")
        row = "".join(f"{counts[state]:>9}" for state in STATES)
        print(f"{kind:20}{sum(counts.values()):>8}{row}", flush=True)
    if options.meshes:
        print(
            f"{strategies['ops']} ops, {strategies['repeated']} of them like one before in their model; "
            f"{strategies['strategies']} strategies over {options.meshes}, {strategies['wrong']} wrong"
        )
    for line in bad:
        print(line)
    if options.refusals:
        for reason, count in reasons.most_common():
            print(f"{count:5} {reason}")
    if options.table:
        print_table(table)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

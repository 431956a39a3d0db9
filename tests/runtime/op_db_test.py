"""PyTorch's own operator database as models: forward, gradients, and every op in every strategy.

Each sample of torch.testing's op_db becomes a module whose floating operands that may have a gradient
are parameters and whose other operands are inputs. It is exported, read, and its training step is
evaluated by step_eval: results and gradients on one device against PyTorch's own, and every op of the
step in every strategy that its axis map allows, over meshes of 2, 4, 2x2 and 2x3 devices, against the
op on whole tensors. All in fp64 (in int64 where an operator has no fp64).

Counts by sample: equal; random (results that are drawn or not defined: only their types are compared);
refused (one clear message of the front end); unexported (torch.export itself fails); failed (a kernel's
message) and wrong. Wrong, failed and crashed must be zero.

    op_db_test.py [--short] [--samples N] [--part K/N] [--refusals] [--verbose] [OPERATOR ...]

All samples take hours: --part 1/8 to 8/8 deal the entries out, so that parts can be run one by one.
"""

import argparse
import collections
import contextlib
import importlib.util
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

STEP_EVAL = os.environ.get("STEP_EVAL", "build/rooms/runtime/step_eval")
MESHES = ["2", "4", "2x2", "2x3"]
CHUNK = 16  # samples that share a model
TOLERANCE = 1e-9
DTYPES = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
}
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
EMPTY = "a tensor without elements"  # refused by every front end (tests/frontends); not exported here
IN_PLACE = {"uniform", "log_normal", "geometric", "exponential", "cauchy", "normal", "bernoulli"}
STATES = ["equal", "random", "refused", "unexported", "failed", "wrong", "crashed"]
BAD = {"failed", "wrong", "crashed"}
# What `make check` runs: one or more operators of every family, and their first samples.
SHORT = """add matmul einsum softmax nn.functional.layer_norm nn.functional.conv2d cumsum gather sort
nn.functional.embedding nn.functional.scaled_dot_product_attention index_add linalg.inv var roll
nn.functional.max_pool2d nn.functional.cross_entropy where unsafe_split flip nn.functional.pad sgn log_normal
nn.functional.prelu native_layer_norm nn.functional.embedding_bag arange nn.functional.batch_norm""".split()
SHORT_SAMPLES = 8


def load_exporter():
    path = pathlib.Path(__file__).resolve().parents[2] / "shardplan/python/shardplan/_export.py"
    spec = importlib.util.spec_from_file_location("shardplan_export", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.export


export = load_exporter()


def forget_seeds():
    """Entries that draw numbers set a seed before; here their draws shall show."""
    for module in list(sys.modules.values()):
        if hasattr(module, "wrapper_set_seed") and module.__name__.startswith("torch.testing"):
            module.wrapper_set_seed = unseeded
    for entry in op_db:
        if getattr(entry.gradcheck_wrapper, "__name__", "") == "wrapper_set_seed":
            entry.gradcheck_wrapper = unseeded


def unseeded(op, *args, **kwargs):
    return op(*args, **kwargs)


def operators():
    """(name, entry, dtype, whether it has gradients) of all of op_db, in its order."""
    for entry in op_db:
        name = entry.name + (f" ({entry.variant_test_name})" if entry.variant_test_name else "")
        dtypes = entry.supported_dtypes("cpu")
        dtype = torch.float64 if torch.float64 in dtypes else torch.int64
        gradients = entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
        yield name, entry, dtype if dtype in dtypes else None, gradients and dtype == torch.float64


def tensors_of(tree):
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Sample(torch.nn.Module):
    """One sample: `forward` writes the results into buffers and returns a scalar that weighs them."""

    def __init__(self, name, entry, sample):
        super().__init__()
        self.name, self.entry, self.process = name, entry, sample.output_process_fn_grad
        self.given, self.places = [], []  # inputs; what each tensor of the sample is
        self.kept = {}  # first content of buffers that the operator may change
        operands = (sample.input, sample.args, sample.kwargs)
        leaves, self.tree = pytree.tree_flatten(operands)
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        known = {}
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                if leaf.layout != torch.strided or leaf.is_nested:
                    raise TypeError("an operand is sparse or nested")
                if id(leaf) not in known:
                    known[id(leaf)] = self.add_operand(leaf.detach().clone(), leaf.requires_grad)
                self.places.append((place, known[id(leaf)]))
        self.random = entry.name in UNDEFINED
        with torch.no_grad():
            before = torch.get_rng_state()
            results = tensors_of(self.run(self.given))
            self.random |= not torch.equal(before, torch.get_rng_state())
        self.count = len(results)
        for i, result in enumerate(results):
            self.register_buffer(f"r{i}", torch.zeros_like(plain(result)).contiguous())
        generator = torch.Generator().manual_seed(3)
        for i, result in enumerate(self.differentiable(self.run(self.given))):
            weight = torch.randn(plain(result).shape, generator=generator, dtype=torch.float64)
            self.register_buffer(f"w{i}", weight)

    def add_operand(self, tensor, trained):
        if trained and tensor.is_floating_point():
            name = f"p{len(list(self.parameters()))}"
            self.register_parameter(name, torch.nn.Parameter(tensor))
            return name
        if "batch_norm" in self.entry.name:  # running statistics
            name = f"b{len(self.kept)}"
            self.register_buffer(name, tensor)
            self.kept[name] = tensor.clone()
            return name
        self.given.append(tensor)
        return len(self.given) - 1

    def run(self, given):
        leaves = list(self.leaves)
        for place, what in self.places:
            leaves[place] = getattr(self, what) if isinstance(what, str) else given[what]
            if self.entry.name in IN_PLACE:
                leaves[place] = leaves[place].clone()
        operand, args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        return self.entry.gradcheck_wrapper(self.entry.op, operand, *args, **kwargs)

    def restore(self):
        for name, content in self.kept.items():
            getattr(self, name).copy_(content)

    def is_empty(self):
        held = [*self.parameters(), *self.buffers(), *self.given]
        return any(tensor.numel() == 0 for tensor in held)

    def differentiable(self, results):
        processed = tensors_of(self.process(results))
        return [t for t in processed if t.requires_grad and (t.is_floating_point() or t.is_complex())]

    def forward(self, given):
        results = self.run(given)
        total = torch.zeros((), dtype=torch.float64)
        for i, result in enumerate(self.differentiable(results)):
            total = total + (plain(result).double() * getattr(self, f"w{i}")).sum()
        for i, result in enumerate(tensors_of(results)):
            getattr(self, f"r{i}").copy_(plain(result.detach()))
        return total


class Chunk(torch.nn.Module):
    """Samples side by side in one model; the anchor is trained where nothing else is."""

    def __init__(self, samples):
        super().__init__()
        self.s = torch.nn.ModuleList(samples)
        self.anchor = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def inputs(self):
        return {f"i{s}_{i}": t for s, one in enumerate(self.s) for i, t in enumerate(one.given)}

    def forward(self, **inputs):
        total = self.anchor.sum()
        for s, one in enumerate(self.s):
            total = total + one([inputs[f"i{s}_{i}"] for i in range(len(one.given))])
        return total


def plain(tensor):
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def difference(got, want):
    """What is not equal, or an empty text."""
    if got.dtype != want.dtype or got.numel() != want.numel():
        return f"is {got.dtype} of {got.numel()} elements, not {want.dtype}{list(want.shape)}"
    got = got.reshape(want.shape)
    if not want.is_floating_point():
        return "" if torch.equal(got, want) else f"is {got.flatten()[:4].tolist()}, not {want.flatten()[:4].tolist()}"
    got, want = got.double(), want.double()
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        if not torch.equal(test(got), test(want)):
            return "has infinities or NaNs at other places"
    finite = want[torch.isfinite(want)]
    size = max(1.0, finite.abs().max().item()) if finite.numel() else 1.0
    worst = torch.nan_to_num(got - want, 0, 0, 0).abs().max().item() if want.numel() else 0.0
    bound = {torch.float32: 1e-5}.get(want.dtype, TOLERANCE) * size
    return "" if worst <= bound else f"differs by {worst:.3g} (of {size:.3g})"


class Evaluator:
    """A process of step_eval, started anew after a crash."""

    def __init__(self, meshes):
        self.meshes, self.process = meshes, None
        self.errors = tempfile.TemporaryFile(mode="w+")  # PyTorch's warnings would fill a pipe

    def run(self, folder):
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [STEP_EVAL, *self.meshes],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
            )
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            return ["crashed", self.errors.read()[-300:].replace("\n", " ")]
        return line.rstrip("\n").split("\t")


class Bench:
    def __init__(self, meshes, verbose):
        self.evaluator, self.verbose = Evaluator(meshes), verbose
        self.states = collections.Counter()
        self.reasons = collections.Counter()
        self.totals = collections.Counter()
        self.calls = collections.Counter()
        self.bad = []

    def run_operator(self, name, entry, dtype, gradients, limit):
        """States of the operator's samples."""
        self.here = collections.Counter()
        self.called = set()
        samples = []
        for number, sample in enumerate(entry.sample_inputs("cpu", dtype, requires_grad=gradients)):
            if limit and number == limit:
                break
            try:
                one = Sample(f"{name} #{number}", entry, sample)
                if one.is_empty():
                    self.note("refused", one.name, EMPTY)
                else:
                    samples.append(one)
            except Exception as error:
                self.note("unexported", f"{name} #{number}", first_line(error))
        for begin in range(0, len(samples), CHUNK):
            self.run_chunk(samples[begin : begin + CHUNK])
        for call in self.called:
            self.calls[call] += 1
        self.states.update(self.here)
        return self.here

    def run_chunk(self, samples):
        with tempfile.TemporaryDirectory(prefix="op_db-") as folder:
            folder = pathlib.Path(folder)
            state, message = self.evaluate(samples, folder)
            if state == "ok":
                return
        if len(samples) > 1:
            middle = len(samples) // 2
            self.run_chunk(samples[:middle])
            self.run_chunk(samples[middle:])
        else:
            self.note(state, samples[0].name, message)

    def evaluate(self, samples, folder):
        chunk = Chunk(samples)
        for sample in samples:
            sample.restore()
        inputs = chunk.inputs()
        try:
            with contextlib.redirect_stderr(None):
                export(chunk, inputs, folder / "model.pt2")
        except Exception as error:
            return "unexported", first_line(error)
        raw = b"".join(t.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for t in inputs.values())
        (folder / "inputs.bin").write_bytes(raw)
        state, *rest = self.evaluator.run(folder)
        if state != "ok":
            return state, rest[0]
        for key, count in zip(["ops", "repeated", "strategies", "wrong"], map(int, rest[:4])):
            self.totals[key] += count
        self.called |= set(rest[4].split())
        self.compare(samples, chunk, inputs, folder)
        return "ok", ""

    def compare(self, samples, chunk, inputs, folder):
        got = read_values(folder)
        complaints = (folder / "complaints.txt").read_text().splitlines()
        for parameter in chunk.parameters():
            parameter.grad = None
        chunk(**inputs).backward()
        for index, sample in enumerate(samples):
            prefix = f"s.{index}."
            wrong = [c for c in complaints if c.startswith(prefix[:-1] + ":")]
            complaints = [c for c in complaints if c not in wrong]
            if not sample.random:
                wrong += self.compare_sample(sample, prefix, got)
            for text in wrong[:3]:
                self.bad.append(f"{sample.name}: {text}")
            self.note("wrong" if wrong else "random" if sample.random else "equal", sample.name, wrong[0] if wrong else "")
        for text in complaints:  # of ops that belong to no sample
            self.bad.append(f"{samples[0].name} and others: {text}")

    @staticmethod
    def compare_sample(sample, prefix, got):
        wrong = []
        for name, parameter in sample.named_parameters():
            gradient = got.get(prefix + name)
            want = parameter.grad
            if gradient is None:
                if want is not None and want.abs().max().item() > 0:
                    wrong.append(f"{name} has no gradient")
            else:
                text = difference(gradient, torch.zeros_like(parameter) if want is None else want)
                if text:
                    wrong.append(f"gradient of {name} {text}")
        for i in range(sample.count):
            result = got.get(f"{prefix}r{i}")
            text = "is missing" if result is None else difference(result, getattr(sample, f"r{i}"))
            if text:
                wrong.append(f"result {i} {text}")
        for name, before in sample.kept.items():
            content = got.get(prefix + name, before)  # nothing may have been written
            text = difference(content, getattr(sample, name))
            if text:
                wrong.append(f"buffer {name} {text}")
        return wrong

    def note(self, state, name, message):
        self.here[state] += 1
        if state in ("failed", "crashed"):
            self.bad.append(f"{name}: {state}: {message}")
        if state in ("refused", "unexported"):
            text = re.sub(r"/tmp/\S*model.pt2: (layer s\.\d+: )?", "", message)
            self.reasons[f"{state}: {re.sub(r'#[0-9]+', '#', text)[:150]}"] += 1
        if self.verbose:
            print(f"  {name}: {state} {message}", flush=True)


def read_values(folder):
    raw = (folder / "values.bin").read_bytes()
    values, offset = {}, 0
    for line in (folder / "values.txt").read_text().splitlines():
        name, text = line.split("\t")
        dtype, shape = re.fullmatch(r"(\w+)\[([\d,]*)\]", text).groups()
        sizes = [int(size) for size in shape.split(",") if size]
        count = 1
        for size in sizes:
            count *= size
        values[name] = torch.frombuffer(bytearray(raw), dtype=DTYPES[dtype], count=count, offset=offset).reshape(sizes)
        offset += count * DTYPES[dtype].itemsize
    return values


def first_line(error):
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200] if text else ''}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", help="names in op_db; default: all")
    parser.add_argument("--short", action="store_true", help="few operators, few samples")
    parser.add_argument("--samples", type=int, default=0, help="at most so many of each operator")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth entry from the Kth on")
    parser.add_argument("--refusals", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    forget_seeds()
    chosen = set(options.operators or (SHORT if options.short else []))
    limit = SHORT_SAMPLES if options.short else options.samples
    bench = Bench(MESHES, options.verbose)
    count = without = 0
    part = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", options.part)
    if not part or int(part[1]) > int(part[2]):
        parser.error(f"--part {options.part}: write K/N with 1 <= K <= N")
    first, step = map(int, part.groups())
    for name, entry, dtype, gradients in itertools.islice(operators(), first - 1, None, step):
        if chosen and name not in chosen and entry.name not in chosen:
            continue
        count += 1
        if dtype is None:
            without += 1
            bench.reasons["unexported: the operator takes neither fp64 nor int64"] += 1
            continue
        began = time.monotonic()
        torch.manual_seed(0)
        here = bench.run_operator(name, entry, dtype, gradients, limit)
        if not options.short:
            states = ", ".join(f"{here[s]} {s}" for s in STATES if here[s])
            print(f"{name:50} {states}  {time.monotonic() - began:.1f} s", flush=True)
    print(f"\n{count} operators, {sum(bench.states.values())} samples: "
          + ", ".join(f"{bench.states[s]} {s}" for s in STATES))
    print(f"{without} operators have neither fp64 nor int64 samples")
    print(f"{bench.totals['ops']} ops, {bench.totals['repeated']} of them like one before; "
          f"{bench.totals['strategies']} strategies over {', '.join(MESHES)}, {bench.totals['wrong']} wrong")
    for line in bench.bad:
        print(line)
    if options.refusals:
        for reason, number in bench.reasons.most_common():
            print(f"{number:6} {reason}")
        print("called by name: " + ", ".join(f"{c} {n}" for c, n in bench.calls.most_common()))
    return 1 if bench.bad or any(bench.states[s] for s in BAD) else 0


if __name__ == "__main__":
    sys.exit(main())

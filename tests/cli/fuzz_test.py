"""Random damage to every kind of file, and files made to break a reader: an error in one line, or a
result, and never a crash.

SHARDPLAN_FUZZ_RUNS sets the number of damaged files of each kind (30), SHARDPLAN_FUZZ_SEED the first
seed (0). A failure names the seed and the file, which is kept in the folder that it names.
"""

import gzip
import io
import json
import os
import pathlib
import random
import resource
import shutil
import subprocess
import tempfile
import unittest
import zipfile

from program import MLP, PROGRAM, CommandLineTest

RUNS = int(os.environ.get("SHARDPLAN_FUZZ_RUNS", "30"))
SEED = int(os.environ.get("SHARDPLAN_FUZZ_SEED", "0"))
ODD = [None, True, -1, 0, 1, 2**31, 2**63, -(2**63), 1e300, 0.5, "", "x", "data", [], {}, [[]], [1]]

CLUSTER = """name: two
device:
  name: small
  memory: 8GiB
  peak_flops: {f32: 1e12, f64: 5e11}
  memory_bandwidth: 1e11
levels:
  - {name: wire, fanout: 2, bandwidth: 1e9, latency: 1e-5}
"""

GRAPH = """graph "" microbatches=1
%0 = parameter "w" f32[{columns},{inner}] trainable
%1 = input "x" f32[{rows},{inner}]
%2 = einsum(%1, %0) {{equation="bk,nk->bn"}} : f32[{rows},{columns}] layer="up"
%3 = sum(%2) {{dims=[0,1], keepdim=false}} : f32[]
output %3
"""
NUMBERS = ["nan", ".nan", ".inf", "-1", "1e400", "[1]", "~", "''", "0"]



def graph(columns=4, inner=6, rows=8):
    return GRAPH.format(columns=columns, inner=inner, rows=rows)


def damage_bytes(rng, data):
    """A few places overwritten, cut out or doubled."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        length = rng.choice([1, 1, 2, 8, 64])
        kind = rng.randrange(3)
        if kind == 0:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 1:
            del data[at : at + length]
        else:
            data[at:at] = data[at : at + length]
    return bytes(data)


def damage_json(rng, text):
    """One value anywhere in it replaced by an odd one, or dropped."""
    whole = json.loads(text)
    places = []

    def collect(node):
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                collect(node[key])

    collect(whole)
    node, key = rng.choice(places)
    if rng.randrange(4) == 0:
        del node[key]
    else:
        node[key] = rng.choice(ODD)
    return json.dumps(whole).encode()


def damage_model(rng, data):
    """The archive with one value of its model damaged: checksums are right again."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("models/model.json"):
                content = damage_json(rng, content)
            target.writestr(name, content)
    return out.getvalue()


class FuzzTest(CommandLineTest):
    def check(self, seed, path, words):
        try:
            done = subprocess.run(
                [PROGRAM, *words], cwd=self.folder, capture_output=True, timeout=60, check=False
            )
            code, stderr = done.returncode, done.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired:
            code, stderr = "no end within 60 s", ""
        said = [line for line in stderr.split("\n") if line]
        if code in (0, 1, 2) and (code == 0 or (said and said[-1].startswith("error: "))):
            return
        kept = pathlib.Path(tempfile.mkdtemp(prefix="shardplan_fuzz_")) / path.name
        shutil.copy(path, kept)
        raise AssertionError(f"seed {seed}, {kept}, {words}: {code}\n{stderr[:2000]}")

    def fuzz(self, name, original, words, damages):
        for seed in range(SEED, SEED + RUNS):
            rng = random.Random(f"{name}{seed}")
            path = self.folder / name
            path.write_bytes(rng.choice(damages)(rng, original))
            self.check(seed, path, words)

    def test_plans(self):
        plan = self.make_plan().read_bytes()
        for command in ("simulate", "check-plan"):
            self.fuzz("damaged.json", plan, [command, "damaged.json"], [damage_bytes, damage_json])

    def test_problems(self):
        words = ["solve", "damaged.json", "--solver", "local", "--time-limit", "0.2"]
        model = ["problem", "mlp:layers=1,hidden=8,batch=4", "--cluster", "local:2"]
        self.succeed(*model, "--mesh", "data=2", "-o", "problem.json")
        problem = (self.folder / "problem.json").read_bytes()
        self.fuzz("damaged.json", problem, words, [damage_bytes, damage_json])
        self.fuzz("damaged.json", gzip.compress(problem), words, [damage_bytes])

    def test_clusters(self):
        words = ["plan", MLP, "--cluster", "two.yaml", "--planner", "dp"]
        (self.folder / "two.yaml").write_text(CLUSTER)
        self.succeed(*words)
        self.fuzz("two.yaml", CLUSTER.encode(), words, [damage_bytes])

    def test_graphs(self):
        for words in (["profile", "model.sp"], ["plan", "model.sp", "--cluster", "local:2"]):
            self.fuzz("model.sp", graph().encode(), words, [damage_bytes])

    def test_archives(self):
        fixtures = pathlib.Path(__file__).parent.parent / "frontends/fixtures"
        dims = ["--dim", "batch=3", "--dim", "seq=5"]
        for name, options in (("batch_norm", []), ("gpt2_dynamic", dims), ("in_place", [])):
            archive = (fixtures / f"{name}.pt2").read_bytes()
            (self.folder / "model.pt2").write_bytes(archive)
            self.succeed("profile", "model.pt2", *options)
            words = ["profile", "model.pt2", *options]
            self.fuzz("model.pt2", archive, words, [damage_bytes, damage_model])


class HostileTest(CommandLineTest):
    """Inputs made to break a reader: each ends with one line, soon, in little memory."""

    def refuse(self, words, *parts):
        def little_memory():
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))

        self.reject(words, 2, *parts, timeout=60, preexec_fn=little_memory)

    def cluster(self, text, *parts):
        (self.folder / "two.yaml").write_text(text)
        self.refuse(["plan", MLP, "--cluster", "two.yaml", "--planner", "dp"], "two.yaml", *parts)

    def model(self, text, *parts):
        (self.folder / "model.sp").write_text(text)
        self.refuse(["profile", "model.sp"], "model.sp", *parts)

    def plan(self, text, *parts):
        (self.folder / "plan.json").write_text(text)
        self.refuse(["simulate", "plan.json"], "plan.json", *parts)

    def test_numbers_of_a_cluster(self):
        for good, name in (
            ("8GiB", "memory"),
            ("1e12", "peak_flops"),
            ("memory_bandwidth: 1e11", "memory_bandwidth"),
            ("fanout: 2", "fanout"),
            ("bandwidth: 1e9", "bandwidth"),
            ("latency: 1e-5", "latency"),
        ):
            key = good.split(": ")[0] + ": " if ": " in good else ""
            for number in NUMBERS:
                if name == "latency" and number == "0":
                    continue
                with self.subTest(name=name, number=number):
                    self.cluster(CLUSTER.replace(good, key + number), name)

    def test_yaml_that_grows(self):
        bomb = "name: &a [x,x,x,x,x,x,x,x,x]\n"
        for name in "bcdefghijkl":
            bomb += f"{name}: &{name} [{','.join(['*' + chr(ord(name) - 1)] * 9)}]\n"
        self.cluster(bomb)
        self.cluster(CLUSTER.replace("fanout: 2", "fanout: *x"), "anchor")
        self.cluster("levels: &a [*a]\ndevice: *a\n")
        for opening in ("[", "{a: ", "- ", "? "):
            self.cluster("a: " + opening * 1_000_000)

    def test_sizes_of_a_model(self):
        for sizes in (
            {"columns": 0},
            {"inner": 0},
            {"rows": -1},
            {"columns": 2**62},
            {"columns": 2**63 - 1},
            {"columns": 2**31, "inner": 2**31, "rows": 2**31},
        ):
            with self.subTest(**sizes):
                self.model(graph(**sizes), "dimensions must be at least 1", "fewer than 2^63 bytes")
        self.model(graph(columns=2**63), "does not fit 64 bits")
        self.model(graph(columns="9" * 1000), "does not fit 64 bits")
        self.model(graph(columns=",".join(["1"] * 100_000)), "at most 32")
        # Possible, though nothing runs it.
        for sizes in ({"columns": 1, "inner": 1, "rows": 1}, {"columns": 2**40}):
            (self.folder / "model.sp").write_text(graph(**sizes))
            self.succeed("profile", "model.sp")

    def test_text_that_is_no_graph(self):
        self.model(graph().replace("einsum(%1", "einsum(%2"), "before it is defined")
        self.model(graph().replace("[0,1]", "[" * 1_000_000), "expected an integer")
        self.model("%" * 1_000_000, "the first statement")
        constant = '%0 = constant "c" f32[1073741824,1024] data=elided\n'
        self.model('graph "" microbatches=1\n' + constant, "256 MiB")

    def test_numbers_and_depth_of_a_plan(self):
        whole = self.make_plan().read_text()
        plan = json.loads(whole)
        for number in ("NaN", "Infinity", "1e999", "-1e999"):
            text = whole.replace('"clip_norm": 0.0', f'"clip_norm": {number}')
            self.assertNotEqual(text, whole)
            with self.subTest(number):
                self.plan(text)
        for size in (0, -2, 2**62, 2**63, 1e300, None):
            plan["mesh"][0]["size"] = size
            with self.subTest(mesh=size):
                self.plan(json.dumps(plan), "mesh")
        depth = 1_000_000
        for text in (
            "[" * depth,
            '{"format":' * depth,
            whole.rstrip()[:-1] + ',"x":' + "[" * depth + "]" * depth + "}",
        ):
            self.plan(text)


if __name__ == "__main__":
    unittest.main()

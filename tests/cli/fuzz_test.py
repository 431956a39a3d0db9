"""Random damage to every kind of file: an error in one line, or a result, and never a crash.

SHARDPLAN_FUZZ_RUNS sets the number of damaged files of each kind (30), SHARDPLAN_FUZZ_SEED the first
seed (0). A failure names the seed and the file, which is kept in the folder that it names.
"""

import gzip
import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import unittest

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

    def test_archives(self):
        archives = sorted((pathlib.Path(__file__).parent.parent / "frontends").glob("**/*.pt2"))
        for archive in archives[:2]:
            self.fuzz("model.pt2", archive.read_bytes(), ["profile", "model.pt2"], [damage_bytes])


if __name__ == "__main__":
    unittest.main()

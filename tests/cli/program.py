"""Runs the program under test; what the tests of the command line share."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = os.environ.get("SHARDPLAN", str(ROOT / "build" / "shardplan"))
MLP = "mlp:layers=2,hidden=64,batch=8"


class CommandLineTest(unittest.TestCase):
    """A test in a folder of its own, which is the program's working directory."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="shardplan_cli_")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def run_program(self, *words, env=None, timeout=120, **more):
        return subprocess.run(
            [PROGRAM, *map(str, words)],
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **more,
        )

    def succeed(self, *words, **more):
        """Standard output of a run that has to end well."""
        done = self.run_program(*words, **more)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")
        return done.stdout

    def succeed_json(self, *words, **more):
        return json.loads(self.succeed(*words, "--json", **more))

    def reject(self, words, code, *parts, **more):
        """The one line on standard error of a run that has to end with `code`."""
        done = self.run_program(*words, **more)
        lines = done.stderr.splitlines()
        self.assertEqual(done.returncode, code, f"{words}: {done.stderr}")
        self.assertEqual(len(lines), 1, f"{words}: {done.stderr}")
        self.assertTrue(lines[0].startswith("error: "), lines[0])
        self.assertNotIn("internal error", lines[0])
        for part in parts:
            self.assertIn(str(part), lines[0])
        return done

    def interrupt(self, *words, after=0.3):
        """Exit code and standard output of a run that gets SIGINT once it has worked for `after`
        CPU seconds (and minds the signal), however slow the machine is."""
        with subprocess.Popen(
            [PROGRAM, *map(str, words)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as running:
            while running.poll() is None and not has_worked(running.pid, after):
                time.sleep(0.02)
            running.send_signal(signal.SIGINT)
            output, _ = running.communicate(timeout=60)
        return running.returncode, output

    def make_plan(self, name="plan.json", model=MLP, cluster="local:2", *words):
        self.succeed("plan", model, "--cluster", cluster, "-o", name, *words)
        return self.folder / name

    def files(self):
        return sorted(path.name for path in self.folder.iterdir())


def has_worked(pid, seconds):
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        times = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return True
    caught = int(re.search(r"SigCgt:\s*(\w+)", status).group(1), 16)
    worked = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
    return bool(caught >> (signal.SIGINT - 1) & 1) and worked >= seconds


def has_runtime():
    done = subprocess.run([PROGRAM, "run", "none"], capture_output=True, text=True, check=False)
    return "no runtime" not in done.stderr

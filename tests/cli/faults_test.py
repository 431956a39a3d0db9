"""Ranks that are killed, stopped or cut off at any moment of a run: the run ends within seconds with one
message that names the rank, and no process is left over. Needs a build with the runtime.

SHARDPLAN_FAULTS sets the number of random moments (20), SHARDPLAN_FUZZ_SEED the first seed (0)."""

import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from program import ROOT, MLP, PROGRAM, CommandLineTest, has_runtime

FAULTS = int(os.environ.get("SHARDPLAN_FAULTS", "20"))
SEED = int(os.environ.get("SHARDPLAN_FUZZ_SEED", "0"))
SECONDS = 10  # from the fault to the end of every process


def children_of(process):
    try:
        text = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


def is_there(process):
    """Whether the process runs: a zombie has ended."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# The tests of the command line run in any Python; torchrun needs the one with torch.
VENV = ROOT / ".venv" / "bin" / "python"
PYTHON = str(VENV) if VENV.exists() else sys.executable


@unittest.skipUnless(has_runtime(), "this build has no runtime")
class FaultsTest(CommandLineTest):
    def start(self, *words, env=None, **more):
        run = subprocess.Popen(
            [PROGRAM, "run", "plan.json", "--steps", "1000000", *words],
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **more,
        )
        self.addCleanup(run.stderr.close)
        return run

    def ranks_of(self, run, count):
        """Process ids of the ranks, as soon as all have been started."""
        deadline = time.monotonic() + 60
        ranks = []
        while len(ranks) < count and time.monotonic() < deadline:
            time.sleep(0.01)
            ranks = children_of(run.pid)
        self.assertEqual(len(ranks), count)
        return ranks

    def expect_end(self, run, ranks, since, seconds=SECONDS):
        """Standard error of a run that ends, with all its ranks, in time."""
        try:
            _, stderr = run.communicate(timeout=max(0.1, since + seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            for process in [run.pid, *ranks]:
                os.kill(process, signal.SIGKILL)
            self.fail(f"the run has not ended within {seconds} s")
        left = [rank for rank in ranks if is_there(rank)]
        self.assertEqual(left, [], "ranks are left over")
        return stderr

    def test_any_rank_at_any_moment(self):
        count = 3
        self.make_plan("plan.json", MLP, f"local:{count}")
        signals = [signal.SIGKILL] * 4 + [signal.SIGSEGV, signal.SIGTERM, signal.SIGSTOP]
        for seed in range(SEED, SEED + FAULTS):
            rng = random.Random(f"faults {seed}")
            rank, number = rng.randrange(count), rng.choice(signals)
            # Most of the first second is reading, meeting and setting up.
            delay = rng.choice([rng.uniform(0, 0.3), rng.uniform(0, 1.5), rng.uniform(1, 3)])
            words = rng.choice([[], ["--verify"], ["--json"]])
            with self.subTest(seed=seed, rank=rank, signal=number.name, delay=delay, words=words):
                run = self.start("--timeout", "5", *words)
                ranks = self.ranks_of(run, count)
                time.sleep(delay)
                os.kill(ranks[rank], number)
                stderr = self.expect_end(run, ranks, time.monotonic())
                self.assertEqual(run.returncode, 2, stderr)
                errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
                self.assertEqual(len(errors), 1, stderr)
                self.assertIn(f"rank {rank} ", errors[0])

    def test_launcher_takes_its_ranks_with_it(self):
        self.make_plan()
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number.name):
                run = self.start()
                ranks = self.ranks_of(run, 2)
                time.sleep(1)
                os.kill(run.pid, number)
                self.expect_end(run, [], time.monotonic())
                deadline = time.monotonic() + SECONDS
                while any(map(is_there, ranks)) and time.monotonic() < deadline:
                    time.sleep(0.05)
                self.assertFalse(any(map(is_there, ranks)))

    def test_launcher_whose_port_is_taken(self):
        self.make_plan()
        with socket.socket() as busy:
            busy.bind(("127.0.0.1", 0))
            busy.listen()
            port = str(busy.getsockname()[1])
            self.reject(["run", "plan.json"], 2, f"port {port}", env={"MASTER_PORT": port})

    def separate_ranks(self, timeout):
        """Two ranks without a launcher, as a cluster's own starter makes them."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return [
            self.start("--timeout", str(timeout), env={"RANK": str(rank), **where})
            for rank in range(2)
        ]

    def test_lost_peer_without_a_launcher(self):
        self.make_plan()
        for dead, number, how in (
            (0, signal.SIGKILL, "is gone"),
            (1, signal.SIGKILL, "is gone"),
            (1, signal.SIGSTOP, "does not answer"),
        ):
            with self.subTest(rank=dead, signal=number.name):
                runs = self.separate_ranks(timeout=5)
                time.sleep(3)
                os.kill(runs[dead].pid, number)
                stderr = self.expect_end(runs[1 - dead], [], time.monotonic())
                runs[dead].kill()
                runs[dead].communicate()
                self.assertEqual(runs[1 - dead].returncode, 2, stderr)
                self.assertIn(f"rank {dead} {how}", stderr)

    def test_peer_that_never_comes(self):
        self.make_plan()
        runs = self.separate_ranks(timeout=1)
        os.kill(runs[1].pid, signal.SIGKILL)
        stderr = self.expect_end(runs[0], [], time.monotonic(), seconds=20)
        runs[1].communicate()
        self.assertEqual(runs[0].returncode, 2)
        self.assertIn("error: rank 0: the ranks cannot meet", stderr)

    def test_peer_lost_under_torchrun(self):
        self.make_plan()
        run = subprocess.Popen(
            [
                *[PYTHON, "-m", "torch.distributed.run", "--standalone"],
                *["--nproc-per-node=2", "--no-python"],
                *[PROGRAM, "run", "plan.json", "--steps", "1000000"],
            ],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.addCleanup(run.stderr.close)
        ranks = self.ranks_of(run, 2)
        time.sleep(3)
        os.kill(ranks[1], signal.SIGKILL)
        stderr = self.expect_end(run, ranks, time.monotonic(), seconds=40)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("local_rank: 1", stderr)

    def test_full_disk_under_every_file(self):
        self.make_plan()
        full = self.folder / "full"

        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        for words in (
            ["plan", MLP, "--cluster", "local:2", "-o", "full"],
            ["simulate", "plan.json", "--trace", "full"],
            ["problem", MLP, "--cluster", "local:2", "--mesh", "data=2", "-o", "full"],
        ):
            with self.subTest(words[0]):
                self.reject(words, 2, "full", preexec_fn=small_files)
                self.assertFalse(full.exists())
                self.assertEqual(self.files(), ["plan.json"])

    def test_standard_output_that_takes_nothing(self):
        self.make_plan()
        for words in (["simulate", "plan.json"], ["plan", MLP, "--cluster", "local:2", "--json"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run(
                    [PROGRAM, *words], cwd=self.folder, stdout=full, stderr=subprocess.PIPE, text=True
                )
            self.assertEqual(done.returncode, 2, words)
            self.assertEqual(done.stderr.strip(), "error: cannot write to standard output")


if __name__ == "__main__":
    unittest.main()

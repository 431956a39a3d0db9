"""A rank that a signal stops: the others wait for it a few seconds, then end and name it."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import unittest

SCRIPT = pathlib.Path(__file__).parent / "stopped_script.py"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Stopped(unittest.TestCase):
    def setUp(self):
        world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT)],
                env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]

    def tearDown(self):
        for rank in self.ranks:
            rank.kill()
            rank.communicate()

    def wait_for_steps(self, count):
        for _ in range(count):
            line = self.ranks[0].stdout.readline()
            self.assertTrue(line, self.ranks[0].poll())

    def test_a_rank_that_stays_stopped_is_named(self):
        self.wait_for_steps(3)
        self.ranks[1].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        _, said = self.ranks[0].communicate(timeout=60)
        self.assertLess(time.monotonic() - began, 40)
        self.assertNotEqual(self.ranks[0].returncode, 0)
        self.assertIn("rank 1 was stopped by a signal and not continued", said)

    def test_a_short_stop_is_waited_for(self):
        self.wait_for_steps(3)
        self.ranks[1].send_signal(signal.SIGSTOP)
        time.sleep(2)
        self.ranks[1].send_signal(signal.SIGCONT)
        self.wait_for_steps(200)
        self.assertIsNone(self.ranks[0].poll())


if __name__ == "__main__":
    unittest.main()

"""Checkpoints: under other plans and numbers of ranks, damaged ones, and savers that are killed."""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch
import torch.distributed.checkpoint as dcp

import shardplan
from shardplan import _checkpoint
from truth import difference, make

HERE = pathlib.Path(__file__).parent


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="shardplan_checkpoint_")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)


class AcrossPlans(CheckpointTest):
    def ranks(self, count, *words, ends_well=True):
        begin = [sys.executable]
        if count > 1:
            begin += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        done = subprocess.run(
            [*begin, str(HERE / "checkpoint_script.py"), *map(str, words)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(done.returncode == 0, ends_well, done.stderr[-3000:])
        return json.loads(done.stdout.splitlines()[-1]) if ends_well else done

    def test_two_ranks_save_and_one_and_four_go_on(self):
        whole = self.ranks(1, "gpt2_dropout", "map", 0, 4)
        first = self.ranks(2, "gpt2_dropout", "zero3", 0, 2, "--save", self.folder / "two")
        # The seed is the checkpoint's, too.
        one = self.ranks(1, "gpt2_dropout", "map", 2, 4, "--load", self.folder / "two", "--seed", 1)
        four = self.ranks(4, "gpt2_dropout", "megatron", 2, 4, "--load", self.folder / "two")
        for got, want in zip([*first, *one, *four], [*whole, *whole[2:]], strict=True):
            self.assertLess(abs(got - want), 1e-12 * abs(want))

    def test_four_ranks_save_and_two_go_on(self):
        whole = self.ranks(1, "llama", "map", 0, 3)
        self.ranks(4, "llama", "zero2", 0, 1, "--save", self.folder / "four")
        two = self.ranks(2, "llama", "megatron", 1, 3, "--load", self.folder / "four")
        for got, want in zip(two, whole[1:], strict=True):
            self.assertLess(abs(got - want), 1e-12 * abs(want))

    def test_pipelines_save_and_go_on(self):
        words = ["--microbatches", 2]
        whole = self.ranks(1, "gpt2_dropout", "map", 0, 4, *words)
        self.ranks(2, "gpt2_dropout", "gpipe", 0, 2, "--save", self.folder / "two", *words)
        load = ["--load", self.folder / "two"]
        one = self.ranks(1, "gpt2_dropout", "map", 2, 4, *load, *words)
        four = self.ranks(4, "gpt2_dropout", "dapple", 2, 4, *load, *words)
        copies = self.ranks(2, "gpt2_dropout", "chimera", 2, 4, *load, *words)
        for got, want in zip([*one, *four, *copies], [*whole[2:]] * 3, strict=True):
            self.assertLess(abs(got - want), 1e-12 * abs(want))

    def test_copies_of_weights_are_saved_once(self):
        words = ["--microbatches", 2]
        whole = self.ranks(1, "gpt2_dropout", "map", 0, 3, *words)
        self.ranks(2, "gpt2_dropout", "chimera", 0, 2, "--save", self.folder / "two", *words)
        one = self.ranks(1, "gpt2_dropout", "map", 2, 3, "--load", self.folder / "two", *words)
        self.assertLess(abs(one[0] - whole[2]), 1e-12 * abs(whole[2]))

    def test_pipeline_with_tied_weights_in_bf16_goes_on_exactly(self):
        words = ["--microbatches", 2, "--precision", "bf16"]
        whole = self.ranks(2, "gpt2", "gpipe", 0, 3, *words)
        self.ranks(2, "gpt2", "gpipe", 0, 1, "--save", self.folder / "two", *words)
        rest = self.ranks(2, "gpt2", "gpipe", 1, 3, "--load", self.folder / "two", *words)
        self.assertEqual(rest, whole[1:])

    def test_parts_of_unequal_sizes(self):
        whole = self.ranks(1, "odd_sizes", "map", 0, 4)
        self.ranks(4, "odd_sizes", "zero3", 0, 2, "--save", self.folder / "four")
        words = ["--load", self.folder / "four", "--save", self.folder / "three"]
        three = self.ranks(3, "odd_sizes", "zero3", 2, 3, *words)
        one = self.ranks(1, "odd_sizes", "map", 3, 4, "--load", self.folder / "three")
        for got, want in zip([*three, *one], whole[2:], strict=True):
            self.assertLess(abs(got - want), 1e-12 * abs(want))

    def test_rank_that_dies_while_saving(self):
        begin = time.monotonic()
        words = ["mlp", "zero3", 0, 1, "--save", self.folder / "two", "--kill-rank", 1]
        done = self.ranks(2, *words, ends_well=False)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertFalse((self.folder / "two").exists())
        self.assertIn("SIGKILL", done.stderr.upper())


def trained(steps, **options):
    """A step after some batches of the small model, and the next batch."""
    model, draw, loss = make("mlp")
    batches = [draw() for _ in range(steps + 1)]
    step = shardplan.parallelize(model, batches[0], loss=loss, **options)
    for batch in batches[:-1]:
        step(batch)
    return step, batches[-1]


def in_a_child(work):
    """Exit status of a child process that does `work`: 0, 1 after an exception, or a signal's."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001: told by the exit code
            print(f"in the child: {error}", file=sys.stderr)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class OneDevice(CheckpointTest):
    def test_every_optimizer_and_precision_goes_on_exactly(self):
        for options in (
            {"optimizer": shardplan.SGD(lr=0.1, momentum=0.9)},
            {"optimizer": shardplan.AdamW(lr=1e-2), "precision": "bf16"},
            {"optimizer": shardplan.Adam(lr=1e-2), "precision": "fp32", "microbatches": 2},
        ):
            with self.subTest(**options):
                step, batch = trained(2, **options)
                step.save(self.folder / "whole")
                other, _ = trained(0, **options)
                other.load(self.folder / "whole")
                self.assertEqual(other.steps_done, 2)
                self.assertEqual(difference(other.state_dict(), step.state_dict())[0], 0)
                for _ in range(2):
                    self.assertEqual(other(batch), step(batch))
                self.assertEqual(os.listdir(self.folder), ["whole"])

    def test_weights_are_read_by_torch_alone(self):
        for name in ("mlp", "gpt2"):
            model, draw, loss = make(name)
            step = shardplan.parallelize(model, draw(), loss=loss)
            step(draw())
            step.save(self.folder / name)
            dcp.load({"model": model.state_dict()}, checkpoint_id=self.folder / name, no_dist=True)
            self.assertEqual(difference(model.state_dict(), step.state_dict())[0], 0)

    def test_what_is_no_checkpoint_of_this_step_is_told(self):
        step, batch = trained(1)
        step.save(self.folder / "good")
        before = step.state_dict()
        (self.folder / "empty").mkdir()
        (self.folder / ".killed.unfinished-00").mkdir()
        cases = [
            (step, "none", FileNotFoundError, "no checkpoint"),
            (step, "empty", ValueError, "lacks .metadata, which is written last"),
            (step, "killed", FileNotFoundError, "did not finish"),
            (trained(0, optimizer=shardplan.SGD())[0], "good", ValueError, "another optimizer"),
            (
                trained(0, optimizer=shardplan.SGD(momentum=0.9))[0],
                "good",
                ValueError,
                "no entry 'optimizer.*momentum_buffer'.*another optimizer",
            ),
        ]
        model, draw, loss = make("regression")
        other = shardplan.parallelize(model, draw(), loss=loss)
        cases.append((other, "good", ValueError, "no entry 'model.linear.*another model"))
        for loader, name, error, message in cases:
            with self.subTest(message), self.assertRaisesRegex(error, message):
                loader.load(self.folder / name)
        self.assertEqual(difference(step.state_dict(), before)[0], 0)

    def test_damaged_files_are_told(self):
        step, _ = trained(1)
        for name, damage, message in (
            ("__0_0.distcp", lambda data: data[:-100], "cut off"),
            ("__0_0.distcp", None, "is missing"),
            (".metadata", lambda data: data[:40], "cannot be read"),
            (".metadata", lambda data: b"", "cannot be read"),
        ):
            step.save(self.folder / "whole")
            path = self.folder / "whole" / name
            data = path.read_bytes()
            path.unlink()
            if damage:
                path.write_bytes(damage(data))
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                step.load(self.folder / "whole")

    def test_what_is_no_checkpoint_is_not_replaced(self):
        step, _ = trained(0)
        (self.folder / "precious").mkdir()
        (self.folder / "precious" / "thesis.tex").write_text("...")
        (self.folder / "file").write_text("...")
        for name in ("precious", "file"):
            with self.assertRaisesRegex(FileExistsError, "not replaced"):
                step.save(self.folder / name)
        self.assertEqual((self.folder / "precious" / "thesis.tex").read_text(), "...")

    def test_full_disk_leaves_the_old_checkpoint(self):
        step, batch = trained(1)
        step.save(self.folder / "whole")
        old = step.state_dict()
        step(batch)

        def save_in_little_space():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            try:
                step.save(self.folder / "whole")
            except RuntimeError as error:
                assert "File too large" in str(error) and "unchanged" in str(error), error
                os._exit(3)

        self.assertEqual(in_a_child(save_in_little_space), 3)
        self.assertEqual(os.listdir(self.folder), ["whole"])
        step.load(self.folder / "whole")
        self.assertEqual(difference(step.state_dict(), old)[0], 0)

    def test_saver_killed_at_any_moment_leaves_the_old_checkpoint_or_the_new(self):
        step, batch = trained(1)
        step.save(self.folder / "whole")
        before = step.state_dict()
        step(batch)
        after = step.state_dict()
        seen = set()
        for moment in range(100):
            calls = 0

            def killed(real):
                def counted(*words, **named):
                    nonlocal calls
                    calls += 1
                    if calls > moment:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*words, **named)

                return counted

            def save_and_die():
                for name in ("mkdir", "fsync", "open", "rename"):
                    setattr(os, name, killed(getattr(os, name)))
                _checkpoint._exchange = killed(_checkpoint._exchange)
                _checkpoint.shutil.rmtree = killed(_checkpoint.shutil.rmtree)
                step.save(self.folder / "whole")

            code = in_a_child(save_and_die)
            other, _ = trained(0)
            other.load(self.folder / "whole")
            state = other.state_dict()
            is_old = difference(state, before)[0] == 0
            self.assertTrue(is_old or difference(state, after)[0] == 0, f"moment {moment}")
            seen.add("old" if is_old else "new")
            if code == 0:
                break
            self.assertEqual(code, -signal.SIGKILL)
        self.assertEqual(code, 0)
        self.assertEqual(seen, {"old", "new"})
        self.assertEqual(os.listdir(self.folder), ["whole"])


if __name__ == "__main__":
    unittest.main()

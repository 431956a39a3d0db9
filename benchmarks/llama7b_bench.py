#!/usr/bin/env python3
"""Llama-2 7B of transformers, exported under the meta device, planned for 8xA100-80GB.

Prints the seconds of the export, of `shardplan profile` and of `shardplan plan` (CPU time of the
whole process). Wanted: the plan in less than 2 s of CPU time.
"""

import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "shardplan"


def export(path):
    import torch
    import transformers

    import shardplan

    with torch.device("meta"):
        config = transformers.LlamaConfig(use_cache=False)  # the defaults are Llama-2 7B
        model = transformers.LlamaForCausalLM(config)
        tokens = torch.empty((4, 2048), dtype=torch.long)
    shardplan.export(model, {"input_ids": tokens, "labels": tokens}, str(path))


def cpu_seconds(*words):
    """CPU time of one run of the program, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, done.stdout


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "llama7b.pt2"
        start = time.monotonic()
        export(model)
        print(f"export    {time.monotonic() - start:.1f} s, {model.stat().st_size / 1e6:.1f} MB")
        seconds, _ = cpu_seconds("profile", model)
        print(f"profile   {seconds:.2f} s of CPU time, process start and reading included")
        seconds, text = cpu_seconds(
            "plan", model, "--cluster", "8xA100-80GB", "--precision", "bf16"
        )
        print(f"plan      {seconds:.2f} s of CPU time (wanted: below 2)\n\n{text}")


if __name__ == "__main__":
    main()

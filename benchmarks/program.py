"""The program that benchmarks run, and what one run of it takes."""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def program():
    """The one that SHARDPLAN names, else the first that is built."""
    places = [os.environ.get("SHARDPLAN"), ROOT / "build/shardplan", ROOT / "build-core/shardplan"]
    for place in places:
        if place and pathlib.Path(place).exists():
            return str(place)
    sys.exit("no program: make core, or name it in SHARDPLAN")


def measure(*words, allowed=(0,)):
    """CPU seconds and peak MiB of the whole process, and all that it printed; other exit codes than
    the `allowed` end the benchmark."""
    command = [program(), *map(str, words)]
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode()
    if process.returncode not in allowed:
        sys.exit(f"{' '.join(command)}: {text.strip()}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text

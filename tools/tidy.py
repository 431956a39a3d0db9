#!/usr/bin/env python3
"""Runs clang-tidy-16 over all sources, skipping those that were clean before.

    tools/tidy.py [-p BUILD]... [-j JOBS] [FILE...]

BUILD folders hold compile_commands.json; a file is checked with the first that knows it. A file is
known to be clean by a hash of its text, of all project headers it reaches, of its flags, of
.clang-tidy and of clang-tidy's version; the hashes are kept in ~/.cache/shardplan/tidy, so another
clone on the machine profits too. Exit 1 if there is a finding.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#include\s*"([^"]+)"', re.MULTILINE)
TIDY = "clang-tidy-16"
NOISE = re.compile(r"^\d+ warnings? (generated|treated)|^Suppressed |^Use -header-filter")


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "shardplan" / "tidy"


@functools.lru_cache(maxsize=None)
def text_of(path):
    return path.read_text()


def reached_files(source):
    """The source and the project headers it includes, directly or not, sorted."""
    found = {source}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        for name in INCLUDE.findall(text_of(path)):
            for candidate in (ROOT / name, path.parent / name):
                if candidate.is_file() and candidate not in found:
                    found.add(candidate)
                    waiting.append(candidate)
                    break
    return sorted(found)


def read_commands(builds):
    """(build folder, flags) by source file."""
    commands = {}
    for build in builds:
        database = pathlib.Path(build) / "compile_commands.json"
        if not database.exists():
            continue
        for entry in json.loads(database.read_text()):
            source = pathlib.Path(entry["directory"], entry["file"]).resolve()
            words = shlex.split(entry["command"])
            flags = [
                word.replace(str(ROOT), ".")
                for word, before in zip(words, [""] + words)
                if before not in ("-o", "-MF", "-MT") and word != entry["file"]
            ]
            commands.setdefault(source, (build, flags))
    return commands


def key_of(source, flags, version):
    digest = hashlib.sha256(version.encode())
    digest.update((ROOT / ".clang-tidy").read_bytes())
    digest.update("\0".join(flags).encode())
    for path in reached_files(source):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0")
        digest.update(text_of(path).encode())
    return digest.hexdigest()


def run_tidy(source, build):
    """(clean, what clang-tidy said without its noise, seconds)."""
    start = time.monotonic()
    # The build is g++'s: its own warning flags may be unknown to clang.
    done = subprocess.run(
        [TIDY, "--quiet", "-p", build, "--extra-arg=-Wno-unknown-warning-option", str(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if line and not NOISE.match(line)]
    return done.returncode == 0, "\n".join(said), time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-p", dest="builds", action="append", metavar="BUILD")
    parser.add_argument("-j", dest="jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    commands = read_commands(arguments.builds or ["build", "build-core"])
    if not commands:
        sys.exit("error: no compile_commands.json: configure a build first (make core)")
    wanted = [pathlib.Path(name).resolve() for name in arguments.files] or sorted(commands)
    unknown = [str(path) for path in wanted if path not in commands]
    if unknown:
        sys.exit("error: no build compiles " + ", ".join(unknown))

    version = subprocess.run(
        [TIDY, "--version"], capture_output=True, text=True, check=True
    ).stdout
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    keys = {path: key_of(path, commands[path][1], version) for path in wanted if path.exists()}
    waiting = [path for path in keys if not (folder / keys[path]).exists()]
    print(f"tidy      {len(keys)} files, {len(waiting)} of them new or changed", flush=True)

    failed = 0
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        running = {pool.submit(run_tidy, path, commands[path][0]): path for path in waiting}
        for done in concurrent.futures.as_completed(running):
            path = running[done]
            clean, said, seconds = done.result()
            name = path.relative_to(ROOT)
            if clean:
                (folder / keys[path]).touch()
            else:
                failed += 1
                print(f"{name}\n{said}", flush=True)
            if seconds > 30:
                print(f"tidy      {name} took {seconds:.0f} s", flush=True)
    if waiting:
        print(f"tidy      {failed} files with findings, {time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

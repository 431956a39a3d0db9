#!/usr/bin/env python3
"""Checks that every #include follows the table of rooms in CMakeLists.txt.

A room may include itself and the rooms that its USES reach; a room listed in USES stands above it
in the table, so the table has no cycles; headers do not include each other in circles; and torch's
headers appear only where torch is linked. Prints each offence as file:line, exit 1 if there is one.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WITH_TORCH = {"runtime", "python"}  # the rooms that link libtorch
FRONT_DOORS = {"cli", "python"}  # the only ones that know all rooms
TORCH_HEADER = re.compile(r'#include\s*[<"]((?:torch|ATen|c10|c10d|caffe2|gloo)/[^>"]+)[>"]')
PROJECT_HEADER = re.compile(r'#include\s*"(shardplan/([a-z_]+)/[^"]+)"')


def read_table(text, keyword="USES"):
    """Direct uses by room (or, with TEST_USES, those of its tests), in the order of the table."""
    table = {}
    for match in re.finditer(r"^shardplan_room\(([^)]*)\)", text, re.MULTILINE):
        words = match.group(1).split()
        uses = []
        reading = None
        for word in words[1:]:
            if word in ("USES", "LIBS", "TEST_USES"):
                reading = word
            elif reading == keyword:
                uses.append(word)
        table[words[0]] = uses
    return table


def read_rooms(root):
    """The table of CMakeLists.txt and the rooms with a build file of their own."""
    table = read_table((root / "CMakeLists.txt").read_text())
    offences = []
    above = set()
    for room, uses in table.items():
        offences += [
            f"CMakeLists.txt: {room} uses {used}, which does not stand above it"
            for used in uses
            if used not in above
        ]
        above.add(room)
    for folder in sorted((root / "shardplan").iterdir()):
        if not folder.is_dir() or folder.name in table:
            continue
        build = folder / "CMakeLists.txt"
        text = build.read_text() if build.exists() else ""
        uses = read_table(text).get(folder.name, [])
        uses += [name for name in re.findall(r"shardplan_([a-z]+)\b", text) if name in above]
        table[folder.name] = list(above) if folder.name in FRONT_DOORS else uses
    for door in FRONT_DOORS & set(table):
        table[door] = table[door] + ["runtime"]
    return table, offences


def reachable(table):
    """All rooms that each room may include."""
    allowed = {}

    def visit(room):
        if room not in allowed:
            allowed[room] = {room}
            for used in table.get(room, []):
                allowed[room] |= visit(used)
        return allowed[room]

    for room in table:
        visit(room)
    return allowed


def sources(root):
    """(path, room, whether it is a test) of every C++ file that belongs to a room."""
    for top in ("shardplan", "tests"):
        for path in sorted((root / top).glob("**/*")):
            if path.suffix in (".h", ".cc"):
                yield path, path.relative_to(root / top).parts[0], top == "tests"


def find_circle(includes):
    """A list of headers that include each other in a circle, or None."""
    done = set()

    def visit(name, trail):
        if name in trail:
            return trail[trail.index(name) :] + [name]
        if name in done:
            return None
        for included in includes.get(name, []):
            found = visit(included, trail + [name])
            if found:
                return found
        done.add(name)
        return None

    for name in includes:
        found = visit(name, [])
        if found:
            return found
    return None


def check(root):
    table, offences = read_rooms(root)
    allowed = reachable(table)
    of_tests = read_table((root / "CMakeLists.txt").read_text(), "TEST_USES")
    includes = {}
    for path, room, test in sources(root):
        name = str(path.relative_to(root))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            torch = TORCH_HEADER.match(line)
            if torch and room not in WITH_TORCH:
                offences.append(f"{name}:{number}: {room} may not include {torch.group(1)}")
            header = PROJECT_HEADER.match(line)
            if not header:
                continue
            includes.setdefault(name, []).append(header.group(1))
            used = header.group(2)
            if test and any(used in allowed[more] for more in of_tests.get(room, [])):
                continue
            if room in table and used not in allowed[room]:
                offences.append(
                    f"{name}:{number}: {room} may not include {header.group(1)}; it uses only "
                    + (", ".join(table[room]) or "itself")
                )
    circle = find_circle(includes)
    if circle:
        offences.append("headers include each other in a circle: " + " -> ".join(circle))
    return table, offences


def main():
    table, offences = check(ROOT)
    for offence in offences:
        print(offence, file=sys.stderr)
    if offences:
        return 1
    print(f"layers    {len(table)} rooms, every include follows the table")
    return 0


if __name__ == "__main__":
    sys.exit(main())

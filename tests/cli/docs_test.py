"""Every command line that the documents show runs, in the order in which they show it."""

import re
import shlex
import unittest

from program import ROOT, CommandLineTest, has_runtime

COMMAND = re.compile(r"^ *\$ (?:build/)?shardplan (.*)$", re.MULTILINE)
NEEDS_RUNTIME = ("run", "probe")


def documents():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


class DocumentsTest(CommandLineTest):
    def test_commands(self):
        runtime = has_runtime()
        (self.folder / "tests").symlink_to(ROOT / "tests")  # for the models that documents name
        count = 0
        for document in documents():
            for line in COMMAND.findall(document.read_text()):
                words = shlex.split(line)
                if words[0] in NEEDS_RUNTIME and not runtime:
                    continue
                with self.subTest(document=document.name, command=line):
                    self.succeed(*words, timeout=300)
                count += 1
        self.assertGreater(count, 3)


if __name__ == "__main__":
    unittest.main()

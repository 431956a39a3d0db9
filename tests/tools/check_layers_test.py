"""The check of layers finds what it is there for, in small trees made here."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

import check_layers

TABLE = """
shardplan_room(support LIBS fmt::fmt)
shardplan_room(ir USES support)
shardplan_room(cluster USES support)
shardplan_room(sharding USES cluster ir)
"""


class CheckLayersTest(unittest.TestCase):
    def offences(self, files, table=TABLE):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "CMakeLists.txt").write_text(table)
            (root / "tests").mkdir()
            for name, text in {"shardplan/support/x.h": "", **files}.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return check_layers.check(root)[1]

    def test_allowed_includes(self):
        files = {
            "shardplan/ir/a.h": '#include "shardplan/support/x.h"\n#include <vector>\n',
            "shardplan/sharding/b.cc": '#include "shardplan/support/x.h"\n'
            '#include "shardplan/ir/a.h"\n#include "shardplan/sharding/b.h"\n',
            "shardplan/runtime/CMakeLists.txt": "shardplan_room(runtime USES ir LIBS torch)",
            "shardplan/runtime/c.cc": '#include "shardplan/ir/a.h"\n#include <ATen/ATen.h>\n',
            "shardplan/cli/d.cc": '#include "shardplan/sharding/b.h"\n',
        }
        self.assertEqual(self.offences(files), [])

    def test_include_of_a_room_that_is_not_used(self):
        found = self.offences({"shardplan/ir/a.cc": '\n#include "shardplan/cluster/c.h"\n'})
        self.assertEqual(len(found), 1)
        self.assertIn("shardplan/ir/a.cc:2: ir may not include shardplan/cluster/c.h", found[0])

    def test_tests_follow_their_room(self):
        found = self.offences({"tests/ir/a_test.cc": '#include "shardplan/sharding/c.h"\n'})
        self.assertEqual(len(found), 1)

    def test_tests_may_use_more_where_the_table_says_so(self):
        table = TABLE.replace("(ir USES support)", "(ir USES support TEST_USES sharding)")
        files = {"tests/ir/a_test.cc": '#include "shardplan/sharding/c.h"\n'}
        self.assertEqual(self.offences(files, table), [])
        files = {"shardplan/ir/a.cc": '#include "shardplan/sharding/c.h"\n'}
        self.assertEqual(len(self.offences(files, table)), 1)

    def test_use_of_a_room_below(self):
        found = self.offences({}, "shardplan_room(a USES b)\nshardplan_room(b USES a)\n")
        self.assertEqual(len(found), 1)
        self.assertIn("a uses b", found[0])

    def test_torch_outside_its_rooms(self):
        for header in ("<ATen/ATen.h>", "<c10/core/Device.h>", '"torch/csrc/api.h"'):
            found = self.offences({"shardplan/ir/a.cc": f"#include {header}\n"})
            self.assertEqual(len(found), 1, header)

    def test_circle_of_headers(self):
        files = {
            "shardplan/ir/a.h": '#include "shardplan/ir/b.h"\n',
            "shardplan/ir/b.h": '#include "shardplan/ir/c.h"\n',
            "shardplan/ir/c.h": '#include "shardplan/ir/b.h"\n',
        }
        found = self.offences(files)
        self.assertEqual(len(found), 1)
        self.assertIn("ir/b.h -> shardplan/ir/c.h -> shardplan/ir/b.h", found[0])


if __name__ == "__main__":
    unittest.main()

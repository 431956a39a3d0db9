"""`shardplan schedule`: the list, the drawing, the object, and what it refuses."""

import unittest

from program import CommandLineTest

DRAWING = """\
1f1b: 2 stages on 2 devices, 3 microbatches

device 0 F0 F1 .  .  B0--- F2 B1--- .  B2---
device 1 .  F0 B0--- F1 B1--- F2 B2--- .  .
"""


class ScheduleTest(CommandLineTest):
    def test_lists_all(self):
        listed = self.succeed_json("schedule")
        names = [row["name"] for row in listed]
        self.assertEqual(len(names), 11)
        text = self.succeed("schedule")
        for row in listed:
            self.assertIn(row["name"], text)
            words = ["schedule", row["name"], "--stages", 4, "--microbatches", 8]
            drawn = self.succeed(*words)
            self.assertIn("device 3", drawn)
            answer = self.succeed_json(*words)
            self.assertEqual(len(answer["tasks"]), 4)
            passes = [t for device in answer["tasks"] for t in device if t["work"] == "F"]
            self.assertEqual(len(passes), answer["stages"] * answer["microbatches"])

    def test_draws(self):
        text = self.succeed("schedule", "1f1b", "--stages", 2, "--microbatches", 3)
        self.assertTrue(text.startswith(DRAWING), text)
        self.assertIn("bubble        3, 25.0 % of that", text)
        self.assertIn("in flight     2 1 passes", text)

    def test_closed_forms(self):
        answer = self.succeed_json("schedule", "zb_h2", "--stages", 4, "--microbatches", 9)
        self.assertEqual((answer["bubble"], max(answer["in_flight"])), (0, 7))
        words = ["schedule", "chimera", "--stages", 8, "--microbatches", 8, "--times", "1,1,0"]
        self.assertEqual(self.succeed_json(*words)["time"], 22)
        self.assertEqual(self.succeed_json(*words, "--pipelines", 4)["time"], 18)
        answer = self.succeed_json("schedule", "pipedream", "--stages", 3, "--microbatches", 9)
        self.assertEqual(answer["weight_versions"], [3, 2, 1])

    def test_refuses(self):
        self.reject(["schedule", "gpip"], 2, "unknown schedule 'gpip'; did you mean 'gpipe'?")
        self.reject(["schedule", "gpipe", "--stages", 0], 2, "gpipe: 0 devices")
        self.reject(["schedule", "gpipe", "--chunks", 2], 2, "--chunks", "interleaved_1f1b")
        self.reject(["schedule", "gpipe", "--times", "1,2"], 2, "--times", "'1,2'")
        self.reject(["schedule", "gpipe", "--times", "1,1,-1"], 2, "--times")
        words = ["schedule", "interleaved_1f1b", "--stages", 4, "--microbatches", 6]
        self.reject(words, 2, "give a multiple of 4")
        self.reject(["schedule", "chimera", "--stages", 3], 2, "even number")
        words = ["schedule", "pipedream_2bw", "--stages", 4, "--microbatches", 3]
        self.reject(words, 2, "as many microbatches as devices")
        words = ["schedule", "1f1b", "--stages", 4, "--microbatches", 10**12]
        self.reject(words, 2, "take fewer microbatches")


if __name__ == "__main__":
    unittest.main()

"""How the command line takes its words: help, spelling, exit codes."""

import json
import subprocess
import unittest

from program import MLP, PROGRAM, CommandLineTest

COMMANDS = [
    "profile",
    "plan",
    "compare",
    "explain",
    "simulate",
    "check-plan",
    "run",
    "predict",
    "probe",
    "zoo",
    "planners",
    "clusters",
]


class UsageTest(CommandLineTest):
    def test_help_lists_every_command(self):
        text = self.succeed("--help")
        for command in COMMANDS:
            self.assertIn(f"\n  {command} ", text)

    def test_every_command_has_help_with_an_example(self):
        for command in COMMANDS:
            text = self.succeed(command, "--help")
            self.assertIn(f"Example:\n  shardplan {command}", text)
            self.assertIn("--json", text)

    def test_version(self):
        self.assertRegex(self.succeed("--version"), r"^shardplan \d+\.\d+\.\d+\n$")

    def test_no_command_shows_help_on_standard_error(self):
        done = self.run_program()
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stdout, "")
        self.assertIn("Subcommands:", done.stderr)

    def test_unknown_command(self):
        self.reject(["plna"], 2, "unknown command 'plna'", "did you mean 'plan'?")
        self.reject(["frobnicate"], 2, "unknown command 'frobnicate'", "shardplan --help")

    def test_unknown_option_is_told_before_what_is_missing(self):
        self.reject(["plan", MLP, "--clustr", "local:2"], 2, "'--clustr'", "did you mean '--cluster'?")
        self.reject(["plan", "-x"], 2, "'-x'", "shardplan plan --help")
        self.reject(["--jsn"], 2, "'--jsn'")

    def test_missing_arguments(self):
        self.reject(["profile"], 2, "profile needs a MODEL", "shardplan profile --help")
        self.reject(["plan", MLP], 2, "plan needs a --cluster")
        self.reject(["explain"], 2, "explain needs a PLAN")
        self.reject(["plan", MLP, "--cluster"], 2, "--cluster")

    def test_empty_value_is_no_default(self):
        for option in ("--memory", "--mesh", "-o", "--optimizer", "--planner"):
            words = ["plan", MLP, "--cluster", "local:2", option, ""]
            self.reject(words, 2, "-" + option.strip("-")[0], "empty value")
        self.reject(["profile", ""], 2, "MODEL", "empty value")

    def test_surplus_arguments(self):
        self.reject(["zoo", "more"], 2, "more")

    def test_lists_have_names_and_a_readable_form(self):
        for command in ("zoo", "planners", "clusters"):
            listed = self.succeed_json(command)
            self.assertGreater(len(listed), 3 if command != "zoo" else 1)
            table = self.succeed(command)
            for entry in listed:
                self.assertIn(entry["name"], table)

    def test_planners_have_the_promised_fields(self):
        planners = {entry["name"]: entry for entry in self.succeed_json("planners")}
        for name in ("dp", "zero1", "zero2", "zero3", "megatron", "map"):
            self.assertIn(name, planners)
        for entry in planners.values():
            self.assertTrue(entry["paper"])
            self.assertTrue(entry["summary"])
            self.assertIsInstance(entry["year"], int)

    def test_json_is_one_object_and_nothing_else(self):
        done = self.run_program("profile", MLP, "--json")
        json.loads(done.stdout)
        self.assertEqual(done.stderr, "")

    def test_unwritable_standard_output(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [PROGRAM, "planners"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        self.assertEqual(done.returncode, 2)
        self.assertIn("error: cannot write to standard output", done.stderr)


if __name__ == "__main__":
    unittest.main()

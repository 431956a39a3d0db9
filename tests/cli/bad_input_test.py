"""Every wrong input: one clear message, a non-zero exit, no half-written file."""

import json
import resource
import signal
import unittest
import zipfile

from program import MLP, CommandLineTest


def plan_words(model=MLP, cluster="local:2", *more):
    return ["plan", model, "--cluster", cluster, *more]


class ModelTest(CommandLineTest):
    def test_no_such_file(self):
        self.reject(["profile", "none.pt2"], 2, "none.pt2")

    def test_unknown_zoo_name_and_key(self):
        self.reject(["profile", "gtp:layers=2"], 2, "gtp", "gpt")
        self.reject(["profile", "mlp:layrs=2"], 2, "layrs", "layers")
        self.reject(["profile", "mlp:layers=-2"], 2, "layers")
        self.reject(["profile", "mlp:layers=two"], 2, "two")

    def test_truncated_archive(self):
        archive = self.folder / "whole.pt2"
        with zipfile.ZipFile(archive, "w") as content:
            content.writestr("whole/models/model.json", "{}" * 1000)
        whole = archive.read_bytes()
        for size in (0, 10, len(whole) // 2, len(whole) - 5):
            (self.folder / "cut.pt2").write_bytes(whole[:size])
            self.reject(["profile", "cut.pt2"], 2, "cut.pt2")

    def test_foreign_archives(self):
        for name, text in (
            ("empty", None),
            ("text", "not json"),
            ("list", "[]"),
            ("object", "{}"),
            ("graph", '{"graph_module": {"graph": 3}}'),
        ):
            with zipfile.ZipFile(self.folder / f"{name}.pt2", "w") as content:
                if text is not None:
                    content.writestr(f"{name}/models/model.json", text)
            self.reject(["profile", f"{name}.pt2"], 2, f"{name}.pt2")

    def test_text_form_with_an_unknown_op(self):
        (self.folder / "model.sp").write_text("this is no graph\n")
        self.reject(["profile", "model.sp"], 2, "model.sp", "line")

    def test_files_of_another_kind_are_named_as_what_they_are(self):
        (self.folder / "folder").mkdir()
        self.reject(["profile", "folder"], 2, "folder", "is a directory", ".pt2")
        for name, content, part in (
            ("plan.json", b'{"format": "shardplan.plan"}', "is JSON"),
            ("noise", b"\x01\x00\x02", "is binary"),
            ("model.zip", b"PK\x03\x04rest", "does not end in .pt2"),
            ("nothing", b"", "is empty"),
        ):
            (self.folder / name).write_bytes(content)
            self.reject(["profile", name], 2, name, part)

    def test_key_given_twice(self):
        self.reject(["profile", "mlp:layers=2,layers=3"], 2, "'layers' is given twice")

    def test_names_in_the_wrong_case(self):
        self.reject(["profile", "GPT"], 2, "did you mean 'gpt'?")

    def test_folder_with_the_name_of_a_zoo_model(self):
        (self.folder / "mlp").mkdir()
        self.succeed("profile", "mlp")


class RecipeTest(CommandLineTest):
    def test_wrong_words(self):
        self.reject(["profile", MLP, "--optimizer", "adamx"], 2, "adamx", "adam")
        self.reject(["profile", MLP, "--optimizer", "sgd:lr=fast"], 2, "fast")
        self.reject(["profile", MLP, "--precision", "fp31"], 2, "fp31")
        self.reject(["profile", MLP, "--microbatches", "0"], 2, "--microbatches")
        self.reject(["profile", MLP, "--microbatches", "x"], 2, "--microbatches")
        self.reject(["profile", MLP, "--microbatches", "auto"], 2, "plan and compare")
        for norm in ("-1", "inf", "nan"):
            self.reject(["profile", MLP, "--clip-norm", norm], 2, "--clip-norm")
        self.reject(["profile", MLP, "--optimizer", "sgd:lr=1,lr=2"], 2, "lr is given twice")

    def test_batch_that_does_not_divide(self):
        self.reject(["profile", "mlp:layers=2,hidden=64,batch=8", "--microbatches", "3"], 2, "3")


class ClusterTest(CommandLineTest):
    def test_unknown_name(self):
        self.reject(plan_words(cluster="dgx-h10"), 2, "dgx-h10", "dgx-h100")
        self.reject(plan_words(cluster="none.yaml"), 2, "none.yaml")

    def test_ranks(self):
        for count in ("0", "-1", "many", "", "100000", "2.5"):
            self.reject(plan_words(cluster=f"local:{count}"), 2, "local:N", f'"{count}"')

    def test_yaml(self):
        (self.folder / "text.yaml").write_text("device: [unfinished")
        self.reject(plan_words(cluster="text.yaml"), 2, "text.yaml")
        (self.folder / "empty.yaml").write_text("")
        self.reject(plan_words(cluster="empty.yaml"), 2, "empty.yaml")

    def test_mesh(self):
        for mesh, part in (
            ("data=3", "more than the 2 devices"),
            ("data=1", "has 1 devices"),
            ("data", "is not a mesh"),
            ("data=two", "'data'"),
            ("data=1,data=2", "twice"),
            ("data=0", "'data'"),
        ):
            self.reject(plan_words(MLP, "local:2", "--mesh", mesh), 2, "--mesh", part)


class PlanningTest(CommandLineTest):
    def test_planner(self):
        self.reject(plan_words(MLP, "local:2", "--planner", "megatrn"), 2, "megatrn", "megatron")
        self.reject(["compare", MLP, "--cluster", "local:2", "--planners", "dp,nap"], 2, "nap", "map")

    def test_memory(self):
        for memory, part in (
            ("lots", "lots"),
            ("-1GiB", "negative"),
            ("20G", "20GiB"),
            ("0", "is 0"),
            ("1GiB:2GiB", "FROM:TO:STEP"),
            ("2GiB:1GiB:1GiB", "ends below"),
            ("1GiB:2GiB:1KiB", "make the step larger"),
            ("1GiB:2GiB:0", "is 0"),
            ("1GiB::1GiB", "''"),
        ):
            self.reject(plan_words(MLP, "local:2", f"--memory={memory}"), 2, "--memory", part)

    def test_search_limits(self):
        for option, value in (
            ("--time-limit", "-1"),
            ("--time-limit", "nan"),
            ("--seed", "-1"),
            ("--seed", "x"),
        ):
            self.reject(plan_words(MLP, "local:2", option, value), 2, option, f"'{value}'")


class FilesTest(CommandLineTest):
    def test_output_that_cannot_be_written(self):
        self.reject(plan_words(MLP, "local:2", "-o", "none/plan.json"), 2, "none/plan.json")
        self.reject(plan_words(MLP, "local:2", "-o", "/dev/full"), 2, "/dev/full", "No space left")

    def test_disk_that_fills_up_leaves_the_old_file(self):
        old = self.make_plan().read_text()

        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))

        self.reject(
            plan_words(MLP, "local:2", "-o", "plan.json"), 2, "plan.json", preexec_fn=small_files
        )
        self.assertEqual((self.folder / "plan.json").read_text(), old)
        self.assertEqual(self.files(), ["plan.json"])


class PlanFileTest(CommandLineTest):
    def edit(self, change):
        plan = json.loads(self.make_plan().read_text())
        change(plan)
        (self.folder / "plan.json").write_text(json.dumps(plan))

    def test_missing_and_foreign(self):
        self.reject(["explain", "none.json"], 2, "none.json")
        for text in ("", "{", "[]", "{}", '{"version": 99}'):
            (self.folder / "plan.json").write_text(text)
            self.reject(["simulate", "plan.json"], 2, "plan.json")

    def test_cut_anywhere(self):
        whole = self.make_plan().read_text()
        for part in range(1, 10):
            (self.folder / "plan.json").write_text(whole[: len(whole) * part // 10])
            self.reject(["simulate", "plan.json"], 2, "plan.json")

    def test_changed_model(self):
        self.edit(lambda plan: plan.update(model="mlp:layers=3,hidden=64,batch=8"))
        self.reject(["simulate", "plan.json"], 2, "plan.json")

    def test_model_that_is_gone(self):
        self.edit(lambda plan: plan.update(model="gone.pt2"))
        self.reject(["simulate", "plan.json"], 2, "gone.pt2")


if __name__ == "__main__":
    unittest.main()

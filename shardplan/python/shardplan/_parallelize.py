"""From a module to a training step on many devices."""

import itertools
import json
import os
import tempfile
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import torch
import torch.distributed as dist

from . import _core
from ._export import export, named_inputs
from ._optimizers import AdamW, Optimizer

_DTYPES = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
}

_SEEDS = 2**64  # a seed is that many different ones, kept in an int64

Batch = Union[Mapping[str, torch.Tensor], Sequence[torch.Tensor], torch.Tensor]
Model = Union[torch.nn.Module, str, "os.PathLike[str]"]


def _mesh_text(mesh: Sequence[tuple[str, int]]) -> str:
    return " x ".join(f"{name} {size}" for name, size in mesh) or "one device"


def _layers_table(layers: Sequence[Mapping[str, Any]]) -> str:
    rows = [("block", "compute", "communication", "weights", "activations", "choice", "next best")]
    for layer in layers:
        loss = layer["next_best_loss_seconds"]
        rows.append(
            (
                layer["layer"] or "(outside blocks)",
                f"{layer['compute_seconds'] * 1e3:.3g} ms",
                f"{layer['communication_seconds'] * 1e3:.3g} ms",
                f"{layer['parameter_bytes'] / 2**20:.4g} MiB",
                f"{layer['activation_bytes'] / 2**20:.4g} MiB",
                layer["choice"] + (" (recomputed)" if layer["recomputed"] else ""),
                f"{layer['next_best']}: +{loss * 1e3:.3g} ms" if layer["next_best"] else "",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


class Plan:
    """Who computes which piece of which tensor, with what was predicted for it."""

    def __init__(self, planned: _core.Planned):
        self._planned = planned

    @property
    def planner(self) -> str:
        return self._planned.planner

    @property
    def mesh(self) -> dict[str, int]:
        """Sizes of the mesh axes, outermost first; empty on one device, and of a pipeline, whose stages
        have meshes of their own (see explain)."""
        return dict(self._planned.mesh)

    @property
    def schedule(self) -> Optional[str]:
        """The schedule of a pipeline's tasks, "1f1b"; None of a plan without stages."""
        return self._planned.schedule

    @property
    def world_size(self) -> int:
        return self._planned.world_size

    @property
    def step_seconds(self) -> float:
        """Predicted time of one step."""
        return self._planned.prediction["step_seconds"]

    @property
    def peak_bytes(self) -> int:
        """Predicted peak memory of the fullest device."""
        return int(self._planned.prediction["peak_bytes"])

    @property
    def prediction(self) -> dict[str, float]:
        """Every number that came with the plan: seconds, bytes, lower bound, gap."""
        return dict(self._planned.prediction)

    def to_json(self) -> str:
        """The plan file that `shardplan explain`, `simulate` and `run` read."""
        return self._planned.json

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.to_json())

    def explain(self) -> str:
        """For each block of the model: what was chosen, what it costs, what the next best would."""
        stages = self._planned.explain()
        if self.schedule is None:
            [(mesh, layers)] = stages
            return f"planner {self.planner}, mesh {_mesh_text(mesh)}\n" + _layers_table(layers)
        parts = [f"planner {self.planner}, {len(stages)} stages, {self.schedule}"]
        for number, (mesh, layers) in enumerate(stages):
            parts.append(f"stage {number}, mesh {_mesh_text(mesh)}\n" + _layers_table(layers))
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        return (
            f"Plan(planner={self.planner!r}, "
            + (f"mesh={self.mesh}" if self.schedule is None else f"schedule={self.schedule!r}")
            + f", step_seconds={self.step_seconds:.4g}, peak_bytes={self.peak_bytes})"
        )


class TrainingStep:
    """One training step of a planned model: `loss = step(batch)`. Made by `parallelize`.

    Under several ranks every rank calls it with the same, whole batch; each reads only its part. Every
    rank gets the loss, in a pipeline, too.
    """

    def __init__(
        self,
        planned: _core.Planned,
        training: _core.Training,
        module: torch.nn.Module,
        names: Sequence[str],
        messages: Optional["dist.ProcessGroup"] = None,
    ):
        self._planned = planned
        self._training = training
        self._names = list(names)
        self._messages = messages
        # Entries that the step does not hold, such as buffers that training never reads.
        self._module_state = {
            name: tensor.detach() for name, tensor in module.state_dict(keep_vars=True).items()
        }

    @property
    def plan(self) -> Plan:
        return Plan(self._planned)

    @property
    def peak_bytes(self) -> int:
        """Measured: largest sum of this rank's tensors at any moment so far."""
        return self._training.peak_bytes

    def explain(self) -> str:
        """The plan in words: see Plan.explain."""
        return self.plan.explain()

    def __call__(self, batch: Batch) -> float:
        """Trains on one whole batch (forward, backward, update) and returns its loss.

        `batch`: the inputs by name, or in the order of the example inputs. Raises ValueError when
        names, dtypes or shapes are not those of the example inputs.
        """
        return self._training.step(self._checked(batch))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Whole weights under the module's names, in the module's dtypes: loads back into the plain
        module. All ranks must call; every rank gets everything."""
        state = {}
        for names, shape in self._training.weights():
            full = self._training.gather(names[0]).view(shape)
            for name in names:
                if name in self._module_state:
                    state[name] = full.to(self._module_state[name].dtype)
        return {
            name: state.get(name, tensor.clone()) for name, tensor in self._module_state.items()
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Sets the weights (not the optimizer's moments). All ranks must pass the same tensors."""
        for names, shape in self._training.weights():
            given = [name for name in names if name in state]
            if not given:
                if any(name in self._module_state for name in names):
                    raise ValueError(f"the state has no entry {names[0]!r}")
                continue
            tensor = state[given[0]]
            if list(tensor.shape) != list(shape):
                raise ValueError(
                    f"{given[0]!r} has shape {list(tensor.shape)}, expected {list(shape)}"
                )
            self._training.load(names[0], tensor.detach())

    @property
    def steps_done(self) -> int:
        """Steps trained so far, those before a loaded checkpoint included."""
        return self._training.steps_done

    def save(self, directory: Union[str, "os.PathLike[str]"]) -> None:
        """Writes weights, optimizer state, step and random state as a checkpoint of
        torch.distributed.checkpoint. All ranks must call, with a folder that all of them see; each
        writes its own parts.

        The folder appears when everything is on the disk, and a checkpoint that was there is replaced
        then: a save that is killed leaves nothing under this name, or what was there before. Raises
        RuntimeError on every rank when a rank cannot write.
        """
        from . import _checkpoint

        entries = _checkpoint.entries_of(self._training.pieces(True), saving=True)
        held = {entry.name for entry in entries}
        for name, tensor in self._module_state.items():
            if "model." + name not in held:
                entries.append(_checkpoint.Entry.whole("model." + name, tensor.cpu()))
        for name, number in self._random_state().items():
            entries.append(_checkpoint.Entry.whole(name, number))
        _checkpoint.save(entries, os.fspath(directory), self._messages)

    def load(self, directory: Union[str, "os.PathLike[str]"]) -> None:
        """Goes on from a checkpoint that `save` wrote, under any plan and number of ranks. All ranks
        must call. Raises FileNotFoundError or ValueError, with nothing changed, when there is no whole
        checkpoint of this model and optimizer. Only load files that you trust: DCP's index is a pickle.
        """
        from . import _checkpoint

        entries = _checkpoint.entries_of(self._training.pieces(False), saving=False)
        held = {entry.name for entry in entries}
        others = {
            name: tensor.detach().cpu().clone()
            for name, tensor in self._module_state.items()
            if "model." + name not in held
        }
        known = set(itertools.chain.from_iterable(names for names, _ in self._training.weights()))
        others = {name: tensor for name, tensor in others.items() if name not in known}
        entries += [_checkpoint.Entry.whole("model." + name, t) for name, t in others.items()]
        random = self._random_state()
        entries += [_checkpoint.Entry.whole(name, number) for name, number in random.items()]
        _checkpoint.load(entries, os.fspath(directory), self._messages)
        self._module_state.update(others)
        self._training.resume(
            int(random["training.steps"]), int(random["training.seed"]) % _SEEDS
        )

    def _random_state(self) -> dict[str, torch.Tensor]:
        seed = self._training.seed
        signed = seed - _SEEDS if seed >= _SEEDS // 2 else seed
        return {
            "training.steps": torch.tensor(self._training.steps_done),
            "training.seed": torch.tensor(signed),
        }

    def _checked(self, batch: Batch) -> dict[str, torch.Tensor]:
        expected = self._planned.inputs
        if isinstance(batch, torch.Tensor):
            batch = (batch,)
        if not isinstance(batch, Mapping):
            if len(batch) != len(self._names):
                raise ValueError(
                    f"the batch has {len(batch)} tensors, expected {len(self._names)}: {self._names}"
                )
            batch = dict(zip(self._names, batch))
        unknown = sorted(set(batch) - set(self._names))
        missing = [name for name, _, _ in expected if name not in batch]
        if unknown or missing:
            raise ValueError(
                f"the batch must have the inputs {self._names}"
                + (f"; missing: {missing}" if missing else "")
                + (f"; unknown: {unknown}" if unknown else "")
            )
        checked = {}
        for name, dtype, shape in expected:
            tensor = batch[name]
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"input {name!r} is a {type(tensor).__name__}, expected a tensor")
            if list(tensor.shape) != list(shape):
                raise ValueError(
                    f"input {name!r} has shape {list(tensor.shape)}, expected {list(shape)} "
                    "(the shapes of the example inputs)"
                )
            if tensor.dtype != _DTYPES[dtype]:
                raise ValueError(f"input {name!r} is {tensor.dtype}, expected {_DTYPES[dtype]}")
            checked[name] = tensor.detach().cpu()
        return checked


def _memory_text(memory: Union[int, str, None]) -> str:
    return "" if memory is None else str(memory)


def _archive(
    model: Model, example_inputs: Any, loss: Union[Callable, str, None], directory: str
) -> str:
    if not isinstance(model, torch.nn.Module):
        return os.fspath(model)
    path = os.path.join(directory, "model.pt2")
    if isinstance(loss, str):
        raise ValueError("a loss given as text is for ONNX files; give a module a function")
    if loss is None:
        export(model, example_inputs, path)
    else:
        export(model, example_inputs, path, loss=loss)
    return path


def plan(
    model: Model,
    example_inputs: Any = None,
    *,
    cluster: str,
    memory: Union[int, str, None] = None,
    optimizer: Optimizer = AdamW(),
    precision: str = "model",
    clip_norm: float = 0.0,
    microbatches: int = 1,
    planner: str = "map",
    loss: Union[Callable, str, None] = None,
    target: str = "target",
    dims: Optional[Mapping[str, int]] = None,
) -> Plan:
    """Plans without running.

    `model`: a module (with `example_inputs`, and a `loss` when it does not compute its own), the path
    of a `.pt2` archive or an `.onnx` file, or a zoo name such as "gpt2-small". `dims` gives the
    dimensions that a file leaves open their sizes, `{"batch": 64}`; `loss`, as text ("cross_entropy"), is
    put behind the output of an ONNX model and compares it with the input `target`. `cluster`: a preset such as
    "8xA100-80GB", or the path of a YAML file. `memory`: bytes, or text such as "20GiB"; default: the
    device's own. Raises ValueError when nothing fits, with the least memory that would.
    """
    with tempfile.TemporaryDirectory(prefix="shardplan-") as directory:
        return Plan(
            _core.plan(
                _archive(model, example_inputs, loss, directory),
                str(cluster),
                planner,
                str(optimizer),
                precision,
                _memory_text(memory),
                clip_norm,
                microbatches,
                dict(dims or {}),
                loss if isinstance(loss, str) else "",
                target if isinstance(loss, str) else "",
            )
        )


def _join_ranks() -> tuple[int, int]:
    """Rank and world size: torch.distributed's, set up over Gloo where torchrun started us."""
    if not dist.is_available():
        return 0, 1
    if not dist.is_initialized():
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            return 0, 1
        dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def _process_groups(planned: _core.Planned, rank: int) -> list:
    """Makes every group that the plan needs, on all ranks in the same order; returns this rank's."""
    groups = []
    backend = _backend_for_cpu()
    for ranks, purpose in planned.needed_groups():
        group = dist.new_group(ranks, backend=backend)
        if rank in ranks:
            groups.append((ranks, purpose, group))
    return groups


def _backend_for_cpu() -> Optional[str]:
    """The kernels run on CPU tensors; a default backend for GPUs only cannot move those."""
    return None if "gloo" in str(dist.get_backend_config()) else "gloo"


def _broadcast(text: str) -> str:
    holder = [text]
    dist.broadcast_object_list(holder, src=0)
    return holder[0]


def parallelize(
    model: torch.nn.Module,
    example_inputs: Any,
    *,
    cluster: Optional[str] = None,
    memory: Union[int, str, None] = None,
    optimizer: Optimizer = AdamW(),
    precision: str = "model",
    clip_norm: float = 0.0,
    microbatches: int = 1,
    planner: str = "map",
    loss: Optional[Callable] = None,
    seed: int = 0,
) -> TrainingStep:
    """Plans the training of `model` on all ranks and returns its step.

    Call it in a script started by torchrun (it uses the default group of torch.distributed, or sets
    one up over Gloo), or alone for one device. `example_inputs` are a whole batch: a dict of keyword
    arguments or a tuple. The model must return its loss, or give `loss`, a function of its output.
    `cluster` describes the devices for planning; default: this machine's cores. `memory` is the limit of
    each device. `microbatches` cuts the batch and accumulates gradients; with `planner="shardplan"`, or a
    planner of pipelines, stages on groups of ranks hand them on. All ranks start from rank
    0's weights; the module itself is left as it is (`state_dict` brings the trained weights back).
    """
    rank, world_size = _join_ranks()
    where = f"local:{world_size}" if cluster is None else str(cluster)
    with tempfile.TemporaryDirectory(prefix="shardplan-") as directory:
        path = _archive(model, example_inputs, loss, directory)
        planned, failure = None, ""
        if rank == 0:
            try:
                planned = _core.plan(
                    path,
                    where,
                    planner,
                    str(optimizer),
                    precision,
                    _memory_text(memory),
                    clip_norm,
                    microbatches,
                )
                if planned.world_size != world_size:
                    failure = (
                        f"cluster {where!r} has {planned.world_size} devices, but {world_size} "
                        f"rank{'s' if world_size > 1 else ''} run; start the script with torchrun "
                        f"--nproc-per-node {planned.world_size}"
                    )
            except ValueError as error:
                failure = str(error)
        if world_size > 1:
            message = json.dumps(
                {"plan": planned.json if planned and not failure else "", "failure": failure}
            )
            message = json.loads(_broadcast(message))
            failure = message["failure"]
        if failure:
            raise ValueError(failure)
        if planned is None:
            planned = _core.read_plan(
                path, str(optimizer), precision, clip_norm, microbatches, message["plan"]
            )
    groups = _process_groups(planned, rank) if world_size > 1 else []
    names = named_inputs(model, example_inputs, whole=loss is not None)
    own = world_size > 1 and _backend_for_cpu() is not None
    messages = dist.new_group(backend="gloo") if own else None
    training = _core.start(planned, rank, seed, groups)
    step = TrainingStep(planned, training, model, list(names), messages)
    if world_size > 1:
        _start_from_rank_zero(step, model)
    return step


def _start_from_rank_zero(step: TrainingStep, model: torch.nn.Module) -> None:
    """Ranks may have made different random weights; those of rank 0 count."""
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors.update(model.named_buffers(remove_duplicate=False))
    for names, _ in step._training.weights():
        known = [name for name in names if name in tensors]
        if known:
            full = tensors[known[0]].detach().cpu().clone()
            dist.broadcast(full, src=0)
            step._training.load(names[0], full)

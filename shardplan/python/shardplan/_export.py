"""Turns a PyTorch module, an example batch and a loss into the archive that Shardplan reads.

    shardplan.export(model, {"input_ids": ids, "labels": ids}, "gpt2.pt2")

The archive is what ``torch.export.save`` writes, in the form that keeps the structure of the model:
functional, with coarse operators, with the names of parameters, buffers, modules and inputs.
"""

from __future__ import annotations

import inspect
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import torch

Batch = Union[torch.Tensor, Sequence[Any], Mapping[str, Any]]
Loss = Callable[[Any, Any], torch.Tensor]
DynamicShapes = Union[Mapping[str, Any], Sequence[Any]]

# Beside the model in the archive: what the user calls the symbols of open dimensions.
_DIM_NAMES = "shardplan_dims.json"

__all__ = ["export", "named_inputs"]


def export(
    model: torch.nn.Module,
    batch: Batch,
    path: str | os.PathLike[str],
    loss: Loss | None = None,
    *,
    dynamic_shapes: DynamicShapes | None = None,
) -> str:
    """Exports the forward pass of ``model`` on ``batch``, up to its loss, to ``path`` (".pt2").

    ``batch`` is an example: shapes and dtypes count, values do not. A mapping is given to the model by
    name, a sequence by position, a tensor alone. With ``loss``, the model gets only the entries that its
    ``forward`` has parameters for, and ``loss(output, batch)`` must return a scalar tensor. Without it,
    the model must return its own loss: a scalar, a sequence or mapping that begins with one, or an object
    with a field ``loss`` (every model of transformers, given its labels).

    The model's mode (``train`` or ``eval``) is kept as it is. A model on the meta device is exported
    without any memory for its weights; such an archive is enough for planning.

    ``dynamic_shapes`` leaves dimensions open, as ``torch.export.export`` has it, by the names of the batch's
    entries or in their order: ``{"input_ids": {0: Dim("batch"), 1: Dim("seq")}}``. A string is a name for
    ``Dim.AUTO``. Sizes are given when the archive is read: ``shardplan plan model.pt2 --dim batch=64 ...``.

    Returns the path. Nothing is left behind when the export fails.
    """
    target = os.fspath(path)
    if not target.endswith(".pt2"):
        raise ValueError(f"{target}: the name of an exported model must end in .pt2")
    inputs = named_inputs(model, batch, whole=loss is not None)
    shapes = _shapes_by_name(dynamic_shapes, inputs)
    program = _trace(model, batch, inputs, loss, _without_strings(shapes))
    _save(program, target, _dim_names(program, shapes))
    return target


def named_inputs(model: torch.nn.Module, batch: Batch, *, whole: bool = True) -> dict[str, Any]:
    """The entries of ``batch`` by the names under which the exported graph has them.

    Entries of a sequence get the names of ``forward``'s parameters; further ones, which only a loss reads
    (``whole``), are ``target``, ``target_1``, ... Tensors on the CPU follow a model on the meta device,
    and a tensor that occurs twice is copied, so that it is two inputs and not one.
    """
    parameters, takes_any = _forward_parameters(model)
    if isinstance(batch, torch.Tensor):
        batch = (batch,)
    if isinstance(batch, Mapping):
        unknown = [name for name in batch if name not in parameters]
        if unknown and not (whole or takes_any):
            raise ValueError(
                f"{type(model).__name__}.forward has no parameter {unknown[0]!r}; "
                f"it has {', '.join(parameters)}"
            )
        entries = dict(batch)
    elif isinstance(batch, Sequence):
        if len(batch) > len(parameters) and not (whole or takes_any):
            raise ValueError(
                f"{type(model).__name__}.forward takes {len(parameters)} inputs, "
                f"the batch has {len(batch)}; give a loss(output, batch) that reads the others"
            )
        entries = {_name_of(i, parameters): value for i, value in enumerate(batch)}
    else:
        raise TypeError(f"a batch is a tensor, a sequence or a mapping, not {type(batch).__name__}")
    return _own_tensors(model, entries)


def _forward_parameters(model: torch.nn.Module) -> tuple[list[str], bool]:
    """Names of the parameters of ``forward``, and whether it takes further ones."""
    kinds = inspect.Parameter
    parameters = inspect.signature(model.forward).parameters
    names = [n for n, p in parameters.items() if p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
    return names, len(names) < len(parameters)


def _name_of(index: int, parameters: list[str]) -> str:
    if index < len(parameters):
        return parameters[index]
    extra = index - len(parameters)
    return "target" if extra == 0 else f"target_{extra}"


def _own_tensors(model: torch.nn.Module, entries: dict[str, Any]) -> dict[str, Any]:
    weight = next(iter(model.parameters()), None)
    on_meta = weight is not None and weight.device.type == "meta"
    seen: set[int] = set()
    owned = {}
    for name, value in entries.items():
        if isinstance(value, torch.Tensor):
            if on_meta and value.device.type != "meta":
                value = torch.empty_like(value, device="meta")
            elif id(value) in seen:
                value = value.clone()
            seen.add(id(value))
        owned[name] = value
    return owned


def _trace(
    model: torch.nn.Module,
    batch: Batch,
    inputs: dict[str, Any],
    loss: Loss | None,
    shapes: dict[str, Any] | None,
) -> torch.export.ExportedProgram:
    """Exports the model with a forward that takes ``inputs`` by name and returns the loss alone.

    The forward is replaced on the instance, not wrapped in another module: that would put a prefix before
    the name of every parameter.
    """
    forward = model.forward
    accepted, takes_any = _forward_parameters(model)
    fixed = {"use_cache": False} if "use_cache" in accepted and "use_cache" not in inputs else {}

    def forward_to_loss(**named: Any) -> torch.Tensor:
        known = {
            name: value
            for name, value in named.items()
            if name in accepted or (loss is None and takes_any)
        }
        output = forward(**known, **fixed)
        if loss is None:
            return _own_loss(output)
        return _checked(loss(output, _like(batch, named)), "the loss function returned")

    forward_to_loss.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in inputs]
    )
    had_own = "forward" in vars(model)
    model.forward = forward_to_loss  # type: ignore[method-assign]
    try:
        program = torch.export.export(model, (), kwargs=inputs, dynamic_shapes=shapes, strict=False)
    finally:
        if had_own:
            model.forward = forward  # type: ignore[method-assign]
        else:
            del model.forward
    _detach_without_grad(program)
    return program if _writes_without_grad(program) else program.run_decompositions({})


def _writes_without_grad(program: torch.export.ExportedProgram) -> bool:
    """Whether a region under ``torch.no_grad()`` writes into a tensor: the functional form forgets that no
    gradient flows through such a write. Shardplan makes these programs functional itself."""
    for region in program.graph.nodes:
        if region.target is not torch.ops.higher_order.wrap_with_set_grad_enabled or region.args[0]:
            continue
        module = getattr(program.graph_module, region.args[1].target)
        for node in module.graph.nodes:
            schema = getattr(node.target, "_schema", None)
            value = node.meta.get("val")
            if schema is not None and schema.is_mutable and (
                not isinstance(value, torch.Tensor) or value.is_floating_point()
            ):
                return True
    return False


def _detach_without_grad(program: torch.export.ExportedProgram) -> None:
    """Marks what a region under ``torch.no_grad()`` returns: the functional form forgets such regions, and
    gradients would flow where the model cuts them."""
    graph = program.graph_module.graph
    for region in list(graph.nodes):
        if region.target is not torch.ops.higher_order.wrap_with_set_grad_enabled or region.args[0]:
            continue
        for result in list(region.users):
            value = result.meta.get("val")
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            with graph.inserting_after(result):
                detached = graph.call_function(torch.ops.aten.detach.default, (result,))
            detached.meta.update(result.meta)
            result.replace_all_uses_with(detached, delete_user_cb=lambda user, own=detached: user is not own)
    program.graph_module.recompile()


def _shapes_by_name(shapes: DynamicShapes | None, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """A specification for every input, None where it is fixed."""
    if shapes is None:
        return None
    if not isinstance(shapes, Mapping):
        shapes = dict(zip(inputs, shapes, strict=True))
    unknown = [name for name in shapes if name not in inputs]
    if unknown:
        raise ValueError(
            f"dynamic_shapes names {unknown[0]!r}, the batch has the entries {', '.join(inputs)}"
        )
    return {name: shapes.get(name) for name in inputs}


def _dims_of(shape: Any) -> dict[int, Any]:
    """Dimension -> Dim, string or None of one input's specification."""
    if isinstance(shape, Mapping):
        return dict(shape)
    return dict(enumerate(shape)) if isinstance(shape, (tuple, list)) else {}


def _without_strings(shapes: dict[str, Any] | None) -> dict[str, Any] | None:
    if shapes is None:
        return None
    automatic = torch.export.Dim.AUTO
    return {
        name: {d: automatic if isinstance(dim, str) else dim for d, dim in _dims_of(shape).items()}
        if isinstance(shape, (Mapping, tuple, list))
        else shape
        for name, shape in shapes.items()
    }


def _dim_names(program: torch.export.ExportedProgram, shapes: dict[str, Any] | None) -> dict[str, str]:
    """Symbol -> name of the Dim that the user gave it; archives keep only the symbols."""
    names: dict[str, str] = {}
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for input_name, shape in (shapes or {}).items():
        value = placeholders[input_name].meta.get("val") if input_name in placeholders else None
        for d, dim in _dims_of(shape).items():
            size = value.shape[d] if isinstance(value, torch.Tensor) else None
            free = list(size.node.expr.free_symbols) if isinstance(size, torch.SymInt) else []
            # A Dim such as 2 * half is bound through half, its root.
            root = getattr(dim, "root", dim)
            name = root if isinstance(root, str) else getattr(root, "__name__", None)
            if len(free) == 1 and name is not None:
                names[str(free[0])] = name
    return names


def _like(batch: Batch, named: dict[str, Any]) -> Any:
    """The traced inputs in the structure of the user's batch."""
    if isinstance(batch, torch.Tensor):
        return next(iter(named.values()))
    if isinstance(batch, Mapping):
        return named
    return tuple(named.values())


def _own_loss(output: Any) -> torch.Tensor:
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, Mapping):
        loss = output.get("loss", next(iter(output.values()), None))
    elif loss is None and isinstance(output, (tuple, list)):
        loss = output[0] if output else None
    elif loss is None:
        loss = output
    return _checked(loss, "the model returned")


def _checked(loss: Any, subject: str) -> torch.Tensor:
    if isinstance(loss, torch.Tensor) and loss.dim() == 0 and loss.is_floating_point():
        return loss
    found = (
        f"a tensor of shape {list(loss.shape)} and {loss.dtype}"
        if isinstance(loss, torch.Tensor)
        else type(loss).__name__
    )
    raise ValueError(
        f"{subject} {found} where a scalar loss is needed: give the batch its labels, "
        "or give export a loss(output, batch)"
    )


def _save(program: torch.export.ExportedProgram, path: str, dims: dict[str, str]) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"the folder {folder} does not exist")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".shardplan-") as scratch:
        # The archive's top folder is named after the file, so the name is kept.
        temporary = os.path.join(scratch, os.path.basename(path))
        extra = {_DIM_NAMES: json.dumps(dims, sort_keys=True)} if dims else None
        torch.export.save(program, temporary, extra_files=extra)
        os.replace(temporary, path)

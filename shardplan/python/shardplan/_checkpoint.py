"""Training steps in checkpoints of torch.distributed.checkpoint (DCP).

A checkpoint is a folder as DCP writes it. Its entries do not depend on the plan:

    model.<name>                 every weight and buffer under every name of the module, in the module's
                                 shape, in full precision where the step holds that
    optimizer.<name>.exp_avg     every state of the optimizer, in the shape of its weight
    optimizer.step
    training.steps, training.seed    all that random numbers depend on

Each rank writes and reads only its own parts. So any plan on any number of ranks can go on from it, and
``dcp.load({"model": module.state_dict()}, checkpoint_id=folder)`` reads the weights without Shardplan.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import itertools
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

__all__ = ["Entry", "entries_of", "load", "save"]

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes


@dataclasses.dataclass
class Entry:
    """One tensor of a checkpoint, and the boxes of it that this rank holds, as views of its memory."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    boxes: dict[tuple[int, ...], torch.Tensor]  # by their offsets

    @staticmethod
    def whole(name: str, tensor: torch.Tensor) -> Entry:
        return Entry(name, tuple(tensor.shape), tensor.dtype, {(0,) * tensor.dim(): tensor})


def entries_of(pieces: list[dict[str, Any]], *, saving: bool) -> list[Entry]:
    """The entries of a step's parameters, buffers and optimizer states.

    A weight that has a copy in full precision is saved from that copy alone, and loaded into both.
    """
    copied = {piece["copy_of"]: piece for piece in pieces if piece["copy_of"]}
    entries = []
    for piece in pieces:
        if piece["copy_of"]:
            continue
        state = piece["kind"] == "state"
        known = piece["name"].startswith("optimizer.")
        prefix = "" if known and state else "optimizer." if state else "model."
        sources = [piece]
        if piece["name"] in copied and not state:
            copy = copied[piece["name"]]
            sources = [copy] if saving else [piece, copy]
        names = [piece["name"], *(piece["aliases"] if saving else ())]
        for name, source in itertools.product(names, sources):
            shape = tuple(source["module_shape"])
            entries.append(Entry(prefix + name, shape, source["part"].dtype, boxes_of(source)))
    return entries


def boxes_of(piece: dict[str, Any]) -> dict[tuple[int, ...], torch.Tensor]:
    """The part of a piece as boxes of the module's tensor: one box in most cases, several where the
    step has the weight in another shape (12 heads of 64 instead of 768 columns)."""
    part, shape, target = piece["part"], piece["shape"], piece["module_shape"]
    if part.numel() == 0:
        return {} if math.prod(target) else {(0,) * len(target): part.view(target)}
    groups = list(_groups(shape, target))
    lengths = [math.prod(part.shape[d] for d in here) for here, _ in groups]
    choices = []
    for here, there in groups:
        runs = _runs(*([values[d] for d in here] for values in (shape, piece["offsets"], part.shape)))
        choices.append(list(_boxes_in_runs([target[d] for d in there], runs)))
    boxes = {}
    for chosen in itertools.product(*choices):
        view = part.view(lengths)
        for dim, (start, length, _) in enumerate(chosen):
            view = view.narrow(dim, start, length)
        offsets = tuple(x for _, _, box in chosen for x in box[0])
        boxes[offsets] = view.view([x for _, _, box in chosen for x in box[1]])
    return boxes


def _groups(one: list[int], other: list[int]) -> Iterator[tuple[range, range]]:
    """Shortest runs of dimensions of two shapes of one contiguous tensor that cover the same elements."""
    i = j = 0
    while i < len(one) or j < len(other):
        i0, j0, size, other_size = i, j, 1, 1
        while (i, j) == (i0, j0) or size != other_size:
            if i < len(one) and (size <= other_size or j == len(other)):
                size *= one[i]
                i += 1
            else:
                other_size *= other[j]
                j += 1
        yield range(i0, i), range(j0, j)


def _runs(shape: list[int], offsets: list[int], sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Start and length, in row-major positions of `shape`, of the runs that a box consists of."""
    inner = len(shape)
    while inner > 0 and sizes[inner - 1] == shape[inner - 1]:
        inner -= 1
    outer = max(inner - 1, 0)
    length = math.prod(sizes[outer:])
    for index in itertools.product(*(range(size) for size in sizes[:outer])):
        start = 0
        for d, size in enumerate(shape):
            start = start * size + offsets[d] + (index[d] if d < outer else 0)
        yield start, length


def _boxes_in_runs(
    shape: list[int], runs: Iterator[tuple[int, int]]
) -> Iterator[tuple[int, int, Box]]:
    """The boxes of `shape` that the runs cover, each with its place and length in their sequence."""
    place = 0
    for start, length in runs:
        for box in _boxes(shape, start, start + length):
            size = math.prod(box[1])
            yield place, size, box
            place += size


def _boxes(shape: list[int], start: int, stop: int) -> Iterator[Box]:
    """Boxes of row-major positions [start, stop) of `shape`, in their order."""
    if len(shape) == 0:
        yield (), ()
        return
    if len(shape) == 1:
        yield (start,), (stop - start,)
        return
    inner = math.prod(shape[1:])
    row = start // inner
    while start < stop:
        rows = (stop - start) // inner if start % inner == 0 else 0
        if rows > 0:
            yield (row, *([0] * (len(shape) - 1))), (rows, *shape[1:])
            start += rows * inner
            row += rows
            continue
        end = min(stop, (row + 1) * inner)
        for offsets, sizes in _boxes(shape[1:], start - row * inner, end - row * inner):
            yield (row, *offsets), (1, *sizes)
        start = end
        row += 1


class _Saving(dcp.DefaultSavePlanner):
    """Writes the boxes of entries; those that several ranks hold are written by one of them."""

    def __init__(self, entries: list[Entry]):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._boxes = {(e.name, offsets): box for e in entries for offsets, box in e.boxes.items()}
        self._entries = entries

    def create_local_plan(self) -> SavePlan:
        items = []
        for entry in self._entries:
            for offsets, box in entry.boxes.items():
                items.append(
                    WriteItem(
                        MetadataIndex(entry.name, torch.Size(offsets)),
                        WriteItemType.SHARD,
                        tensor_data=TensorWriteData(
                            ChunkStorageMetadata(torch.Size(offsets), box.size()),
                            TensorProperties(dtype=entry.dtype),
                            torch.Size(entry.shape),
                        ),
                    )
                )
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        return self._boxes[index.fqn, tuple(index.offset)]


class _Loading(dcp.DefaultLoadPlanner):
    """Reads into the boxes of entries; several entries may read one name."""

    def __init__(self, entries: list[Entry]):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._entries = entries

    def create_local_plan(self) -> LoadPlan:
        items = []
        for number, entry in enumerate(self._entries):
            chunks = [
                ChunkStorageMetadata(torch.Size(offsets), box.size())
                for offsets, box in entry.boxes.items()
                if box.numel() > 0
            ]
            stored = self.metadata.state_dict_metadata[entry.name]
            for item in create_read_items_for_chunk_list(entry.name, stored, chunks):
                index = dataclasses.replace(item.dest_index, fqn=str(number))
                items.append(dataclasses.replace(item, dest_index=index))
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return self._entries[int(index.fqn)].boxes[tuple(index.offset)]


class _Ranks:
    """What the ranks tell each other; one alone talks to itself."""

    def __init__(self, group: Optional[dist.ProcessGroup]):
        self.group = group
        self.many = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.first = not self.many or dist.get_rank() == 0

    def on_first(self, work: Callable[[], Any]) -> Any:
        """Rank 0's result of `work`, on all ranks; its error, too."""
        outcome: list[Any] = [None, None]
        if self.first:
            try:
                outcome[0] = work()
            except (OSError, ValueError, RuntimeError) as error:
                outcome[1] = error
        if self.many:
            dist.broadcast_object_list(outcome, src=0, group=self.group)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def agree(self, error: Optional[Exception]) -> None:
        """Raises the first rank's error, on all ranks."""
        errors = [error]
        if self.many:
            errors = [None] * dist.get_world_size()
            dist.all_gather_object(errors, error, group=self.group)
        for found in errors:
            if found is not None:
                raise found


def save(entries: list[Entry], folder: str, group: Optional[dist.ProcessGroup]) -> None:
    """Writes a checkpoint: beside the folder first, renamed to it when all of it is on the disk."""
    ranks = _Ranks(group)
    target = os.path.abspath(folder)
    scratch = ranks.on_first(lambda: _begin(target))
    failure = ""
    try:
        dcp.save(
            {},
            storage_writer=dcp.FileSystemWriter(scratch),
            planner=_Saving(entries),
            process_group=group,
            no_dist=not ranks.many,
        )
    except (Exception, CheckpointException) as error:  # noqa: BLE001: all that DCP raises
        failure = _why(error)
    if failure:
        if ranks.first:
            shutil.rmtree(scratch, ignore_errors=True)
        raise RuntimeError(
            f"the checkpoint {target} was not written ({failure}); what was there before is unchanged"
        )
    ranks.on_first(lambda: _publish(scratch, target))


def _why(error: BaseException) -> str:
    """The cause in one line, with the rank that had it."""
    failures = getattr(error, "failures", None)
    if failures:
        rank, (cause, _) = next(iter(sorted(failures.items())))
        return f"rank {rank}: {_why(cause)}"
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _scratch_prefix(target: str) -> str:
    return f".{os.path.basename(target)}.unfinished-"


def _unfinished(target: str) -> list[str]:
    """Folders that savers of this checkpoint left behind when they were killed."""
    parent, prefix = os.path.dirname(target), _scratch_prefix(target)
    names = sorted(os.listdir(parent)) if os.path.isdir(parent) else []
    return [os.path.join(parent, name) for name in names if name.startswith(prefix)]


def _begin(target: str) -> str:
    if os.path.exists(target) and not _is_checkpoint(target) and not _is_empty_folder(target):
        raise FileExistsError(
            f"{target} exists and is no checkpoint: it is not replaced; give another folder"
        )
    os.makedirs(os.path.dirname(target), exist_ok=True)
    for left in _unfinished(target):
        shutil.rmtree(left, ignore_errors=True)
    scratch = os.path.join(os.path.dirname(target), _scratch_prefix(target) + secrets.token_hex(4))
    os.mkdir(scratch)
    return scratch


def _is_checkpoint(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, ".metadata"))


def _is_empty_folder(folder: str) -> bool:
    return os.path.isdir(folder) and not os.listdir(folder)


def _publish(scratch: str, target: str) -> None:
    """Gives the finished checkpoint its name. One that has the name already keeps it until then: at no
    moment is there a folder of that name that is not whole."""
    for name in os.listdir(scratch):
        _sync(os.path.join(scratch, name))
    _sync(scratch)
    if not _is_checkpoint(target):
        os.rename(scratch, target)
    elif not _exchange(scratch, target):
        # For a moment no folder has the name; the old one keeps another.
        previous = _previous(target)
        os.rename(target, previous)
        os.rename(scratch, target)
    _sync(os.path.dirname(target))
    for old in (scratch, _previous(target)):
        shutil.rmtree(old, ignore_errors=True)


def _previous(target: str) -> str:
    return os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.previous")


def _exchange(one: str, other: str) -> bool:
    """Swaps the names of two folders in one stroke; False where the file system cannot (NFS)."""
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), other)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(entries: list[Entry], folder: str, group: Optional[dist.ProcessGroup]) -> None:
    """Fills the entries from a checkpoint. Everything is checked before anything is overwritten."""
    ranks = _Ranks(group)
    source = os.path.abspath(folder)
    error: Optional[Exception] = None
    try:
        _check(_metadata(source), entries, source)
    except (OSError, ValueError) as found:
        error = found
    ranks.agree(error)
    try:
        dcp.load(
            {},
            storage_reader=dcp.FileSystemReader(source),
            planner=_Loading(entries),
            process_group=group,
            no_dist=not ranks.many,
        )
    except (Exception, CheckpointException) as found:  # noqa: BLE001: all that DCP raises
        raise RuntimeError(
            f"the checkpoint {source} cannot be read ({_why(found)}); the step holds parts of it: "
            "load another one before going on"
        ) from None


def _metadata(source: str) -> Metadata:
    if not os.path.isdir(source):
        left = _unfinished(source)
        note = f"; {left[0]} is what a save left that did not finish" if left else ""
        if os.path.isdir(_previous(source)):
            note = f"; {_previous(source)} is the one before it"
        raise FileNotFoundError(f"there is no checkpoint {source}{note}")
    if not _is_checkpoint(source):
        raise ValueError(
            f"{source} is no whole checkpoint: it lacks .metadata, which is written last"
        )
    try:
        metadata = dcp.FileSystemReader(source).read_metadata()
    except Exception as error:  # noqa: BLE001: a damaged pickle raises anything
        raise ValueError(f"{source}/.metadata cannot be read: {_why(error)}") from None
    for info in metadata.storage_data.values():
        path = os.path.join(source, info.relative_path)
        size = os.path.getsize(path) if os.path.isfile(path) else -1
        if size < info.offset + info.length:
            what = "is missing" if size < 0 else f"is cut off after {size} bytes"
            raise ValueError(f"{source} is no whole checkpoint: its file {info.relative_path} {what}")
    return metadata


def _check(metadata: Metadata, entries: list[Entry], source: str) -> None:
    stored = metadata.state_dict_metadata
    for entry in entries:
        found = stored.get(entry.name)
        if not isinstance(found, TensorStorageMetadata):
            why = "of another optimizer" if entry.name.startswith("optimizer.") else "of another model"
            if entry.name.startswith("training."):
                why = "that Shardplan did not write"
            raise ValueError(f"{source} has no entry {entry.name!r}: it is a checkpoint {why}")
        if tuple(found.size) != entry.shape:
            raise ValueError(
                f"{source}: {entry.name!r} has shape {list(found.size)}, the step's is {list(entry.shape)}"
            )
    needed = {entry.name for entry in entries}
    surplus = [name for name in sorted(stored) if name.startswith("optimizer.") and name not in needed]
    if surplus:
        raise ValueError(f"{source} is of another optimizer: it has {surplus[0]!r}")

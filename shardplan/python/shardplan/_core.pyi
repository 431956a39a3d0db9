"""The C++ core (shardplan/python/bindings.cc)."""

from typing import Any, Mapping, Sequence

import torch
import torch.distributed

class Planned:
    json: str
    planner: str
    mesh: list[tuple[str, int]]
    world_size: int
    schedule: str | None
    prediction: dict[str, float]
    inputs: list[tuple[str, str, list[int]]]
    def needed_groups(self) -> list[tuple[list[int], str]]: ...
    def explain(self) -> list[tuple[list[tuple[str, int]], list[dict[str, Any]]]]: ...

class Training:
    peak_bytes: int
    def step(self, batch: Mapping[str, torch.Tensor]) -> float: ...
    def weights(self) -> list[tuple[list[str], list[int]]]: ...
    def gather(self, name: str) -> torch.Tensor: ...
    def load(self, name: str, full: torch.Tensor) -> None: ...

class MemoryMeter:
    peak_bytes: int
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def reset_peak(self) -> None: ...

def plan(
    model: str,
    cluster: str,
    planner: str,
    optimizer: str,
    precision: str,
    memory: str,
    clip_norm: float,
    microbatches: int,
    dims: Mapping[str, int] = ...,
    loss: str = ...,
    target: str = ...,
) -> Planned: ...
def read_plan(
    model: str, optimizer: str, precision: str, clip_norm: float, microbatches: int, json: str
) -> Planned: ...
def start(
    planned: Planned,
    rank: int,
    seed: int,
    process_groups: Sequence[tuple[list[int], str, torch.distributed.ProcessGroup]],
) -> Training: ...

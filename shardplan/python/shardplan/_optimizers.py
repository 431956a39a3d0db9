"""Optimizers by their settings: the definitions and defaults of torch.optim."""

from dataclasses import dataclass, fields
from typing import ClassVar, Union


class _Optimizer:
    kind: ClassVar[str]

    def __str__(self) -> str:
        """The text form of the command line, "adamw:lr=0.001,beta1=0.9"."""
        settings = ",".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
        return f"{self.kind}:{settings}"


@dataclass(frozen=True)
class SGD(_Optimizer):
    """torch.optim.SGD; `weight_decay` is added to the gradient."""

    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    kind: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Adam(_Optimizer):
    """torch.optim.Adam; `weight_decay` is added to the gradient."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    kind: ClassVar[str] = "adam"


@dataclass(frozen=True)
class AdamW(_Optimizer):
    """torch.optim.AdamW; `weight_decay` shrinks the weights apart from the gradient."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    kind: ClassVar[str] = "adamw"


Optimizer = Union[SGD, Adam, AdamW]

"""Run by torchrun, or alone: what goes wrong in distributed training without a sound. Every case is trained
on all ranks and compared with PyTorch on the whole batch; prints one line a case."""

import copy
import os
import sys

import torch
from torch import nn
from torch.nn import functional as F

import shardplan
from truth import difference, train

ROWS, WIDTH, CLASSES = 8, 16, 8


class UnevenTokens(nn.Module):
    """A mean over the tokens that count: few in one row, none in another."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids, labels):
        logits = self.head(self.embedding(ids).tanh())
        return F.cross_entropy(logits.view(-1, CLASSES), labels.view(-1))

    @staticmethod
    def draw():
        ids, labels = torch.randint(CLASSES, (2, ROWS, 4))
        labels[2:6] = -100
        labels[1, 1:] = -100
        return {"ids": ids, "labels": labels}


class SharedByHeads(nn.Module):
    """Heads share a norm's weight and a temperature, which every rank with some heads holds."""

    heads = 4

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH // self.heads))
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, target):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q = q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        scores = (q @ k.transpose(-1, -2)) * self.temperature
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        return (self.out(y) - target).pow(2).mean()

    @staticmethod
    def draw():
        return {"x": torch.randn(ROWS, 4, WIDTH), "target": torch.randn(ROWS, 4, WIDTH)}


class Tied(nn.Module):
    """One table as embedding and as head: one gradient, counted once in the norm."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(CLASSES, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids, labels):
        return F.cross_entropy(self.head(self.middle(self.table(ids)).relu()), labels)

    @staticmethod
    def draw():
        return {"ids": torch.randint(CLASSES, (ROWS,)), "labels": torch.randint(CLASSES, (ROWS,))}


class OddParameters(nn.Module):
    """A scalar, a frozen base with a small adapter, an unused one, a frozen one, and an integer table."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.base = nn.Linear(WIDTH, WIDTH)
        self.base.requires_grad_(False)
        self.down = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Linear(4, WIDTH, bias=False)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("order", torch.randperm(WIDTH))

    def forward(self, x, target):
        y = self.base(x) + self.up(self.down(x))
        return (self.gain * y[:, self.order] - target).pow(2).mean()

    @staticmethod
    def draw():
        return {"x": torch.randn(ROWS, WIDTH), "target": torch.randn(ROWS, WIDTH)}


class IdleExpert(nn.Module):
    """The router sends no token to the last expert."""

    experts = 4

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, self.experts)
        self.router.bias.data[-1] = -1e4
        self.up = nn.Parameter(0.3 * torch.randn(self.experts, WIDTH, 2 * WIDTH))
        self.down = nn.Parameter(0.3 * torch.randn(self.experts, 2 * WIDTH, WIDTH))

    def forward(self, x, target):
        weights, chosen = self.router(x).softmax(-1).max(-1)
        dispatch = F.one_hot(chosen, self.experts).to(x.dtype)
        inputs = torch.einsum("te,tk->etk", dispatch, x)
        outputs = torch.einsum("etk,ekn->etn", inputs, self.up).relu() @ self.down
        y = torch.einsum("te,etn->tn", dispatch * weights[:, None], outputs)
        return (y - target).pow(2).mean()

    draw = OddParameters.draw


class BatchStatistics(nn.Module):
    """Six rows, which four ranks hold unevenly."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, target):
        return (self.second(self.norm(self.first(x)).relu()) - target).pow(2).mean()

    @staticmethod
    def draw():
        return {"x": torch.randn(6, WIDTH), "target": torch.randn(6, WIDTH)}


class PaddedVocabulary(nn.Module):
    """Rows that no rank count divides, one of which gets no gradient."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(13, WIDTH, padding_idx=2)
        self.head = nn.Linear(WIDTH, 13)

    def forward(self, ids, labels):
        return F.cross_entropy(self.head(self.table(ids).sum(1)), labels, ignore_index=2)

    @staticmethod
    def draw():
        ids = torch.randint(13, (ROWS, 4))
        ids[:, 0] = 2
        labels = torch.randint(3, 13, (ROWS,))
        labels[:3] = 2
        return {"ids": ids, "labels": labels}


class MaskedMean(nn.Module):
    """Pools rows by a mask and weighs them by a float, with a regulariser and an auxiliary loss."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(CLASSES, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids, mask, labels, weight):
        keep = mask.unsqueeze(-1).to(weight.dtype)
        pooled = (self.table(ids) * keep).sum(1) / keep.sum(1).clamp(min=1e-9)
        logits = self.head(pooled)
        losses = F.cross_entropy(logits, labels, reduction="none")
        main = (losses * weight).sum() / weight.sum().clamp(min=1.0)
        return main + 1e-2 * self.head.weight.pow(2).sum() + 0.1 * logits.pow(2).mean()

    @staticmethod
    def draw():
        return {
            "ids": torch.randint(CLASSES, (ROWS, 4)),
            "mask": torch.rand(ROWS, 4) > 0.3,
            "labels": torch.randint(CLASSES, (ROWS,)),
            "weight": torch.rand(ROWS) * torch.tensor([0.0] * 4 + [1.0] * 4),
        }


class TwoLosses(nn.Module):
    """Two means over different tokens, added."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(CLASSES, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.other = nn.Linear(WIDTH, 2)

    def forward(self, ids, labels, next_labels):
        h = self.table(ids)
        a = F.cross_entropy(self.head(h).view(-1, CLASSES), labels.view(-1), label_smoothing=0.1)
        b = F.cross_entropy(self.other(h[:, 0]), next_labels)
        return a + b

    @staticmethod
    def draw():
        batch = UnevenTokens.draw()
        batch["next_labels"] = torch.randint(2, (ROWS,))
        batch["next_labels"][3:5] = -100
        return batch


def strided(batch):
    """The same content in memory with gaps, or transposed."""
    out = {}
    for name, value in batch.items():
        gaps = torch.zeros(*value.shape, 2, dtype=value.dtype)
        gaps[..., 0] = value
        out[name] = gaps[..., 0]
    return out


CASES = [
    (UnevenTokens, ("dp", "zero3", "map"), {}),
    (UnevenTokens, ("dp", "map"), {"microbatches": 2}),
    (UnevenTokens, ("dp", "zero2"), {"microbatches": 4, "clip_norm": 0.1}),
    (MaskedMean, ("map",), {"microbatches": 2}),
    (MaskedMean, ("dp",), {"microbatches": 4}),
    (TwoLosses, ("zero3", "map"), {"microbatches": 4}),
    (SharedByHeads, ("megatron", "map", "zero3"), {"clip_norm": 0.05}),
    (Tied, ("dp", "zero3", "megatron", "map"), {"clip_norm": 0.05}),
    (OddParameters, ("dp", "zero3", "megatron", "map"), {"clip_norm": 0.05}),
    (IdleExpert, ("dp", "zero3", "map"), {}),
    (BatchStatistics, ("dp", "zero3", "map"), {}),
    (PaddedVocabulary, ("dp", "zero3", "megatron", "map"), {}),
    (PaddedVocabulary, ("map",), {"microbatches": 2}),
]


def compare(kind, planner, options, give=lambda batch: batch):
    torch.manual_seed(0)
    model = kind().double()
    batches = []
    for _ in range(3):
        batch = kind.draw()
        batches.append({k: v.double() if v.is_floating_point() else v for k, v in batch.items()})
    settings = {"lr": 1e-2, "weight_decay": 0.3}
    step = shardplan.parallelize(
        model, batches[0], planner=planner, optimizer=shardplan.AdamW(**settings), **options
    )
    losses = [step(give(batch)) for batch in batches]
    state = step.state_dict()
    expected, truth = train(
        copy.deepcopy(model),
        batches,
        lambda parameters: torch.optim.AdamW(parameters, **settings),
        clip_norm=options.get("clip_norm", 0.0),
    )
    worst, where = difference(state, truth)
    assert worst < 1e-9, f"{kind.__name__} {planner} {options}: {where} differs by {worst}"
    for got, want in zip(losses, expected, strict=True):
        assert abs(got - want) < 1e-9 * abs(want), (kind.__name__, planner, losses, expected)
    return step


def main():
    only = sys.argv[1:]
    for kind, planners, options in CASES:
        for planner in planners:
            if not only or kind.__name__ in only:
                step = compare(kind, planner, options)
                print(f"{kind.__name__} {planner} {options} equal", flush=True)
    if not only:
        compare(SharedByHeads, "megatron", {}, strided)
        print("Strided equal", flush=True)
    if not only or "OddParameters" in only:
        step = compare(OddParameters, "zero3", {})
        states = [p["name"] for p in step._training.pieces(True) if p["kind"] == "state"]
        assert not [name for name in states if name.startswith(("base", "unused", "order"))], states
        print("NoStateForFrozen equal", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if os.environ.get("RANK", "0") == "0":
        print("all cases done")


main()

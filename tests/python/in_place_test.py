"""Archives with in-place operators and views, trained on one device, against PyTorch.

torch.export leaves them in; shardplan.export asks PyTorch to take them out. Here it must not.
"""

import contextlib
import unittest
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

import shardplan
from truth import difference, train


class Chain(nn.Module):
    """In-place activations and arithmetic on whole tensors."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 5)

    def forward(self, x, target):
        h = F.leaky_relu(self.first(x), 0.1, inplace=True).clone()
        h.mul_(1.5).add_(x.sum(-1, keepdim=True))
        h /= 1.0 + h.detach().abs().mean()
        h.masked_fill_(h > 1.5, 0.25).clamp_(min=-0.5)
        out = self.second(h)
        out -= out.mean(-1, keepdim=True)
        return F.cross_entropy(out, target)


class Views(Chain):
    """Writes through views, read through others and through the base."""

    def forward(self, x, target):
        h = self.first(x).tanh().clone()
        grid = h.view(-1, 2, 4)
        turned = grid.transpose(1, 2)
        grid[:, 0] *= 2.0
        turned[:, 1:3].add_(x[:, :1, None])
        h[:, 6] = 0.5
        left, right = h.clone().chunk(2, 1)
        last = h.unsqueeze(0).permute(0, 2, 1)[0, -1]
        last.copy_(x[:, 0] * h[:, 0])
        h[:, ::2].mul_(0.5)
        z = h + torch.cat([right, left], 1)
        return F.cross_entropy(self.second(z + turned.reshape(-1, 8)), target)


class Filled(Chain):
    """A result that is written piece by piece."""

    def forward(self, x, target):
        h = self.first(x)
        out = torch.zeros_like(h)
        for i in range(4):
            out[:, i] = h[:, 2 * i] * (i + 1)
        out[:, 4:] = h[:, :4].sigmoid()
        rows = torch.tensor([0, 2])
        out[rows] = out[rows] * 0.5
        out.index_add_(1, torch.tensor([1, 3]), h[:, 5:7])
        return F.cross_entropy(self.second(out), target)


class Statistics(Chain):
    """Buffers: running statistics, a counter, an average kept under no_grad."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("average", torch.zeros(8))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x, target):
        h = F.relu(self.norm(self.first(x)), inplace=True)
        with torch.no_grad():
            self.steps += 1
            self.average.mul_(0.9).add_(h.mean(0), alpha=0.1)
            scale = h.abs().amax()
        h = self.norm(h + self.average) / (1 + scale)
        return F.cross_entropy(self.second(h), target)


class Running(Statistics):
    """Computes with running statistics, through which no gradient passes."""

    def forward(self, x, target):
        h = self.norm(self.first(x)) * self.norm.running_mean.exp()
        h = self.norm(h) / (1 + self.norm.running_var)
        return F.cross_entropy(self.second(h), target)


class Detached(Chain):
    """Divides by a norm that no gradient flows through, and adds half of what is detached."""

    def forward(self, x, target):
        h = self.first(x).tanh()
        with torch.no_grad():
            norm = h.norm(dim=-1, keepdim=True)
        h = h / norm + 0.5 * h.detach()
        return F.cross_entropy(self.second(h), target)


class Spectral(nn.Module):
    """Power iterations under no_grad, with out=, in buffers."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        self.second = nn.Linear(8, 5)

    def forward(self, x, target):
        return F.cross_entropy(self.second(self.first(x).tanh()), target)


def raw():
    """torch.export without the step that makes programs functional."""
    return mock.patch.object(
        torch.export.ExportedProgram, "run_decompositions", lambda program, _table: program
    )


class InPlace(unittest.TestCase):
    def check(self, kind, exported=raw):
        torch.manual_seed(0)
        model = kind().double().train()
        batches = [
            {"x": torch.randn(7, 6, dtype=torch.float64), "target": torch.randint(5, (7,))}
            for _ in range(3)
        ]
        with exported():
            step = shardplan.parallelize(model, batches[0], optimizer=shardplan.AdamW(lr=1e-2))
        losses = [step(batch) for batch in batches]
        expected, truth = train(model, batches, lambda p: torch.optim.AdamW(p, lr=1e-2))
        for got, want in zip(losses, expected):
            self.assertLess(abs(got - want), 1e-9 * abs(want))
        worst, where = difference(step.state_dict(), truth)
        self.assertLess(worst, 1e-9, where)

    def test_models(self):
        for kind in (Chain, Views, Filled, Statistics, Running, Detached):
            with self.subTest(kind.__name__):
                self.check(kind)

    def test_regions_without_gradients_are_kept_by_export(self):
        for kind in (Running, Detached, Spectral):
            with self.subTest(kind.__name__):
                self.check(kind, contextlib.nullcontext)

    def test_input_changed_in_place(self):
        class ChangesInput(nn.Linear):
            def forward(self, x):
                x.mul_(2)
                return super().forward(x).sum()

        with raw(), self.assertRaisesRegex(ValueError, "changes its input 'x' in place"):
            shardplan.parallelize(ChangesInput(3, 2), (torch.randn(4, 3),))


if __name__ == "__main__":
    unittest.main()

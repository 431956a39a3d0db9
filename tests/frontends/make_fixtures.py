"""Writes the archives in tests/frontends/fixtures. Run from the root: .venv/bin/python tests/frontends/make_fixtures.py

Large ones are packed again with compression, so that each stays well under 100 KB.
"""

import importlib.util
import pathlib
import zipfile

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/frontends/fixtures"

_spec = importlib.util.spec_from_file_location(
    "shardplan_export", ROOT / "shardplan/python/shardplan/_export.py"
)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
export = _module.export


def compress(path: pathlib.Path) -> None:
    """Packs the archive again with compression and without what Shardplan does not read."""
    with zipfile.ZipFile(path) as source:
        entries = [(name, source.read(name)) for name in source.namelist() if "sample_inputs" not in name]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for name, content in entries:
            target.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


class TwoLayers(nn.Module):
    """One weight stored transposed, so its elements are not in row-major order in the archive."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.first.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4).t())
        self.second = nn.Linear(4, 2)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))) * self.frozen


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x).amax(-1).sum()


class EmptyRest(nn.Module):
    """Cuts off and joins again what has no elements, as rotary embeddings of whole heads do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        first, none = h.split([4, 0], -1)
        return torch.cat([first.tanh(), none * 2, h[..., 4:]], -1).sum()


class InPlace(nn.Module):
    """Writes into tensors, views of them, a buffer and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(4, 5)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm(self.first(x)), inplace=True)
        pairs = h.view(-1, 2, 4)
        pairs.mul_(2.0)
        pairs[:, 0].add_(1.0)
        pairs[:, 1, 1:3] = 0.5
        pairs.transpose(1, 2)[:, 0] += 1
        with torch.no_grad():
            self.seen.mul_(0.9).add_(x.mean())
        h[:, 0:2].copy_(h[:, 2:4] * 2)
        h.masked_fill_(h > 3, 0.0)
        out = self.second(pairs.sum(1) + self.seen)
        return F.cross_entropy(out, target)


def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=19, n_positions=8)).train()


def main() -> None:
    torch.manual_seed(0)
    FIXTURES.mkdir(exist_ok=True)
    ids = torch.randint(0, 19, (2, 8))
    tokens = {"input_ids": ids, "labels": ids}
    target = torch.randint(0, 2, (5,))
    export(
        TwoLayers(),
        (torch.randn(5, 3), target),
        FIXTURES / "mlp.pt2",
        loss=lambda out, batch: F.cross_entropy(out, batch[1]),
    )
    export(gpt2(), tokens, FIXTURES / "gpt2.pt2")
    with torch.device("meta"):
        on_meta = gpt2()
    export(on_meta, tokens, FIXTURES / "gpt2_meta.pt2")
    llama = LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=1,
            hidden_size=16,
            intermediate_size=24,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=19,
            max_position_embeddings=8,
        )
    )
    export(llama, tokens, FIXTURES / "llama.pt2")
    export(Normed(), {"x": torch.randn(5, 3)}, FIXTURES / "batch_norm.pt2")
    export(EmptyRest(), {"x": torch.randn(5, 3)}, FIXTURES / "empty_rest.pt2")
    shape = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=8)}
    export(
        gpt2(),
        tokens,
        FIXTURES / "gpt2_dynamic.pt2",
        dynamic_shapes={"input_ids": shape, "labels": shape},
    )
    raw = torch.export.export(InPlace(), (torch.randn(5, 3), target), strict=False)
    torch.export.save(raw, FIXTURES / "in_place.pt2")
    torch.export.save(raw.run_decompositions({}), FIXTURES / "in_place_functional.pt2")
    packed = (
        "gpt2", "gpt2_meta", "gpt2_dynamic", "llama", "batch_norm", "empty_rest", "in_place", "in_place_functional")
    for name in packed:
        compress(FIXTURES / f"{name}.pt2")

    x = torch.randn(5, 3)
    logits = torch.export.export(nn.Linear(3, 2), (x,), strict=False)
    torch.export.save(logits, FIXTURES / "no_loss.pt2")
    dynamic = torch.export.export(
        nn.Linear(3, 2), (x,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
    )
    torch.export.save(dynamic, FIXTURES / "dynamic.pt2")
    for path in sorted(FIXTURES.glob("*.pt2")):
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()

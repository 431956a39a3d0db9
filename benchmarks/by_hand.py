#!/usr/bin/env python3
"""A GPT-2 in plain PyTorch, and its training on several ranks as a user writes it by hand.

hand_bench.py starts one process of this file for each rank, with RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT set:

    by_hand.py ddp|fsdp|tensor|one --steps 6 [--width 256 ...]

Rank 0 prints one JSON object: seconds of every step, and the peak bytes of its CPU tensors during
them, counted to the byte by the allocator that counts Shardplan's own tensors.
"""

import argparse
import dataclasses
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Size:
    """GPT-2 has 12 layers of width 768 and 12 heads, 1024 positions and 50,257 words."""

    layers: int = 12
    width: int = 256
    heads: int = 4
    sequence: int = 128
    batch: int = 8
    words: int = 50304

    def arguments(self):
        return [f"--{name}={value}" for name, value in dataclasses.asdict(self).items()]


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.head_width = size.width // size.heads
        self.query = nn.Linear(size.width, size.width)
        self.key = nn.Linear(size.width, size.width)
        self.value = nn.Linear(size.width, size.width)
        self.out = nn.Linear(size.width, size.width)

    def forward(self, x):
        def heads(projection):
            return projection(x).unflatten(2, (-1, self.head_width)).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(
            heads(self.query), heads(self.key), heads(self.value), is_causal=True
        )
        return self.out(mixed.transpose(1, 2).flatten(2))


class Feedforward(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.wide = nn.Linear(size.width, 4 * size.width)
        self.narrow = nn.Linear(4 * size.width, size.width)

    def forward(self, x):
        return self.narrow(functional.gelu(self.wide(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm_1 = nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.norm_2 = nn.LayerNorm(size.width)
        self.feedforward = Feedforward(size)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.feedforward(self.norm_2(x))


class GPT2(nn.Module):
    """Returns the logits; word embedding and output layer share their weight."""

    def __init__(self, size):
        super().__init__()
        self.words = nn.Embedding(size.words, size.width)
        self.positions = nn.Embedding(size.sequence, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(logits, labels):
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def gpt2(size):
    torch.manual_seed(0)
    return GPT2(size)


def batch_of(size):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(size.words, (size.batch, size.sequence), generator=generator)
    labels = torch.randint(size.words, (size.batch, size.sequence), generator=generator)
    return tokens, labels


def ddp(model):
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)


def fsdp(model):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def tensor(model):
    """Megatron's split: heads and hidden width, the vocabulary of embedding, head and loss."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(
            block,
            mesh,
            {
                "attention.query": ColwiseParallel(),
                "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(),
                "attention.out": RowwiseParallel(),
                "feedforward.wide": ColwiseParallel(),
                "feedforward.narrow": RowwiseParallel(),
            },
        )
    parallelize_module(
        model,
        mesh,
        {
            "words": RowwiseParallel(input_layouts=Replicate()),
            "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        },
    )
    model.head.weight = model.words.weight
    return model


WAYS = {"ddp": ddp, "fsdp": fsdp, "tensor": tensor, "one": lambda model: model}


def train(way, size, steps):
    from torch.distributed.tensor.parallel import loss_parallel

    import shardplan._core

    meter = shardplan._core.MemoryMeter()
    meter.start()
    model = WAYS[way](gpt2(size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=way != "tensor")
    tokens, labels = batch_of(size)
    if way in ("ddp", "fsdp"):
        mine = slice(dist.get_rank(), None, dist.get_world_size())
        tokens, labels = tokens[mine].clone(), labels[mine].clone()
    seconds = []
    for step in range(steps):
        if dist.is_initialized():
            dist.barrier()
        meter.reset_peak()
        start = time.perf_counter()
        with loss_parallel() if way == "tensor" else torch.enable_grad():
            loss = loss_of(model(tokens), labels)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        seconds.append(time.perf_counter() - start)
    meter.stop()
    return {"seconds": seconds, "peak_bytes": meter.peak_bytes, "loss": loss.item()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--steps", type=int, default=6)
    for field in dataclasses.fields(Size):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    given = vars(parser.parse_args())
    way, steps = given.pop("way"), given.pop("steps")
    torch.set_num_threads(1)
    if way != "one":
        dist.init_process_group("gloo")
    result = train(way, Size(**given), steps)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(result), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

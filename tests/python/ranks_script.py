"""Run by torchrun: trains a small model by Shardplan on all ranks and compares with PyTorch."""

import os
import sys

import torch

import shardplan
from truth import difference, make, train


def main():
    name, planner, microbatches = sys.argv[1], sys.argv[2], int(sys.argv[3])
    model, draw, loss = make(name)
    batches = [draw() for _ in range(3)]
    if int(os.environ.get("RANK", "0")) > 0:
        with torch.no_grad():  # only rank 0's weights count
            for parameter in model.parameters():
                parameter.add_(1.0)
    # Adam divides gradients that are zero but for rounding (a bias before a normalisation) by their size.
    adam = name != "odd_sizes"
    step = shardplan.parallelize(
        model,
        batches[0],
        optimizer=shardplan.AdamW(lr=1e-2) if adam else shardplan.SGD(lr=0.1),
        planner=planner,
        microbatches=microbatches,
        loss=loss,
    )
    losses = [step(batch) for batch in batches]
    state = step.state_dict()
    if torch.distributed.is_initialized() and torch.distributed.get_rank() > 0:
        torch.distributed.destroy_process_group()
        return
    plain, _, _ = make(name)
    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=1e-2)  # noqa: E731
    optimizer = adamw if adam else lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    expected, truth = train(plain, batches, optimizer, loss, microbatches)
    worst, where = difference(state, truth)
    assert worst < 1e-9, f"{where} differs by {worst}"
    for got, want in zip(losses, expected):
        assert abs(got - want) < 1e-9 * abs(want), (losses, expected)
    plain.load_state_dict(state)
    print(f"{name} {planner} ({step.plan.schedule}) equal to PyTorch: {worst:.1e}")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


main()

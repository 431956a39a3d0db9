"""Shardplan: plans how to train a PyTorch model on many devices, and trains it that way.

    import shardplan

    step = shardplan.parallelize(model, {"input_ids": tokens, "labels": tokens}, memory="2GiB",
                                 optimizer=shardplan.AdamW(lr=3e-4))
    for batch in batches:
        loss = step(batch)
    model.load_state_dict(step.state_dict())

Start the script with `torchrun --nproc-per-node 4 script.py`, or alone on one device.
"""

import torch  # the extension needs torch's libraries loaded  # noqa: F401

from ._export import export
from ._optimizers import SGD, Adam, AdamW
from ._parallelize import Plan, TrainingStep, parallelize, plan

__all__ = ["SGD", "Adam", "AdamW", "Plan", "TrainingStep", "export", "parallelize", "plan"]

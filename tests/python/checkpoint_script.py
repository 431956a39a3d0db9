"""Run by torchrun: `checkpoint_script.py MODEL PLANNER FIRST LAST [--load DIR] [--save DIR]` trains on the
batches FIRST to LAST of one fixed sequence and prints the losses. With --kill-rank R, that rank ends
itself in the middle of the save."""

import argparse
import json
import os
import signal

import torch

import shardplan
from truth import make


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("planner")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--load")
    parser.add_argument("--save")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--kill-rank", type=int)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--precision", default="model")
    arguments = parser.parse_args()
    model, draw, loss = make(arguments.model)
    batches = [draw() for _ in range(arguments.last)]
    if arguments.load:  # the weights are the checkpoint's, not those that the script starts with
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
    step = shardplan.parallelize(
        model,
        batches[0],
        optimizer=shardplan.AdamW(lr=1e-2),
        planner=arguments.planner,
        clip_norm=0.5,
        microbatches=arguments.microbatches,
        precision=arguments.precision,
        loss=loss,
        seed=arguments.seed,
    )
    if arguments.load:
        step.load(arguments.load)
        assert step.steps_done == arguments.first, step.steps_done
    losses = [step(batch) for batch in batches[arguments.first :]]
    rank = int(os.environ.get("RANK", "0"))
    if arguments.save:
        if rank == arguments.kill_rank:
            real = os.fsync
            os.fsync = lambda file: (real(file), os.kill(os.getpid(), signal.SIGKILL))
        try:
            step.save(arguments.save)
        except RuntimeError as error:
            print(f"rank {rank} was told: {error}", flush=True)
            raise
    if rank == 0:
        print(json.dumps(losses))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


main()

#!/usr/bin/env python3
"""Exports GPT-2 small (124 M parameters, random weights) of transformers for Shardplan.

    export_gpt2.py gpt2.pt2 [--batch 4] [--seq 128]
"""

import argparse

import torch
import transformers

import shardplan


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=128)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    tokens = torch.randint(model.config.vocab_size, (arguments.batch, arguments.seq))
    shardplan.export(model, {"input_ids": tokens, "labels": tokens}, arguments.output)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"exported  {arguments.output}  GPT-2 with {parameters / 1e6:.0f} M parameters, "
        f"{arguments.batch} x {arguments.seq} tokens a step"
    )


if __name__ == "__main__":
    main()

"""A plain training script with Shardplan. Run it by

    .venv/bin/torchrun --nproc-per-node 2 examples/train.py
"""

import torch
import transformers

import shardplan

torch.manual_seed(0)
config = transformers.GPT2Config(n_layer=4, n_embd=256, n_head=4, use_cache=False)
model = transformers.GPT2LMHeadModel(config)
tokens = torch.randint(config.vocab_size, (4, 64))
batch = {"input_ids": tokens, "labels": tokens}

step = shardplan.parallelize(
    model, batch, memory="1GiB", optimizer=shardplan.AdamW(lr=3e-4)
)
for _ in range(5):
    loss = step(batch)
model.load_state_dict(step.state_dict())  # plain weights, whole on every rank

print(f"{step.plan}, last loss {loss:.4f}")

"""One rank of stopped_test.py: trains for ever and says so after each step."""

import torch

import shardplan

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
batch = (torch.randn(8, 8),)
step = shardplan.parallelize(
    model, batch, optimizer=shardplan.SGD(lr=0.01), planner="dp", loss=lambda out, _: (out**2).mean()
)
while True:
    step(batch)
    print("step", flush=True)

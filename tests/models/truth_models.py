"""Each model of tiny.py, networks.py and others.py trained on one device by Shardplan and by PyTorch, in fp64
and without dropout: losses and weights must agree.

    truth_models.py [NAME ...]
"""

import copy
import pathlib
import sys
import time
import warnings

import torch

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]

from networks import NETWORKS  # noqa: E402
from others import OTHERS  # noqa: E402
from tiny import TINY  # noqa: E402

import shardplan  # noqa: E402

ALL = {**TINY, **NETWORKS, **OTHERS}
RANDOM = {"dropout", "gumbel", "noise"}
ONCE = {"levit"}  # in evaluation mode PyTorch's keeps biases of the step before, and fails in the second
SINGLE = {"mixtral", "qwen2_moe"}  # PyTorch has no grouped product in fp64
STEPS = 2


def without_dropout(model):
    """In evaluation mode but for batch norms, which keep their training mode."""
    model.eval()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.train()
        if isinstance(module, torch.nn.RNNBase):
            module.train()  # the backward pass of a recurrent network needs it
    return model


def double(batch):
    def one(value):
        return value.double() if value.is_floating_point() else value

    if isinstance(batch, dict):
        return {name: one(value) for name, value in batch.items()}
    return tuple(one(value) for value in batch)


def torch_loss(model, batch, loss):
    output = model(**batch) if isinstance(batch, dict) else model(*batch)
    if loss is not None:
        return loss(output, batch)
    return output if isinstance(output, torch.Tensor) else output.loss


def check(name):
    torch.manual_seed(0)
    model, batch, loss = ALL[name]()
    model = without_dropout(model)
    if name not in SINGLE:
        model, batch = model.double(), double(batch)
    truth = copy.deepcopy(model)
    step = shardplan.parallelize(model, batch, optimizer=shardplan.SGD(lr=0.05), loss=loss)
    optimizer = torch.optim.SGD(truth.parameters(), lr=0.05)
    for number in range(STEPS):
        got = step(batch)
        optimizer.zero_grad()
        want = torch_loss(truth, batch, loss)
        want.backward()
        optimizer.step()
        # transformers computes losses in fp32, whatever the model's dtype.
        if not abs(got - want.item()) <= 1e-6 * max(1, abs(want.item())):
            return f"loss {got} of step {number}, PyTorch {want.item()}"
    state = step.state_dict()
    bound = 1e-4 if name in SINGLE else 1e-6
    for key, expected in truth.state_dict().items():
        worst = (state[key].double() - expected.double()).abs().max().item()
        if not worst <= bound * max(1, expected.double().abs().max().item()):
            return f"{key} differs by {worst:.3g}"
    return ""


def main():
    warnings.filterwarnings("ignore")
    wrong = 0
    for name in sys.argv[1:] or [n for n in ALL if n not in RANDOM | ONCE and n != "resnet50"]:
        began = time.monotonic()
        try:
            error = check(name)
        except Exception as failure:  # one result of many
            error = f"{type(failure).__name__}: {str(failure).splitlines()[0][:200] if str(failure) else ''}"
        wrong += bool(error)
        print(f"{name:24} {'WRONG  ' + error if error else 'equal'}  {time.monotonic() - began:.1f} s", flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

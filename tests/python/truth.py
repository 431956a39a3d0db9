"""Small models, and what PyTorch itself (module, autograd, torch.optim) makes of training them."""

import copy

import torch
import transformers
from transformers.models.llama import modeling_llama

BATCH, SEQ, VOCAB = 4, 16, 64


class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.second = torch.nn.Linear(32, 8)

    def forward(self, x, target):
        hidden = torch.nn.functional.gelu(self.norm(self.first(x)))
        return torch.nn.functional.cross_entropy(self.second(hidden), target)


class Regression(torch.nn.Module):
    """Returns its output; the loss is given apart."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 8)

    def forward(self, x):
        return self.linear(x).tanh()


def mean_square(output, batch):
    return ((output - batch["target"]) ** 2).mean()


def next_token(output, batch):
    """The loss of a language model in the dtype of its logits (transformers computes it in fp32)."""
    logits = output.logits[:, :-1].reshape(-1, VOCAB)
    return torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:].reshape(-1))


def _norm_in_full(self, x):
    """RMSNorm in the dtype of its input (transformers computes it in fp32)."""
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


class OddSizes(torch.nn.Module):
    """Sizes that neither three nor four ranks divide, one smaller than four, and running statistics."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(5, 13)
        self.norm = torch.nn.BatchNorm1d(13)
        self.second = torch.nn.Linear(13, 3)

    def forward(self, x, target):
        return (self.second(self.norm(self.first(x)).relu()) - target).pow(2).mean()


def odd_sizes():
    return OddSizes(), lambda: {"x": torch.randn(6, 5), "target": torch.randn(6, 3)}, None


def mlp():
    return MLP(), lambda: {"x": torch.randn(8, 16), "target": torch.randint(8, (8,))}, None


def regression():
    return Regression(), lambda: {"x": torch.randn(8, 16), "target": torch.randn(8, 8)}, mean_square


def _tokens():
    ids = torch.randint(VOCAB, (BATCH, SEQ))
    labels = ids.clone()
    labels[:, :3] = -100
    return {"input_ids": ids, "labels": labels}


def gpt2(dropout=0.0):
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=SEQ,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config), _tokens, next_token


def llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=SEQ,
        use_cache=False,
    )
    modeling_llama.LlamaRMSNorm.forward = _norm_in_full
    return transformers.LlamaForCausalLM(config), _tokens, next_token


def gpt2_dropout():
    return gpt2(dropout=0.1)


MODELS = {"gpt2_dropout": gpt2_dropout, "odd_sizes": odd_sizes, "mlp": mlp, "regression": regression, "gpt2": gpt2, "llama": llama}


def make(name):
    """The model in fp64, a function that draws batches, and the loss where the model has none."""
    torch.manual_seed(0)
    model, draw, loss = MODELS[name]()

    def draw_double():
        return {
            key: value.double() if value.is_floating_point() else value
            for key, value in draw().items()
        }

    return model.double(), draw_double, loss


def train(model, batches, optimizer, loss=None, microbatches=1, clip_norm=0.0):
    """Trains a copy of the model by PyTorch; returns losses and the final state."""
    model = copy.deepcopy(model)
    torch_optimizer = optimizer(model.parameters())
    losses = []
    for batch in batches:
        torch_optimizer.zero_grad()
        total = 0.0
        for part in _cut(batch, microbatches):
            given = {k: v for k, v in part.items() if loss is None or k not in ("target", "labels")}
            output = model(**given)
            value = loss(output, part) if loss else getattr(output, "loss", output)
            (value / microbatches).backward()
            total += value.item() / microbatches
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        torch_optimizer.step()
        losses.append(total)
    return losses, model.state_dict()


def _cut(batch, microbatches):
    size = next(iter(batch.values())).shape[0] // microbatches
    for i in range(microbatches):
        yield {key: value[i * size : (i + 1) * size] for key, value in batch.items()}


def difference(state, truth):
    """Largest |a - b| of a tensor over its largest |b|, and the tensor's name."""
    worst, where = 0.0, ""
    assert set(state) == set(truth), set(state) ^ set(truth)
    for name, expected in truth.items():
        scale = expected.abs().max().item() or 1.0
        here = (state[name].double() - expected.double()).abs().max().item() / scale
        if here > worst:
            worst, where = here, name
    return worst, where

"""Small modules, one for each kind of operator that networks train with. Each entry is
(name, builder); a builder returns (module, batch, loss or None)."""

import torch
from torch import nn
from torch.nn import functional as F


def mean_square(output, batch):
    return (output.float() ** 2).mean()


class Lambda(nn.Module):
    """A function between two linear layers."""

    def __init__(self, function, size=16, out=16):
        super().__init__()
        self.first = nn.Linear(size, size)
        self.function = function
        self.second = nn.Linear(out, size)

    def forward(self, x):
        return self.second(self.function(self.first(x)))


def functional(function, shape=(8, 16), out=16):
    return lambda: (Lambda(function, shape[-1], out), (torch.randn(shape),), mean_square)


def layers(make, shape):
    return lambda: (make(), (torch.randn(shape),), mean_square)


class Attention(nn.Module):
    """Queries that are learnt, of any leading dimensions, over the input [..., s, 8]; a mask for each of the
    input's leading dimensions but the first."""

    def __init__(self, shape, masked):
        super().__init__()
        self.query = nn.Parameter(torch.randn(*shape, 8))
        self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 6)
        self.masked = masked

    def forward(self, x):
        mask = None
        if self.masked:
            shared = x[0].unsqueeze(-3) if x.dim() > 2 else x
            mask = (shared.mean(-1) > -0.2) | torch.eye(3, x.size(-2)).bool()
        return F.scaled_dot_product_attention(self.query, self.key(x), self.value(x), attn_mask=mask)


class TiedEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 16)

    def forward(self, ids):
        return F.linear(self.table(ids), self.table.weight)


class Classifier(nn.Module):
    def __init__(self, weight=None, **options):
        super().__init__()
        self.layer = nn.Linear(16, 12)
        self.register_buffer("weight", weight)
        self.options = options

    def forward(self, x, target):
        return F.cross_entropy(self.layer(x), target, self.weight, **self.options)


class SelfAttention(nn.Module):
    def __init__(self, heads, width=48):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / (w // self.heads) ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, s, w))


class MultiHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.body = kind(16, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.body(x)[0])


def classifier(**options):
    return lambda: (Classifier(**options), (torch.randn(8, 16), torch.randint(12, (8,))), None)


TINY = {
    # The probes of the published list.
    "linear": layers(lambda: nn.Linear(16, 16), (8, 16)),
    "sum": functional(lambda x: x.sum(-1, keepdim=True).expand(-1, 16)),
    "softmax": functional(lambda x: x.softmax(-1)),
    "bmm": functional(lambda x: torch.bmm(x, x.transpose(1, 2)), (4, 16, 16)),
    "batch_norm": layers(lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)), (8, 16)),
    "max_pool2d": layers(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)), (4, 3, 10, 10)),
    "adaptive_avg_pool": layers(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)), (4, 3, 10, 10)
    ),
    "depthwise": layers(lambda: nn.Conv2d(8, 8, 3, groups=8, padding=1), (4, 8, 8, 8)),
    "tied_embedding": lambda: (TiedEmbedding(), (torch.randint(64, (4, 8)),), mean_square),
    "batch_6": layers(lambda: nn.Linear(16, 16), (6, 16)),
    "hidden_30": layers(lambda: nn.Sequential(nn.Linear(16, 30), nn.Linear(30, 16)), (8, 16)),
    "relu": layers(lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU()), (8, 16)),
    "tanh": layers(lambda: nn.Sequential(nn.Linear(16, 16), nn.Tanh()), (8, 16)),
    "dropout": layers(lambda: nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3)), (8, 16)),
    "gelu": layers(lambda: nn.Sequential(nn.Linear(16, 16), nn.GELU()), (8, 16)),
    "gelu_functional": functional(lambda x: F.gelu(x, approximate="tanh")),
    "relu_functional": functional(F.relu),
    "silu": functional(F.silu),
    "sigmoid": functional(torch.sigmoid),
    "cat": functional(lambda x: torch.cat([x, 2 * x], -1), out=32),
    "empty_rest": functional(lambda x: torch.cat([x[..., :16].tanh(), x[..., 16:], x.split([0, 16], -1)[0]], -1)),
    "chunk": functional(lambda x: x.chunk(2, -1)[1], out=8),
    "mean": functional(lambda x: x.mean(0, keepdim=True)),
    "einsum": functional(lambda x: torch.einsum("bi,bj->ij", x, x)),
    "einsum_dots": functional(lambda x: torch.einsum("...i,...j->...j", x, x)),
    "einsum_three": functional(lambda x: torch.einsum("bi,bj,bj->bi", x, x, x)),
    "matmul_broadcast": functional(lambda x: x.view(4, 1, 2, 16) @ x.view(2, 4, 16).mT @ x.view(2, 4, 16)),
    "squeeze": functional(lambda x: x.unsqueeze(1).squeeze(1)),
    "expand": functional(lambda x: x.unsqueeze(1).expand(-1, 3, -1)),
    "masked_fill": functional(lambda x: x.masked_fill(x > 0.5, 0.1)),
    "layer_norm": functional(lambda x: F.layer_norm(x, (16,))),
    "cross_entropy": classifier(),
    "group_norm": layers(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8)), (4, 3, 8, 8)),
    "conv_transpose2d": layers(lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), (4, 4, 6, 6)),
    "hardswish": functional(F.hardswish),
    "upsample": layers(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Upsample(scale_factor=2)), (4, 3, 6, 6)),
    "multihead_attention": lambda: (MultiHead(), (torch.randn(4, 6, 16),), mean_square),
    "lstm": lambda: (Recurrent(nn.LSTM), (torch.randn(4, 6, 16),), mean_square),
    "max_pool3d": layers(lambda: nn.Sequential(nn.Conv3d(2, 4, 3), nn.MaxPool3d(2)), (4, 2, 6, 6, 6)),
    "attention_4_heads": lambda: (SelfAttention(4), (torch.randn(4, 6, 48),), mean_square),
    "attention_12_heads": lambda: (SelfAttention(12), (torch.randn(4, 6, 48),), mean_square),
    # Operands of attention that broadcast, and other numbers of leading dimensions than two.
    "attention_one_query": lambda: (Attention((1, 4, 3), masked=False), (torch.randn(4, 4, 6, 8),), mean_square),
    "attention_lower_rank": lambda: (Attention((4, 3), masked=True), (torch.randn(4, 4, 6, 8),), mean_square),
    "attention_2d": lambda: (Attention((3,), masked=True), (torch.randn(6, 8),), mean_square),
    "attention_3d": lambda: (Attention((4, 3), masked=True), (torch.randn(4, 6, 8),), mean_square),
    "attention_5d": lambda: (Attention((2, 4, 4, 3), masked=True), (torch.randn(2, 4, 4, 6, 8),), mean_square),
    "attention_5d_query": lambda: (Attention((1, 1, 3), masked=False), (torch.randn(2, 4, 4, 6, 8),), mean_square),
    # More kinds.
    "gru": lambda: (Recurrent(nn.GRU), (torch.randn(4, 6, 16),), mean_square),
    "conv1d": layers(lambda: nn.Conv1d(4, 6, 3, dilation=2, stride=2), (4, 4, 16)),
    "conv3d": layers(lambda: nn.Conv3d(4, 6, 3, padding=1), (2, 4, 4, 4, 4)),
    "batch_norm2d": layers(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (6, 3, 6, 6)),
    "instance_norm": layers(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True)), (4, 3, 6, 6)
    ),
    "rms_norm": functional(lambda x: F.rms_norm(x, (16,))),
    "label_smoothing": classifier(label_smoothing=0.1),
    "class_weights": classifier(weight=torch.rand(12)),
    "cumsum": functional(lambda x: x.cumsum(-1)),
    "sort": functional(lambda x: x.sort(-1).values),
    "topk": functional(lambda x: x.topk(4, -1).values, out=4),
    "max": functional(lambda x: x.max(-1, keepdim=True).values * x),
    "roll": functional(lambda x: x.roll(3, -1)),
    "pad": functional(lambda x: F.pad(x, (1, 2)), out=19),
    "pad_reflect": functional(lambda x: F.pad(x, (1, 2), mode="reflect"), out=19),
    "stack": functional(lambda x: torch.stack([x, x.tanh()], 1)),
    "where": functional(lambda x: torch.where(x > 0, x, 0.1 * x.exp())),
    "leaky_relu": functional(F.leaky_relu),
    "elu": functional(F.elu),
    "mish": functional(F.mish),
    "softplus": functional(F.softplus),
    "glu": functional(lambda x: F.glu(x, -1), out=8),
    "prelu": layers(lambda: nn.Sequential(nn.Linear(16, 16), nn.PReLU(16)), (8, 16)),
    "logsumexp": functional(lambda x: x.logsumexp(-1, keepdim=True) + x),
    "cdist": functional(lambda x: torch.cdist(x, x), out=8),
    "norm": functional(lambda x: F.normalize(x, dim=-1)),
    "cosine": functional(lambda x: F.cosine_similarity(x, x.flip(0), -1).unsqueeze(-1) * x),
    "std": functional(lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)),
    "linalg_inv": functional(
        lambda x: torch.linalg.inv(x @ x.transpose(-2, -1) + 16 * torch.eye(16, dtype=x.dtype)),
        (4, 16, 16),
    ),
    "avg_pool2d": layers(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2)), (4, 3, 10, 10)),
    "pixel_shuffle": layers(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2)), (4, 3, 6, 6)
    ),
    "bilinear": layers(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 1), nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        ),
        (4, 3, 6, 6),
    ),
    "unfold": layers(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Unfold(2)), (4, 3, 6, 6)),
    "embedding_bag": lambda: (
        nn.EmbeddingBag(32, 16, mode="mean"),
        (torch.randint(32, (8, 5)),),
        mean_square,
    ),
    "padding_idx": lambda: (nn.Embedding(32, 16, padding_idx=0), (torch.randint(32, (8, 5)),), mean_square),
    "gumbel": functional(lambda x: F.gumbel_softmax(x, dim=-1)),
    "noise": functional(lambda x: x + 0.1 * torch.randn_like(x)),
}

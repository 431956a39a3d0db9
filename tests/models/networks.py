"""Whole networks in tiny sizes, each with its own loss. Same form as tiny.TINY."""

import torch
import transformers
from torch import nn
from torch.nn import functional as F

B, S, V = 4, 16, 64  # batch, sequence, vocabulary


def tokens(*shape, high=V, low=3):
    return torch.randint(low, high, shape)


def language_model(config, **extra):
    """A causal or masked language model with its own loss."""

    def build():
        kind, cls = config
        ids = tokens(B, S)
        return cls(kind()), {"input_ids": ids, "labels": ids.clone(), **{k: v() for k, v in extra.items()}}, None

    return build


def transformer(cls, config, batch):
    def build():
        return cls(config()), batch(), None

    return build


T = transformers


def gpt2():
    return T.GPT2Config(vocab_size=V, n_positions=S, n_embd=32, n_layer=2, n_head=4)


def opt():
    return T.OPTConfig(
        vocab_size=V, hidden_size=32, num_hidden_layers=2, ffn_dim=64, num_attention_heads=4,
        max_position_embeddings=S, word_embed_proj_dim=32, pad_token_id=1,
    )


def llama(cls=None, **extra):
    return (cls or T.LlamaConfig)(
        vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=S, pad_token_id=0, bos_token_id=1, eos_token_id=2, **extra,
    )


def bert():
    return T.BertConfig(
        vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=S,
    )


def ids_with(**more):
    def batch():
        return {"input_ids": tokens(B, S), "attention_mask": torch.ones(B, S, dtype=torch.long),
                **{name: make() for name, make in more.items()}}

    return batch


def classes(high, *shape):
    return lambda: torch.randint(0, high, shape or (B,))


def image(size=32, channels=3, **more):
    return lambda: {"pixel_values": torch.randn(B, channels, size, size),
                    **{name: make() for name, make in more.items()}}


def vit(cls):
    def config():
        return cls(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                   image_size=32, patch_size=8, num_labels=5)

    return config


def detr():
    backbone = T.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1],
                              layer_type="basic", out_features=["stage4"])
    return T.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone,
        num_queries=4, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32, decoder_ffn_dim=32,
        encoder_attention_heads=2, decoder_attention_heads=2,
    )


class DetrLoss(nn.Module):
    """Logits and boxes against fixed targets: matching is not part of the graph."""

    def __init__(self):
        super().__init__()
        self.model = T.DetrModel(detr()).eval()  # its random layer drop cannot be traced
        self.head = nn.Linear(32, 6)

    def forward(self, pixel_values, target):
        hidden = self.model(pixel_values).last_hidden_state
        return F.cross_entropy(self.head(hidden).transpose(1, 2), target)


class SequenceToSequence(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels, use_cache=False).loss


class TwoTower(nn.Module):
    """CLIP's loss on tiny text and vision encoders."""

    def __init__(self):
        super().__init__()
        text = dict(vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                    num_attention_heads=4, max_position_embeddings=S, eos_token_id=2, bos_token_id=1, pad_token_id=0)
        vision = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                      image_size=32, patch_size=8)
        self.model = T.CLIPModel(T.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))

    def forward(self, input_ids, pixel_values):
        return self.model(input_ids=input_ids, pixel_values=pixel_values, return_loss=True).loss


def clipseg():
    text = dict(vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                num_attention_heads=4, max_position_embeddings=S, eos_token_id=2, bos_token_id=1, pad_token_id=0)
    vision = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                  image_size=32, patch_size=8)
    config = T.CLIPSegConfig(text_config=text, vision_config=vision, projection_dim=16, extract_layers=[1],
                             reduce_dim=16, decoder_num_attention_heads=2, decoder_intermediate_size=32)
    config.decoder_num_hidden_layers = 1
    return config


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))

    def forward(self, x, target):
        return F.cross_entropy(self.layers(x), target)


class LSTMClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(V, 16)
        self.body = nn.LSTM(16, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, ids, target):
        return F.cross_entropy(self.head(self.body(self.table(ids))[0].mean(1)), target)


class TransformerLM(nn.Module):
    def __init__(self, layers=12):
        super().__init__()
        self.table = nn.Embedding(V, 32)
        self.positions = nn.Parameter(torch.randn(S, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(32, V)

    def forward(self, ids, target):
        mask = nn.Transformer.generate_square_subsequent_mask(S)
        hidden = self.body(self.table(ids) + self.positions, mask=mask, is_causal=True)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), target.flatten())


class DLRM(nn.Module):
    def __init__(self, tables=8):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(40 + 4 * i, 16, mode="sum") for i in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(16 + pairs, 32), nn.ReLU(), nn.Linear(32, 1))
        self.register_buffer("rows", torch.tril_indices(tables + 1, tables + 1, -1)[0])
        self.register_buffer("columns", torch.tril_indices(tables + 1, tables + 1, -1)[1])

    def forward(self, dense, sparse, target):
        x = self.bottom(dense)
        features = torch.stack([x] + [table(sparse[:, i]) for i, table in enumerate(self.tables)], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.rows, self.columns]
        logits = self.top(torch.cat([x, products], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, target)


class Block(nn.Sequential):
    def __init__(self, a, b):
        super().__init__(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([Block(3, 8), Block(8, 16)])
        self.middle = Block(16, 16)
        self.up = nn.ModuleList([nn.ConvTranspose2d(16, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.join = nn.ModuleList([Block(32, 16), Block(16, 8)])
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, image, target):
        skips = []
        x = image
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join, skip in zip(self.up, self.join, reversed(skips)):
            x = join(torch.cat([up(x), skip], 1))
        return F.cross_entropy(self.head(x), target)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1))
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Sigmoid()
        )

    def forward(self, x):
        return F.mse_loss(self.decode(self.encode(x)), x)


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x, edges, target):
        def gather(h):
            return torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])

        h = F.relu(gather(self.first(x)))
        return F.cross_entropy(gather(self.second(h)), target)


class MoE(nn.Module):
    def __init__(self, experts=4, width=16):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.first = nn.Parameter(torch.randn(experts, width, 32) / 4)
        self.second = nn.Parameter(torch.randn(experts, 32, width) / 6)
        self.head = nn.Linear(width, 5)

    def forward(self, x, target):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        mask = torch.zeros(x.shape[0], 4, dtype=x.dtype).scatter(1, chosen, weights)
        hidden = torch.einsum("bd,edf->ebf", x, self.first).relu()
        out = torch.einsum("ebf,efd->ebd", hidden, self.second)
        return F.cross_entropy(self.head(torch.einsum("ebd,be->bd", out, mask)), target)


class GShard(nn.Module):
    """Each expert takes so many tokens of each group (GShard, Lepikhin et al. 2020): dispatch and combine are
    products with a tensor that says which token goes where. The last expert gets no token."""

    def __init__(self, experts=4, width=16, hidden=64, capacity=4):
        super().__init__()
        self.capacity = capacity
        self.enter = nn.Linear(width, width)
        self.gate = nn.Linear(width, experts)
        self.first = nn.Parameter(torch.randn(experts, width, hidden) / 4)
        self.second = nn.Parameter(torch.randn(experts, hidden, width) / 8)
        self.head = nn.Linear(width, 5)
        with torch.no_grad():
            self.gate.bias[-1] = -1e4

    def forward(self, x, target):
        x = x + self.enter(x).relu()
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        mask = (chosen.unsqueeze(-1) == torch.arange(self.gate.out_features, device=x.device)).to(x.dtype)
        place = (mask.cumsum(1) * mask).sum(-1).long() - 1
        slot = (place.unsqueeze(-1) == torch.arange(self.capacity, device=x.device)).to(x.dtype)
        dispatch = torch.einsum("gte,gtc->gtec", mask, slot)
        combine = dispatch * weight[..., None, None]
        taken = torch.einsum("gtec,gtm->egcm", dispatch, x)
        hidden = torch.einsum("egcm,emh->egch", taken, self.first).relu()
        made = torch.einsum("egch,ehm->egcm", hidden, self.second)
        y = x + torch.einsum("gtec,egcm->gtm", combine, made)
        return F.cross_entropy(self.head(y).flatten(0, 1), target.flatten())


class Bottleneck(nn.Module):
    def __init__(self, inner, width, stride):
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.down = (
            nn.Sequential(nn.Conv2d(inner, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride != 1 or inner != out
            else None
        )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.down is None else self.down(x)), inplace=True)


class ResNet50(nn.Module):
    def __init__(self, blocks=(3, 4, 6, 3), width=64, classes=1000):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        layers, inner = [], width
        for stage, count in enumerate(blocks):
            for i in range(count):
                layers.append(Bottleneck(inner, width << stage, 2 if stage and i == 0 else 1))
                inner = 4 * (width << stage)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(inner, classes)

    def forward(self, image, target):
        x = self.body(self.stem(image)).mean((2, 3))
        return F.cross_entropy(self.head(x), target)


def plain(cls, *batch, **named):
    return lambda: (cls(), {k: v() for k, v in named.items()} if named else tuple(b() for b in batch), None)


def randn(*shape):
    return lambda: torch.randn(shape)


NETWORKS = {
    "gpt2": language_model((gpt2, T.GPT2LMHeadModel)),
    "opt": language_model((opt, T.OPTForCausalLM)),
    "llama": language_model((llama, T.LlamaForCausalLM)),
    "gemma": language_model((lambda: llama(T.GemmaConfig, head_dim=8), T.GemmaForCausalLM)),
    "mixtral": language_model(
        (lambda: llama(T.MixtralConfig, num_local_experts=4, num_experts_per_tok=2), T.MixtralForCausalLM)
    ),
    "bert_classifier": transformer(
        T.BertForSequenceClassification, bert, ids_with(labels=classes(2))
    ),
    "bert_masked_lm": transformer(T.BertForMaskedLM, bert, ids_with(labels=classes(V, B, S))),
    "bert_next_sentence": transformer(T.BertForNextSentencePrediction, bert, ids_with(labels=classes(2))),
    "bert_question": transformer(
        T.BertForQuestionAnswering, bert, ids_with(start_positions=classes(S), end_positions=classes(S))
    ),
    "distilbert": transformer(
        T.DistilBertForSequenceClassification,
        lambda: T.DistilBertConfig(vocab_size=V, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=S),
        ids_with(labels=classes(2)),
    ),
    "xlnet": transformer(
        T.XLNetForSequenceClassification,
        lambda: T.XLNetConfig(vocab_size=V, d_model=32, n_layer=2, n_head=4, d_inner=64),
        ids_with(labels=classes(2)),
    ),
    "t5": lambda: (
        SequenceToSequence(T.T5ForConditionalGeneration(T.T5Config(
            vocab_size=V, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0))),
        {"input_ids": tokens(B, S), "labels": tokens(B, S)}, None),
    "marian": lambda: (
        SequenceToSequence(T.MarianMTModel(T.MarianConfig(
            vocab_size=V, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
            encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=S, pad_token_id=1,
            decoder_start_token_id=1, eos_token_id=2, forced_eos_token_id=2))),
        {"input_ids": tokens(B, S), "labels": tokens(B, S)}, None),
    "vit": transformer(T.ViTForImageClassification, vit(T.ViTConfig), image(labels=classes(5))),
    "deit": transformer(T.DeiTForImageClassification, vit(T.DeiTConfig), image(labels=classes(5))),
    "beit": transformer(T.BeitForImageClassification, vit(T.BeitConfig), image(labels=classes(5))),
    "mobilenet_v1": transformer(
        T.MobileNetV1ForImageClassification,
        lambda: T.MobileNetV1Config(depth_multiplier=0.25, image_size=32, num_labels=5),
        image(labels=classes(5)),
    ),
    "convnext_v2": transformer(
        T.ConvNextV2ForImageClassification,
        lambda: T.ConvNextV2Config(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=32, num_labels=5),
        image(labels=classes(5)),
    ),
    "detr": plain(DetrLoss, pixel_values=randn(2, 3, 64, 64), target=lambda: torch.randint(6, (2, 4))),
    "wav2vec2": transformer(
        T.Wav2Vec2ForSequenceClassification,
        lambda: T.Wav2Vec2Config(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16),
            conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4, classifier_proj_size=16, num_labels=3, mask_time_prob=0.0, layerdrop=0.0, apply_spec_augment=False),
        lambda: {"input_values": torch.randn(B, 400), "labels": torch.randint(3, (B,))},
    ),
    "clip": plain(TwoTower, input_ids=lambda: tokens(B, S), pixel_values=randn(B, 3, 32, 32)),
    "clipseg": transformer(
        T.CLIPSegForImageSegmentation, clipseg,
        lambda: {"input_ids": tokens(B, S), "pixel_values": torch.randn(B, 3, 32, 32), "labels": torch.rand(B, 32, 32)},
    ),
    "mlp": plain(MLP, x=randn(8, 16), target=classes(8, 8)),
    "lstm_classifier": plain(LSTMClassifier, ids=lambda: tokens(B, S), target=classes(5)),
    "transformer_lm": plain(TransformerLM, ids=lambda: tokens(B, S), target=lambda: tokens(B, S)),
    "dlrm": plain(DLRM, dense=randn(8, 13), sparse=lambda: torch.randint(40, (8, 8, 4)), target=lambda: torch.rand(8)),
    "unet": plain(UNet, image=randn(B, 3, 16, 16), target=classes(4, B, 16, 16)),
    "autoencoder": plain(Autoencoder, x=randn(B, 3, 16, 16)),
    "graph": plain(GraphNet, x=randn(12, 8), edges=classes(12, 2, 30), target=classes(4, 12)),
    "moe": plain(MoE, x=randn(8, 16), target=classes(5, 8)),
    "gshard": plain(GShard, x=randn(8, 8, 16), target=classes(5, 8, 8)),
    "resnet50_tiny": lambda: (
        ResNet50((1, 1, 1, 1), 8, 10),
        {"image": torch.randn(2 * B, 3, 64, 64), "target": torch.randint(10, (2 * B,))}, None),
    "resnet50": lambda: (
        ResNet50(), {"image": torch.randn(B, 3, 224, 224), "target": torch.randint(1000, (B,))}, None),
}


def causal(config_class, model_class, **options):
    """A causal language model of transformers by the names that most configurations share."""

    def config():
        return config_class(**{
            "vocab_size": V, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": S, "pad_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 2, **options})

    return language_model((config, model_class))


def classifier_of(config_class, model_class, **options):
    def config():
        return config_class(**{
            "vocab_size": V, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": S + 4, "pad_token_id": 0, **options})

    return transformer(model_class, config, ids_with(labels=classes(2)))


class WaveNet(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.first = nn.Conv1d(1, channels, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=2**i) for i in range(3))
        self.outs = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(3))
        self.head = nn.Conv1d(channels, 16, 1)

    def forward(self, x, target):
        h = self.first(x)
        skip = 0
        for i, (gate, out) in enumerate(zip(self.gates, self.outs)):
            a, b = gate(F.pad(h, (2**i, 0))).chunk(2, 1)
            y = out(a.tanh() * b.sigmoid())
            skip = skip + y
            h = h + y
        return F.cross_entropy(self.head(skip.relu()), target)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(16, 16)
        self.decode = nn.Linear(8, 16)

    def forward(self, x, noise):
        mean, log_variance = self.encode(x).chunk(2, -1)
        z = mean + noise * (0.5 * log_variance).exp()
        recon = F.binary_cross_entropy_with_logits(self.decode(z), x.sigmoid())
        return recon - 0.5 * (1 + log_variance - mean**2 - log_variance.exp()).mean()


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
        self.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 5))

    def forward(self, x, target):
        return F.nll_loss(F.log_softmax(self.head(self.points(x).amax(-1)), -1), target)


class DiffusionBlock(nn.Module):
    """A residual block with a time embedding and self-attention over the image."""

    def __init__(self, channels=8):
        super().__init__()
        self.time = nn.Linear(16, channels)
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(4, channels)
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.first, self.last = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, image, step, noise):
        frequencies = torch.exp(torch.arange(8, dtype=image.dtype) * -0.5)
        angles = step.to(image.dtype).unsqueeze(1) * frequencies
        embedding = torch.cat([angles.sin(), angles.cos()], -1)
        h = self.first(image)
        r = self.conv1(F.silu(self.norm1(h))) + self.time(embedding)[:, :, None, None]
        h = h + self.conv2(F.silu(self.norm2(r)))
        b, c, height, width = h.shape
        q, k, v = self.qkv(h).reshape(b, 3, c, height * width).unbind(1)
        weights = torch.einsum("bci,bcj->bij", q, k).div(c**0.5).softmax(-1)
        h = h + torch.einsum("bij,bcj->bci", weights, v).reshape(b, c, height, width)
        h = F.interpolate(F.interpolate(h, scale_factor=0.5, mode="bilinear"), size=(height, width))
        return F.mse_loss(self.last(h), noise)


class KalmanLike(nn.Module):
    """A recurrence that is unrolled by tracing, with small linear solves."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(0.3 * torch.randn(4, 4))
        self.c = nn.Parameter(torch.randn(2, 4))

    def forward(self, y):
        x = torch.zeros(y.shape[0], 4, dtype=y.dtype)
        eye = torch.eye(2, dtype=y.dtype)
        loss = 0
        for t in range(y.shape[1]):
            x = x @ self.a.T
            s = self.c @ self.c.T + eye
            gain = torch.linalg.solve(s, self.c).T
            error = y[:, t] - x @ self.c.T
            x = x + error @ gain.T
            loss = loss + (error**2).mean()
        return loss


class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, a, b):
        z = F.normalize(torch.cat([self.body(a), self.body(b)]), dim=1)
        scores = z @ z.T / 0.1
        scores = scores.masked_fill(torch.eye(z.shape[0], dtype=torch.bool), float("-inf"))
        n = a.shape[0]
        target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
        return F.cross_entropy(scores, target)


class FrozenBase(nn.Module):
    """Low-rank adapters on a frozen layer, and parameters that nobody uses."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(16, 16)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        with torch.no_grad():
            h = self.base(x)
        return ((h + self.scale * self.up(self.down(x))) ** 2).mean()


class StopGradient(nn.Module):
    """BYOL's pattern: a target that gets no gradient, by detach and by no_grad."""

    def __init__(self):
        super().__init__()
        self.online, self.target, self.predict = nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(8, 8)

    def forward(self, a, b):
        with torch.no_grad():
            goal = self.target(b)
        return 2 - 2 * F.cosine_similarity(self.predict(self.online(a)), goal - self.online(b).detach()).mean()


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(V, 32, padding_idx=0)
        self.body = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, V)

    def forward(self, source, ids, target):
        mask = nn.Transformer.generate_square_subsequent_mask(S, dtype=self.head.weight.dtype)
        hidden = self.body(self.table(source), self.table(ids), tgt_mask=mask,
                           src_key_padding_mask=source == 0, tgt_is_causal=False)
        return F.cross_entropy(self.head(hidden).transpose(1, 2), target, ignore_index=0, label_smoothing=0.1)


MORE = {
    "wavenet": plain(WaveNet, x=randn(B, 1, 24), target=classes(16, B, 24)),
    "vae": plain(VAE, x=randn(8, 16), noise=randn(8, 8)),
    "pointnet": plain(PointNet, x=randn(6, 3, 20), target=classes(5, 6)),
    "diffusion": plain(DiffusionBlock, image=randn(B, 3, 8, 8), step=classes(100, B), noise=randn(B, 3, 8, 8)),
    "kalman": plain(KalmanLike, y=randn(6, 5, 2)),
    "contrastive": plain(Contrastive, a=randn(6, 16), b=randn(6, 16)),
    "frozen_base": plain(FrozenBase, x=randn(8, 16)),
    "stop_gradient": plain(StopGradient, a=randn(8, 16), b=randn(8, 16)),
    "decoder": plain(Decoder, source=lambda: tokens(B, S, low=0), ids=lambda: tokens(B, S, low=0),
                     target=lambda: tokens(B, S, low=0)),
    "bloom": language_model((lambda: T.BloomConfig(vocab_size=V, hidden_size=32, n_layer=2, n_head=4), T.BloomForCausalLM)),
    "gpt_neox": causal(T.GPTNeoXConfig, T.GPTNeoXForCausalLM),
    "gptj": language_model((lambda: T.GPTJConfig(vocab_size=V, n_positions=S, n_embd=32, n_layer=2, n_head=4, rotary_dim=4), T.GPTJForCausalLM)),
    "falcon": causal(T.FalconConfig, T.FalconForCausalLM),
    "phi": causal(T.PhiConfig, T.PhiForCausalLM),
    "qwen2": causal(T.Qwen2Config, T.Qwen2ForCausalLM, num_key_value_heads=2),
    "qwen3": causal(T.Qwen3Config, T.Qwen3ForCausalLM, num_key_value_heads=2, head_dim=8),
    "mistral": causal(T.MistralConfig, T.MistralForCausalLM, num_key_value_heads=2, sliding_window=8),
    "gemma2": causal(T.Gemma2Config, T.Gemma2ForCausalLM, num_key_value_heads=2, head_dim=8),
    "mamba": language_model((lambda: T.MambaConfig(vocab_size=V, hidden_size=16, num_hidden_layers=2, state_size=4), T.MambaForCausalLM)),
    "electra": classifier_of(T.ElectraConfig, T.ElectraForSequenceClassification, embedding_size=16),
    "albert": classifier_of(T.AlbertConfig, T.AlbertForSequenceClassification, embedding_size=16),
    "roberta": classifier_of(T.RobertaConfig, T.RobertaForSequenceClassification),
    "funnel": transformer(T.FunnelForSequenceClassification, lambda: T.FunnelConfig(
        vocab_size=V, d_model=32, n_head=4, d_head=8, d_inner=64, block_sizes=[1, 1]), ids_with(labels=classes(2))),
    "bart": lambda: (SequenceToSequence(T.BartForConditionalGeneration(T.BartConfig(
        vocab_size=V, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64,
        encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=S, pad_token_id=1,
        bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2))),
        {"input_ids": tokens(B, S), "labels": tokens(B, S)}, None),
    "pegasus": lambda: (SequenceToSequence(T.PegasusForConditionalGeneration(T.PegasusConfig(
        vocab_size=V, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64,
        encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=S))),
        {"input_ids": tokens(B, S), "labels": tokens(B, S)}, None),
    "swin": transformer(T.SwinForImageClassification, lambda: T.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4, num_labels=5),
        image(labels=classes(5))),
    "segformer": transformer(T.SegformerForSemanticSegmentation, lambda: T.SegformerConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, num_attention_heads=[1, 2], sr_ratios=[2, 1],
        patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, num_labels=4),
        image(labels=classes(4, B, 32, 32))),
    "efficientnet": transformer(T.EfficientNetForImageClassification, lambda: T.EfficientNetConfig(
        image_size=32, width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320, num_labels=5), image(labels=classes(5))),
    "regnet": transformer(T.RegNetForImageClassification, lambda: T.RegNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=8, num_labels=5), image(labels=classes(5))),
    "poolformer": transformer(T.PoolFormerForImageClassification, lambda: T.PoolFormerConfig(
        hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], num_labels=5), image(labels=classes(5))),
    "hubert": transformer(T.HubertForSequenceClassification, lambda: T.HubertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16),
        conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4, classifier_proj_size=16, num_labels=3, layerdrop=0.0, apply_spec_augment=False),
        lambda: {"input_values": torch.randn(B, 400), "labels": torch.randint(3, (B,))}),
    "whisper": transformer(T.WhisperForConditionalGeneration, lambda: T.WhisperConfig(
        vocab_size=V, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64,
        encoder_attention_heads=4, decoder_attention_heads=4, num_mel_bins=8, max_source_positions=16,
        max_target_positions=S, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3),
        lambda: {"input_features": torch.randn(B, 8, 32), "labels": tokens(B, S)}),
    "patchtst": transformer(T.PatchTSTForPrediction, lambda: T.PatchTSTConfig(
        num_input_channels=2, context_length=16, prediction_length=4, patch_length=4, patch_stride=4, d_model=16,
        num_attention_heads=2, num_hidden_layers=1, ffn_dim=32),
        lambda: {"past_values": torch.randn(B, 16, 2), "future_values": torch.randn(B, 4, 2)}),
}
NETWORKS.update(MORE)

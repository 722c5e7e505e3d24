"""A decoder of one layer as a traced step, of which tests change a part."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional as F

from npu_compiler.kernel_programs import lower_to_kernels
from npu_ops.kernel_programs.program import LayerShape
from npu_ops.kernel_programs.weights import interleave

INPUTS = ("input_ids", "attention_mask", "position_ids", "logits_to_keep")
HEADS, KEY_HEADS, SIZE, WIDTH, VOCABULARY, POSITIONS = 4, 2, 8, 32, 40, 24


def same(x: Any, *_: Any) -> Any:
    return x


def half_turned(x, positions):
    """Rotary embedding of (batch, heads, tokens, size), its halves paired."""
    frequencies = 0.5 ** torch.arange(SIZE // 2)
    angle = (positions[..., None].float() * frequencies).repeat(1, 1, 2)[:, None]
    turned = torch.cat([-x[..., SIZE // 2 :], x[..., : SIZE // 2]], -1)
    return x * angle.cos() + turned * angle.sin()


def interleaved(x, positions):
    """The same for neighbours, of half the head only."""
    frequencies = 0.5 ** torch.arange(SIZE // 4)
    angle = (positions[..., None].float() * frequencies)[:, None]
    even, odd = x[..., : SIZE // 2 : 2], x[..., 1 : SIZE // 2 : 2]
    cos, sin = angle.cos(), angle.sin()
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
    return torch.cat([turned, x[..., SIZE // 2 :]], -1)


def causal(mask, tokens, window=None):
    """(batch, 1, tokens, all) bool."""
    total = mask.shape[1]
    other = torch.arange(total)
    own = torch.arange(tokens)[:, None] + (total - tokens)
    seen = other <= own
    if window is not None:
        seen = seen & (own - other < window)
    return seen[None, None] & mask[:, None, None].bool()


def fused(q, keys, values, seen):
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)


@dataclass
class Parts:
    """The part that a test changes: functions in the middle of the step."""

    rotate: Callable[..., torch.Tensor] = half_turned
    mask: Callable[..., torch.Tensor] = causal
    inner: Callable[..., torch.Tensor] = same  # of the rows after attention
    activation: Callable[..., torch.Tensor] = F.silu
    attend: Callable[..., torch.Tensor] = fused
    place: Callable[..., torch.Tensor] | None = None  # the entry of each position


class Decoder(nn.Module):
    """One layer with a cache."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = parts
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(POSITIONS + 3, WIDTH)
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.joined = nn.Linear(WIDTH, (HEADS + 2 * KEY_HEADS) * SIZE)
        self.out = nn.Linear(HEADS * SIZE, WIDTH)
        self.gate = nn.Linear(WIDTH, 48)
        self.up = nn.Linear(WIDTH, 48)
        self.down = nn.Linear(48, WIDTH)

    def forward(self, ids, mask, positions, kept, past_key, past_value):
        batch, tokens = ids.shape
        x = self.embed(ids)
        if self.parts.place is not None:
            x = x + self.places(self.parts.place(positions))
        widths = [HEADS * SIZE, KEY_HEADS * SIZE, KEY_HEADS * SIZE]
        q, k, v = (
            one.view(batch, tokens, -1, SIZE).transpose(1, 2)
            for one in self.joined(self.norm(x)).split(widths, -1)
        )
        q, k = self.parts.rotate(q, positions), self.parts.rotate(k, positions)
        keys, values = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
        repeated = [one.repeat_interleave(HEADS // KEY_HEADS, 1) for one in (keys, values)]
        seen = self.parts.mask(mask, tokens)
        attended = self.parts.attend(q, *repeated, seen)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, -1))
        x = self.parts.inner(x)
        x = x + self.down(self.parts.activation(self.gate(x)) * self.up(x))
        logits = F.linear(x[:, kept], self.embed.weight)
        return logits, keys, values


def traced(model):
    """The model's step as a graph with sizes that vary."""
    environment = ShapeEnv()
    fake = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)

    def make(name, tensor, *varying):
        sizes = [
            DimDynamic.DUCK if d in varying else DimDynamic.STATIC for d in range(tensor.dim())
        ]
        context = StatelessSymbolicContext(dynamic_sizes=sizes)
        return fake.from_tensor(tensor, source=ConstantSource(name), symbolic_context=context)

    integer = {"dtype": torch.int64}
    examples = [
        make("ids", torch.zeros(11, 13, **integer), 0, 1),
        make("mask", torch.ones(11, 30, **integer), 0, 1),
        make("positions", torch.zeros(11, 13, **integer), 0, 1),
        make("kept", torch.zeros(5, **integer), 0),
        make("key", torch.zeros(11, KEY_HEADS, 17, SIZE), 0, 2),
        make("value", torch.zeros(11, KEY_HEADS, 17, SIZE), 0, 2),
    ]
    with torch.no_grad():
        return make_fx(
            model, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True
        )(*examples)


@pytest.fixture
def lowered():
    """lowered(parts): a decoder with these parts, its program, and the program's weights."""

    def make(**parts):
        model = Decoder(Parts(**parts)).eval()
        made = lower_to_kernels(
            traced(model),
            inputs=INPUTS,
            layers=[LayerShape(KEY_HEADS, SIZE, SIZE)],
            vocabulary=VOCABULARY,
            positions=POSITIONS,
        )
        weights = {}
        for name, recipe in made.program.weights.items():
            if recipe.kind == "table":
                weights[name] = made.tables[name]
                continue
            parts_of = [made.sources[source].detach() for source in recipe.sources]
            weight = torch.cat([one.t() if recipe.transposed else one for one in parts_of])
            if recipe.order is not None:
                weight = weight[made.tables[recipe.order]]
            weights[name] = interleave(*weight.chunk(2)) if recipe.interleaved else weight
            if recipe.kind == "vector":
                weights[name] = weights[name].flatten() + recipe.added
        return model, made.program, weights

    return make

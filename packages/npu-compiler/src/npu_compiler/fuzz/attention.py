"""Attention as published models spell it out: projections, heads, scores, softmax, values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from npu_compiler.fuzz.graph import Mark, Ref

__all__ = ["FORMS", "Sizes", "Writer"]


@dataclass(frozen=True)
class Sizes:
    """The dimensions of one attention; any of them may be equal."""

    batch: int  # sequences
    tokens: int  # queries of a sequence
    others: int  # keys of a sequence, for cross-attention
    heads: int
    size: int  # channels of one head

    @property
    def width(self) -> int:
        """Channels of all heads together."""
        return self.heads * self.size


class Writer(Protocol):
    """The interface of a graph under construction for attention forms."""

    def choose(self, options: Sequence[Any]) -> Any:
        """Chooses one of these."""

    def input(self, shape: Sequence[int], names: str = "", **fields: Any) -> Ref:
        """Adds an input; `names` has a letter per axis, "-" for an axis of fixed size."""

    def call(self, target: str, *arguments: Any, **keywords: Any) -> Ref:
        """Adds one call."""


def _size(of: Ref, axis: int) -> Mark:
    return Mark("size", [of.value, axis])


def _sequence(w: Writer, s: Sizes, *, name: str = "n", tokens: int | None = None) -> Ref:
    """Adds a sequence, (batch, tokens, width)."""
    return w.input((s.batch, tokens or s.tokens, s.width), f"b{name}-", fill="normal")


def _project(w: Writer, x: Ref, inputs: int, outputs: int) -> Ref:
    weight = w.input((outputs, inputs), fill="small", frozen=w.choose((True, False)))
    if w.choose((True, False)):
        return w.call("F.linear", x, weight)
    bias = w.input((outputs,), fill="small", frozen=w.choose((True, False)))
    return w.call("F.linear", x, weight, bias)


def _split(w: Writer, x: Ref, s: Sizes, *, heads: int | None = None) -> Ref:
    """(batch, tokens, heads * size) -> (batch, heads, tokens, size)."""
    sizes = (_size(x, 0), _size(x, 1), heads or s.heads, s.size)
    viewed = w.call(w.choose(("method.view", "method.reshape")), x, *sizes)
    if w.choose((True, False)):
        return w.call("method.transpose", viewed, 1, 2)
    return w.call("method.permute", viewed, 0, 2, 1, 3)


def _merge(w: Writer, y: Ref, s: Sizes) -> Ref:
    """(batch, heads, tokens, size) -> (batch, tokens, heads * size)."""
    turned = w.call("method.transpose", y, 1, 2)
    way = w.choose(("reshape", "view", "flatten"))
    if way == "flatten":
        return w.call("method.flatten", turned, 2)
    if way == "view":
        turned = w.call("method.contiguous", turned)
    return w.call(f"method.{way}", turned, _size(turned, 0), _size(turned, 1), s.width)


def _scores(w: Writer, q: Ref, k: Ref, size: int) -> Ref:
    """Adds q k^T, scaled at one of the positions used by models."""
    place = w.choose(("q", "q", "scores", "divided", "nowhere"))
    if place == "q":
        q = w.call("operator.mul", q, size**-0.5)
    turned = w.call("method.transpose", k, -2, -1)
    found = w.call(w.choose(("operator.matmul", "torch.matmul")), q, turned)
    if place == "scores":
        return w.call("operator.mul", found, size**-0.5)
    if place == "divided":
        return w.call("operator.truediv", found, size**0.5)
    return found


def _softmax(w: Writer, scores: Ref) -> Ref:
    return w.call(w.choose(("torch.softmax", "F.softmax", "method.softmax")), scores, dim=-1)


def _attend(w: Writer, q: Ref, k: Ref, v: Ref, size: int, *, bias: Ref | None = None) -> Ref:
    scores = _scores(w, q, k, size)
    if bias is not None:
        scores = w.call("operator.add", scores, bias)
    return w.call("operator.matmul", _softmax(w, scores), v)


def _packed_parts(w: Writer, packed: Ref, axis: int) -> list[Ref]:
    """Returns the three parts of a packed tensor, taken in one of several ways."""
    way = w.choose(("unbind", "index", "select", "chunk"))
    if way == "unbind":
        parts = w.call("method.unbind", packed, axis)
        return [w.call("operator.getitem", parts, i) for i in range(3)]
    if way == "chunk":
        parts = w.call("torch.chunk", packed, 3, dim=axis)
        chunks = [w.call("operator.getitem", parts, i) for i in range(3)]
        return [w.call("method.squeeze", chunk, axis) for chunk in chunks]
    if way == "select" or axis:
        return [w.call("torch.select", packed, axis, i) for i in range(3)]
    return [w.call("operator.getitem", packed, i) for i in range(3)]


def _packed(w: Writer, s: Sizes) -> list[Ref]:
    """Returns q, k and v of (batch, tokens, 3 * width), as in timm's models."""
    if w.choose((True, False)):
        x = _project(w, _sequence(w, s), s.width, 3 * s.width)
    else:
        x = w.input((s.batch, s.tokens, 3 * s.width), "bn-", fill="normal")
    qkv = w.call("method.reshape", x, _size(x, 0), _size(x, 1), 3, s.heads, s.size)
    return _packed_parts(w, w.call("method.permute", qkv, 2, 0, 3, 1, 4), 0)


def _finish(w: Writer, y: Ref, s: Sizes) -> Ref:
    return _project(w, y, s.width, s.width) if w.choose((True, False)) else y


def vision_transformer(w: Writer, s: Sizes) -> Ref:
    """Timm's ViT: one projection, reshape(b, n, 3, h, d).permute(2, 0, 3, 1, 4)."""
    q, k, v = _packed(w, s)
    return _finish(w, _merge(w, _attend(w, q, k, v, s.size), s), s)


def bert(w: Writer, s: Sizes) -> Ref:
    """Separate projections and an additive mask of (batch, 1, 1, tokens)."""
    x = _sequence(w, s)
    q, k, v = (_split(w, _project(w, x, s.width, s.width), s) for _ in range(3))
    mask = w.input((s.batch, 1, 1, s.tokens), "b--n", fill="quarters")
    return _finish(w, _merge(w, _attend(w, q, k, v, s.size, bias=mask), s), s)


def gpt2(w: Writer, s: Sizes) -> Ref:
    """One projection, split along the last axis, and a causal mask."""
    x = _project(w, _sequence(w, s), s.width, 3 * s.width)
    parts = w.call("method.split", x, s.width, dim=2)
    q, k, v = (_split(w, w.call("operator.getitem", parts, i), s) for i in range(3))
    scores = _scores(w, q, k, s.size)
    allowed = w.call("torch.tril", w.input((s.tokens, s.tokens), "nn", dtype="bool", fill="ones"))
    if w.choose((True, False)):
        scores = w.call("torch.where", allowed, scores, -1e4)
    else:
        hidden = w.call("torch.logical_not", allowed)
        scores = w.call("method.masked_fill", scores, hidden, w.choose((-1e4, float("-inf"))))
    return _finish(w, _merge(w, w.call("operator.matmul", _softmax(w, scores), v), s), s)


def swin(w: Writer, s: Sizes) -> Ref:
    """Windows with a bias looked up in a table of relative positions, and a mask per window."""
    q, k, v = _packed(w, s)
    rows = 2 * s.tokens + 1
    table = w.input((rows, s.heads), fill="normal", frozen=True)
    cells = s.tokens * s.tokens
    where = w.input((cells,), dtype="int64", fill="indices", bound=rows, frozen=True)
    bias = w.call("operator.getitem", table, where)
    bias = w.call("method.view", bias, s.tokens, s.tokens, -1)
    bias = w.call("method.unsqueeze", w.call("method.permute", bias, 2, 0, 1), 0)
    return _finish(w, _merge(w, _attend(w, q, k, v, s.size, bias=bias), s), s)


def swin_shifted(w: Writer, s: Sizes) -> Ref:
    """Windows of several images: scores are viewed per window to add a mask."""
    windows = s.others
    x = w.input((s.batch * windows, s.tokens, 3 * s.width), fill="normal")
    qkv = w.call("method.reshape", x, s.batch * windows, s.tokens, 3, s.heads, s.size)
    q, k, v = _packed_parts(w, w.call("method.permute", qkv, 2, 0, 3, 1, 4), 0)
    scores = _scores(w, q, k, s.size)
    mask = w.input((windows, s.tokens, s.tokens), fill="quarters")
    mask = w.call("method.unsqueeze", w.call("method.unsqueeze", mask, 1), 0)
    full = (s.batch, windows, s.heads, s.tokens, s.tokens)
    scores = w.call("operator.add", w.call("method.view", scores, *full), mask)
    scores = w.call("method.view", scores, -1, s.heads, s.tokens, s.tokens)
    y = w.call("operator.matmul", _softmax(w, scores), v)
    turned = w.call("method.transpose", y, 1, 2)
    return w.call("method.reshape", turned, s.batch * windows, s.tokens, s.width)


def timesformer(w: Writer, s: Sizes) -> Ref:
    """Attention over frames, then over space, of one video."""
    frames, places = s.tokens, s.others
    x = w.input((s.batch, frames, places, s.width), fill="normal")
    turned = w.call("method.permute", x, 0, 2, 1, 3)
    y = w.call("method.reshape", turned, s.batch * places, frames, s.width)
    y = _packed_attention(w, y, s)
    y = w.call("method.view", y, s.batch, places, frames, s.width)
    y = w.call("operator.add", w.call("method.permute", y, 0, 2, 1, 3), x)
    y = w.call("method.reshape", y, s.batch * frames, places, s.width)
    return _packed_attention(w, y, s)


def _packed_attention(w: Writer, x: Ref, s: Sizes) -> Ref:
    wide = _project(w, x, s.width, 3 * s.width)
    qkv = w.call("method.reshape", wide, _size(x, 0), _size(x, 1), 3, s.heads, s.size)
    q, k, v = _packed_parts(w, w.call("method.permute", qkv, 2, 0, 3, 1, 4), 0)
    return _merge(w, _attend(w, q, k, v, s.size), s)


def perceiver(w: Writer, s: Sizes) -> Ref:
    """Queries of latents; keys and values of data, from one projection."""
    data = _sequence(w, s, name="m", tokens=s.others)
    q = _split(w, _project(w, _sequence(w, s), s.width, s.width), s)
    both = w.call("method.chunk", _project(w, data, s.width, 2 * s.width), 2, dim=-1)
    k, v = (_split(w, w.call("operator.getitem", both, i), s) for i in range(2))
    return _finish(w, _merge(w, _attend(w, q, k, v, s.size), s), s)


def einsum(w: Writer, s: Sizes) -> Ref:
    """bhid,bhjd->bhij and bhij,bhjd->bhid."""
    q, k, v = _packed(w, s) if w.choose((True, False)) else _heads(w, s)
    scores = w.call("torch.einsum", "bhid,bhjd->bhij", q, k)
    scores = w.call("operator.mul", scores, s.size**-0.5)
    y = w.call("torch.einsum", "bhij,bhjd->bhid", _softmax(w, scores), v)
    return _merge(w, y, s)


def einsum_in_place(w: Writer, s: Sizes) -> Ref:
    """bnhd,bmhd->bhnm: without transposes."""
    q = w.input((s.batch, s.tokens, s.heads, s.size), "bn--", fill="normal")
    k, v = (w.input((s.batch, s.others, s.heads, s.size), "bm--", fill="normal") for _ in range(2))
    scores = w.call("torch.einsum", "bnhd,bmhd->bhnm", q, k)
    return w.call("torch.einsum", "bhnm,bmhd->bnhd", _softmax(w, scores), v)


def _heads(w: Writer, s: Sizes) -> list[Ref]:
    return [w.input((s.batch, s.heads, s.tokens, s.size), "b-n-", fill="normal") for _ in range(3)]


def multi_query(w: Writer, s: Sizes) -> Ref:
    """All query heads share one head of keys and values."""
    q = _split(w, _project(w, _sequence(w, s), s.width, s.width), s)
    k, v = (w.input((s.batch, s.others, s.size), "bm-", fill="normal") for _ in range(2))
    if w.choose((True, False)):
        scores = w.call("torch.einsum", "bhid,bjd->bhij", q, k)
        y = w.call("torch.einsum", "bhij,bjd->bhid", _softmax(w, scores), v)
    else:
        k, v = (w.call("method.unsqueeze", part, 1) for part in (k, v))
        y = _attend(w, q, k, v, s.size)
    return _merge(w, y, s)


def grouped_query(w: Writer, s: Sizes) -> Ref:
    """Keys and values have fewer heads, which are repeated."""
    groups = w.choose([g for g in range(1, s.heads + 1) if s.heads % g == 0])
    times = s.heads // groups
    q = _split(w, _project(w, _sequence(w, s), s.width, s.width), s)
    narrow = groups * s.size
    data = w.input((s.batch, s.others, narrow), "bm-", fill="normal")
    repeated = []
    for _ in range(2):
        part = _split(w, _project(w, data, narrow, narrow), s, heads=groups)
        if w.choose((True, False)):
            repeated.append(w.call("torch.repeat_interleave", part, times, dim=1))
            continue
        part = w.call("method.unsqueeze", part, 2)
        part = w.call("method.expand", part, -1, -1, times, -1, -1)
        repeated.append(w.call("method.flatten", part, 1, 2))
    k, v = repeated
    return _finish(w, _merge(w, _attend(w, q, k, v, s.size), s), s)


def alibi(w: Writer, s: Sizes) -> Ref:
    """A slope per head times the distance."""
    q, k, v = _packed(w, s)
    slopes = w.input((s.heads, 1, 1), fill="quarters", frozen=True)
    places = w.input((1, 1, s.tokens), "--n", fill="quarters")
    bias = w.call("operator.mul", slopes, places)
    return _merge(w, _attend(w, q, k, v, s.size, bias=bias), s)


def t5(w: Writer, s: Sizes) -> Ref:
    """No scale; a bias from an embedding of distances."""
    x = _sequence(w, s)
    q, k, v = (_split(w, _project(w, x, s.width, s.width), s) for _ in range(3))
    table = w.input((s.others + 1, s.heads), fill="normal", frozen=True)
    square = (s.tokens, s.tokens)
    where = w.input(square, "nn", dtype="int64", fill="indices", bound=s.others + 1)
    bias = w.call("method.permute", w.call("F.embedding", where, table), 2, 0, 1)
    scores = w.call("torch.matmul", q, w.call("method.transpose", k, 3, 2))
    scores = w.call("operator.add", scores, w.call("method.unsqueeze", bias, 0))
    return _merge(w, w.call("torch.matmul", _softmax(w, scores), v), s)


def linear_attention(w: Writer, s: Sizes) -> Ref:
    """elu(q) + 1 and elu(k) + 1 instead of a softmax; sums over tokens come first."""
    q, k, v = _packed(w, s) if w.choose((True, False)) else _heads(w, s)
    q, k = (w.call("operator.add", w.call("F.elu", part), 1.0) for part in (q, k))
    turned = w.call("method.transpose", k, -2, -1)
    above = w.call("operator.matmul", q, w.call("operator.matmul", turned, v))
    total = w.call("method.sum", k, dim=2, keepdim=True)
    below = w.call("method.sum", w.call("operator.mul", q, total), dim=-1, keepdim=True)
    y = w.call("operator.truediv", above, w.call("operator.add", below, 0.01))
    return _merge(w, y, s)


def talking_heads(w: Writer, s: Sizes) -> Ref:
    """Heads are mixed before and after the softmax."""
    q, k, v = _packed(w, s)
    before = w.input((s.heads, s.heads), fill="small", frozen=True)
    after = w.input((s.heads, s.heads), fill="small", frozen=True)
    if w.choose((True, False)):
        scores = w.call("torch.einsum", "bhij,hg->bgij", _scores(w, q, k, s.size), before)
        weights = w.call("torch.einsum", "bhij,hg->bgij", _softmax(w, scores), after)
    else:
        scores = _mix(w, _scores(w, q, k, s.size), before)
        weights = _mix(w, _softmax(w, scores), after)
    return _merge(w, w.call("operator.matmul", weights, v), s)


def _mix(w: Writer, scores: Ref, weight: Ref) -> Ref:
    last = w.call("method.permute", scores, 0, 2, 3, 1)
    return w.call("method.permute", w.call("F.linear", last, weight), 0, 3, 1, 2)


def cosine(w: Writer, s: Sizes) -> Ref:
    """Swin v2: q and k of length one, and a learnt scale per head."""
    q, k, v = _packed(w, s)
    q, k = (w.call("F.normalize", part, dim=-1, eps=0.1) for part in (q, k))
    scale = w.input((s.heads, 1, 1), fill="small", frozen=True)
    scale = w.call("method.exp", w.call("torch.clamp", scale, max=4.6))
    scores = w.call("operator.matmul", q, w.call("method.transpose", k, -2, -1))
    weights = _softmax(w, w.call("operator.mul", scores, scale))
    return _merge(w, w.call("operator.matmul", weights, v), s)


def interleaved(w: Writer, s: Sizes) -> Ref:
    """GPT-NeoX and Bloom: q, k and v are adjacent within each head."""
    x = w.input((s.batch, s.tokens, 3 * s.width), "bn-", fill="normal")
    if w.choose((True, False)):
        viewed = w.call("method.view", x, _size(x, 0), _size(x, 1), s.heads, 3, s.size)
        parts = _packed_parts(w, viewed, 3)
    else:
        viewed = w.call("method.view", x, _size(x, 0), _size(x, 1), s.heads, 3 * s.size)
        both = w.call("method.chunk", viewed, 3, dim=-1)
        parts = [w.call("operator.getitem", both, i) for i in range(3)]
    q, k, v = (w.call("method.transpose", part, 1, 2) for part in parts)
    return _finish(w, _merge(w, _attend(w, q, k, v, s.size), s), s)


def rotary(w: Writer, s: Sizes) -> Ref:
    """Llama: pairs of channels are rotated by the position."""
    half = s.size
    wide = Sizes(s.batch, s.tokens, s.others, s.heads, 2 * half)
    q, k, v = _packed(w, wide) if w.choose((True, False)) else _heads(w, wide)
    cos, sin = (w.input((1, 1, s.tokens, 2 * half), "--n-", fill="quarters") for _ in range(2))
    turned = []
    for part in (q, k):
        rows = Mark("slice", [None, half, None]), Mark("slice", [half, None, None])
        every = Mark("rest", None)
        low, high = (w.call("operator.getitem", part, (every, row)) for row in rows)
        crossed = w.call("torch.cat", [w.call("operator.neg", high), low], dim=-1)
        straight = w.call("operator.mul", part, cos)
        turned.append(w.call("operator.add", straight, w.call("operator.mul", crossed, sin)))
    q, k = turned
    return _merge(w, _attend(w, q, k, v, wide.size), wide)


def cross_covariance(w: Writer, s: Sizes) -> Ref:
    """XCiT: channels attend to channels."""
    q, k, v = (w.call("method.transpose", part, -2, -1) for part in _packed(w, s))
    scores = w.call("operator.matmul", q, w.call("method.transpose", k, -2, -1))
    y = w.call("operator.matmul", _softmax(w, scores), v)
    y = w.call("method.permute", y, 0, 3, 1, 2)
    return w.call("method.reshape", y, _size(y, 0), _size(y, 1), s.width)


def folded_heads(w: Writer, s: Sizes) -> Ref:
    """torch.nn.MultiheadAttention: tokens first, batch and heads as one axis, baddbmm."""
    pairs = s.batch * s.heads
    q, k, v = (
        w.call(
            "method.transpose",
            w.call("method.view", w.input((s.tokens, s.batch, s.width)), s.tokens, pairs, s.size),
            0,
            1,
        )
        for _ in range(3)
    )
    mask = w.input((pairs, s.tokens, s.tokens))
    scores = w.call("torch.baddbmm", mask, q, w.call("method.transpose", k, -2, -1))
    y = w.call("method.transpose", w.call("torch.bmm", _softmax(w, scores), v), 0, 1)
    return w.call("method.view", w.call("method.contiguous", y), s.tokens, s.batch, s.width)


def whole(w: Writer, s: Sizes) -> Ref:
    """The attention function of torch on packed heads."""
    q, k, v = _packed(w, s)
    y = w.call("F.scaled_dot_product_attention", q, k, v, is_causal=w.choose((False, True)))
    return _finish(w, _merge(w, y, s), s)


FORMS: dict[str, Callable[[Writer, Sizes], Ref]] = {
    form.__name__: form
    for form in (
        vision_transformer, bert, gpt2, swin, swin_shifted, timesformer, perceiver, einsum,
        einsum_in_place, multi_query, grouped_query, alibi, t5, linear_attention, talking_heads,
        cosine, interleaved, rotary, cross_covariance, folded_heads, whole,
    )
}  # fmt: skip

"""The whole block: equal to its parts, caches written at their slots and nowhere else."""

import inspect
import re

import pytest
import torch

from npu_ops.sparse_attention import sparse_attention

op = torch.ops.npu.sparse_attention
CANARY = -77.0
BATCH, LENGTH, HIDDEN, RANK, HEADS, PLAIN, ROPE, LATENT = 2, 3, 40, 24, 5, 16, 8, 32
INDEX_HEADS, INDEX_WIDTH, PAGE, PAGES = 6, 20, 16, 7
BEFORE = (18, 4)  # tokens that the caches hold already
TABLE = torch.tensor([[5, 1], [2, 6]])
CACHES = ("kv_cache", "kr_cache", "idx_cache")


def slots(table=TABLE, before=BEFORE, length=LENGTH):
    at = torch.tensor(before)[:, None] + torch.arange(length)
    return table.gather(1, at // PAGE) * PAGE + at % PAGE


def layer(dtype=torch.float32, *, one_tensor=False):
    """Arguments by name; pages that belong to no sequence, and slots beyond, hold the canary."""
    torch.manual_seed(0)
    widths = (LATENT, ROPE, INDEX_WIDTH)
    if one_tensor:
        caches = torch.full((PAGES, PAGE, 1, sum(widths)), CANARY).to(dtype).split(widths, -1)
    else:
        caches = [torch.full((PAGES, PAGE, 1, width), CANARY).to(dtype) for width in widths]
    for cache in caches:
        for row, count in zip(TABLE, BEFORE, strict=True):
            for at in range(count):
                cache[row[at // PAGE], at % PAGE] = torch.randn(cache.shape[-1])
    angles = torch.rand(BATCH, LENGTH, ROPE // 2) * 6
    shapes = {
        "x": (BATCH, LENGTH, HIDDEN), "weight_dq": (HIDDEN, RANK),
        "weight_uq_qr": (RANK, HEADS * (PLAIN + ROPE)), "weight_uk": (HEADS, PLAIN, LATENT),
        "weight_dkv_kr": (HIDDEN, LATENT + ROPE), "gamma_cq": (RANK,), "gamma_ckv": (LATENT,),
        "weight_idx_qb": (RANK, INDEX_HEADS * INDEX_WIDTH), "weight_idx_k": (HIDDEN, INDEX_WIDTH),
        "gamma_idx_k": (INDEX_WIDTH,), "beta_idx_k": (INDEX_WIDTH,),
        "weight_idx_proj": (HIDDEN, INDEX_HEADS),
    }  # fmt: skip
    found = {name: (torch.randn(shape) / shape[0] ** 0.5).to(dtype)
             for name, shape in shapes.items()}  # fmt: skip
    return found | {
        "cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype), "cache_index": slots(),
        **dict(zip(CACHES, caches, strict=True)), "block_table": TABLE,
        "actual_seq_lengths_kv": torch.tensor(BEFORE) + LENGTH, "scale_value": 0.2,
    }  # fmt: skip


OPTIONS = {"sparse_count": 6}


def moved(given, device):
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}


def copied(given):
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in given.items()}


def rotate_neighbours(x, cos, sin):
    first, second = x[..., 0::2], x[..., 1::2]
    both = torch.stack([first * cos - second * sin, second * cos + first * sin], -1)
    return both.flatten(-2)


def rotate_halves(x, cos, sin):
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def composed(a, *, sparse_count, swapped=False):
    """The block out of torch's ops and the two ops alone; returns the result and the new rows."""
    main, index = (rotate_halves, rotate_neighbours) if swapped else (
        rotate_neighbours, rotate_halves)  # fmt: skip
    cos, sin = a["cos"].unsqueeze(2), a["sin"].unsqueeze(2)

    def norm(x, gamma):
        return torch.nn.functional.rms_norm(x, gamma.shape, gamma, 1e-5)

    c = norm(a["x"] @ a["weight_dq"], a["gamma_cq"])
    q = (c @ a["weight_uq_qr"]).view(BATCH, LENGTH, HEADS, PLAIN + ROPE)
    absorbed = (q[..., None, :PLAIN] @ a["weight_uk"]).squeeze(-2)
    kv = a["x"] @ a["weight_dkv_kr"]
    k_i = torch.nn.functional.layer_norm(
        a["x"] @ a["weight_idx_k"], (INDEX_WIDTH,), a["gamma_idx_k"], a["beta_idx_k"], 1e-6
    )
    rows = {
        "kv_cache": norm(kv[..., :LATENT], a["gamma_ckv"]).unsqueeze(2),
        "kr_cache": main(kv[..., None, LATENT:], cos, sin),
        "idx_cache": rotate_neighbours(k_i.unsqueeze(2)[..., :ROPE], cos, sin)
        if swapped
        else index(k_i.unsqueeze(2), cos, sin),
    }
    if swapped:
        rows["idx_cache"] = torch.cat([rows["idx_cache"], k_i.unsqueeze(2)[..., ROPE:]], -1)
    for name, new in rows.items():
        a[name].view(-1, a[name].shape[-1])[a["cache_index"].flatten()] = new.flatten(0, 2)
    q_i = (c @ a["weight_idx_qb"]).view(BATCH, LENGTH, INDEX_HEADS, INDEX_WIDTH)
    if swapped:
        q_i = torch.cat([rotate_neighbours(q_i[..., :ROPE], cos, sin), q_i[..., ROPE:]], -1)
    else:
        q_i = index(q_i, cos, sin)
    paged = {"block_table": a["block_table"]}
    lengths = a["actual_seq_lengths_kv"]
    indices = torch.ops.npu.lightning_indexer(
        q_i, a["idx_cache"], a["x"] @ a["weight_idx_proj"], actual_seq_lengths_key=lengths,
        layout_key="PA_BSND", sparse_count=sparse_count, **paged,
    )  # fmt: skip
    return torch.ops.npu.sparse_flash_attention(
        absorbed, a["kv_cache"], a["kv_cache"], indices, 0.2, 1, actual_seq_lengths_kv=lengths,
        query_rope=main(q[..., PLAIN:], cos, sin), key_rope=a["kr_cache"], layout_kv="PA_BSND",
        **paged,
    )  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("swapped", [False, True])
def test_block_equals_a_composition_of_its_parts(device, swapped):
    given = layer()
    theirs = copied(given)
    expected = composed(theirs, **OPTIONS, swapped=swapped)
    mine = moved(copied(given), device)
    pairing = {"rope_interleaved": not swapped, "idx_rope_interleaved": swapped}
    y = op(**mine, **OPTIONS, **pairing)
    assert y.shape == (BATCH, LENGTH, HEADS, LATENT)
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-5)
    for name in CACHES:
        torch.testing.assert_close(mine[name].cpu(), theirs[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_block_equals_its_reference(dtype):
    given = layer(dtype)
    options = {"sparse_count": 64}  # all positions, as bfloat16 may order near ties differently
    theirs, mine = copied(given), copied(given)
    expected = sparse_attention.reference(**theirs, **options)
    near = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(op(**mine, **options), expected, **near)
    for name in CACHES:
        torch.testing.assert_close(mine[name], theirs[name], **near)


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("one_tensor", [False, True])
def test_caches_are_written_at_cache_index_and_nowhere_else(device, one_tensor):
    given = layer(one_tensor=one_tensor)
    given["cache_index"][1, 2] = -1  # this token is not kept
    before = {name: given[name].clone() for name in CACHES}
    if one_tensor:
        whole = torch.cat([given[name] for name in CACHES], -1).to(device)
        views = whole.split([given[name].shape[-1] for name in CACHES], -1)
        there = moved(given, device) | dict(zip(CACHES, views, strict=True))
    else:
        there = moved(given, device)
        for name in CACHES:
            there[name] = before[name].clone().to(device)
    op(**there, **OPTIONS)
    written = torch.zeros(PAGES * PAGE, dtype=torch.bool)
    written[given["cache_index"][given["cache_index"] >= 0]] = True
    assert written.sum() == BATCH * LENGTH - 1
    for name in CACHES:
        after = there[name].cpu().reshape(PAGES * PAGE, -1)
        former = before[name].reshape(PAGES * PAGE, -1)
        assert torch.equal(after[~written], former[~written])
        assert (after[written] != former[written]).any(-1).all()
        assert after[~written].eq(CANARY).any()


def test_versions_of_the_caches_count_the_write():
    given = layer()
    before = [given[name]._version for name in CACHES]
    op(**given, **OPTIONS)
    assert [given[name]._version for name in CACHES] == [count + 1 for count in before]


def other(name, value):
    return lambda given: given | {name: value(given) if callable(value) else value}


REFUSED = [
    (other("x", torch.zeros(2, 3, 41)), "op-shape", "`weight_dq` must be (41, 24)"),
    (other("x", torch.zeros(6, 40)), "op-shape", "`x` must have 3 axes, got (6, 40)"),
    (other("x", lambda a: a["x"].double()), "op-dtype", "got torch.float64"),
    (other("weight_uk", lambda a: a["weight_uk"].bfloat16()), "op-dtype", "`weight_uk` must have"),
    (other("cache_index", lambda a: a["cache_index"].float()), "op-dtype", "`cache_index` must be"),
    (other("idx_cache", torch.zeros(PAGES, PAGE, 1, 19)), "op-shape", "got (7, 16, 1, 19)"),
    (other("kr_cache", torch.zeros(PAGES, PAGE, 1, 7)), "op-shape", "got (24, 120)"),
    (other("cache_index", slots() + 80), "op-index", "below 112, got 116"),
    (other("cache_index", slots() * 0 - 2), "op-index", "got -2"),
    (other("cache_index", slots() * 0 + 7), "op-index", "a separate slot, got [7, 7"),
    (other("actual_seq_lengths_kv", torch.tensor([21, 33])), "op-block-table", "of 33 keys"),
    (other("block_table", TABLE + 5), "op-block-table", "pages of the caches, 0 to 6, got 10"),
    (lambda given: given | {name: torch.zeros(14, 8, 1, given[name].shape[3]) for name in CACHES},
     "op-block-table", "got 2 pages of 8 for sequence 0 of 21 keys"),
    (other("actual_seq_lengths_kv", torch.tensor([21, -1])), "op-lengths", "lengths_kv` must be"),
    (other("actual_seq_lengths_kv", torch.tensor([21])), "op-lengths", "lengths_kv` must have"),
    (other("sparse_count", 0), "op-value", "got 0"),
    (other("sparse_mode", 2), "op-value", "got 2"),
    (other("actual_seq_lengths_query", torch.tensor([3, 4])), "op-lengths", "got 4"),
    (other("kv_cache", torch.zeros(1, 1, 1, LATENT).expand(PAGES, PAGE, 1, LATENT)), "op-alias",
     "`kv_cache` must have a separate element"),
    (other("kr_cache", lambda a: a["kv_cache"][..., 1 : ROPE + 1]), "op-alias",
     "kv_cache and kr_cache must share no element"),
]  # fmt: skip


@pytest.mark.parametrize("change, code, words", REFUSED)
def test_refusal_writes_nothing(change, code, words):
    given = change(layer() | OPTIONS)
    before = {name: given[name].clone() for name in CACHES}
    with pytest.raises(ValueError) as caught:
        op(**given)
    text = str(caught.value).splitlines()[0]
    assert text.startswith("npu.sparse_attention: ")
    assert text.endswith(f"[{code}]")
    assert words in text
    assert not re.search(r"lengths_key|layout_key|\bkey \(|of key", text)
    for name in CACHES:
        assert torch.equal(given[name], before[name])


@pytest.mark.parametrize("code", ["op-shape", "op-dtype", "op-value"])
def test_fake_refuses_in_the_same_words(code):
    for change, its_code, _ in REFUSED:
        if its_code == code:
            given = change(layer() | OPTIONS)
            with pytest.raises(ValueError) as first:
                op(**given)
            with pytest.raises(ValueError) as second:
                op(**moved(given, "meta"))
            assert str(first.value).splitlines()[0] == str(second.value).splitlines()[0]


def test_gradient_is_refused():
    given = layer()
    given["weight_dq"].requires_grad_()
    with pytest.raises(RuntimeError, match=r"npu\.sparse_attention: .*\[op-gradient\]"):
        op(**given)
    with torch.no_grad():
        assert op(**given).isfinite().all()


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_registration_says_which_arguments_are_written(device):
    given = moved(layer(), device)
    torch.library.opcheck(op.default, tuple(given.values()), OPTIONS)
    schema = {argument.name: argument for argument in op.default._schema.arguments}
    assert [n for n, a in schema.items() if a.alias_info and a.alias_info.is_write] == list(CACHES)
    assert list(schema) == [*inspect.signature(layer_type()).parameters]


def layer_type():
    from npu_ops.sparse_attention.layer import Layer

    return Layer


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.parametrize("backend, device", [("inductor", "cpu"), ("npu", "npu")])
def test_compiled_block_writes_the_same_caches(backend, device):
    def step(given):
        return op(**given, **OPTIONS) * 2

    theirs, mine = moved(layer(), device), moved(layer(), device)
    mine = {k: v.clone() if k in CACHES else v for k, v in mine.items()}
    expected = step(theirs)
    with torch.no_grad():
        compiled = torch.compile(step, backend=backend, fullgraph=True)
        torch.testing.assert_close(compiled(mine), expected, rtol=1e-4, atol=1e-5)
    for name in CACHES:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-5, atol=1e-5)


def test_export_keeps_the_op_whole():
    class Step(torch.nn.Module):
        def forward(self, given):
            return op(**given, **OPTIONS)

    program = torch.export.export(Step(), (layer(),))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert names == ["npu.sparse_attention.default"]


def test_its_functional_form_returns_the_caches_and_writes_none():
    given, untouched = layer(), layer()
    given["cache_index"][1, 0] = untouched["cache_index"][1, 0] = -1
    y, caches = sparse_attention.functional(**given, **OPTIONS)
    torch.testing.assert_close([given[name] for name in CACHES], [untouched[n] for n in CACHES])
    torch.testing.assert_close(y, op(**given, **OPTIONS), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(list(caches), [given[name] for name in CACHES])

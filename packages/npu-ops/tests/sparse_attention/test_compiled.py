"""Sparse attention under opcheck, torch.compile and torch.export."""

import pytest
import torch

npu = torch.ops.npu
LENGTHS = (9, 33)
# Inductor's imports.
INDUCTOR = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
CHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


def tensors(batch=2, length=3, keys=40, heads=4, width=16):
    torch.manual_seed(0)
    return {
        "query": torch.randn(batch, length, heads, width),
        "key": torch.randn(batch, keys, 1, width),
        "weights": torch.randn(batch, length, heads),
        "value": torch.randn(batch, keys, 1, 24),
    }


def both(query, key, weights, value):
    picked = npu.lightning_indexer(query * 2, key, weights, sparse_count=8)
    return npu.sparse_flash_attention(query, key, value, picked, 0.25, 1).relu()


def paged_arguments():
    cache = torch.randn(5, 16, 1, 24)
    table = torch.tensor([[3, 1, 0], [4, 0, 2]], dtype=torch.int32)
    return cache, table, torch.tensor(LENGTHS, dtype=torch.int32)


@pytest.mark.parametrize("layout, device", [("BSND", "cpu"), ("PA_BSND", "npu")])
def test_indexer_passes_opcheck(to_device, layout, device):
    given = tensors()
    options = {"sparse_count": 8, "layout_key": layout}
    key = given["key"]
    if layout == "PA_BSND":
        cache, table, lengths = paged_arguments()
        key = cache[..., :16]
        options |= {"block_table": table, "actual_seq_lengths_key": lengths}
    arguments = [part.to(device) for part in (given["query"], key, given["weights"])]
    torch.library.opcheck(npu.lightning_indexer.default, arguments, to_device(options, device))


def int8_rows(rows):
    """Rows in 8 bits with their scales, as a decoder would fill its cache."""
    scale = rows.abs().amax(-1) / 127
    return (rows / scale.unsqueeze(-1)).round().to(torch.int8), scale


def picked_of_int8(query, key, weights):
    (q, q_scale), (k, k_scale) = int8_rows(query), int8_rows(key)
    scales = {"query_dequant_scale": q_scale, "key_dequant_scale": k_scale}
    return npu.lightning_indexer(q, k, weights, sparse_count=8, **scales)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_indexer_of_int8_passes_opcheck(to_device, device):
    cache, table, lengths = paged_arguments()
    query, q_scale = int8_rows(tensors(width=24)["query"])
    key, k_scale = int8_rows(cache)
    arguments = [part.to(device) for part in (query, key, tensors()["weights"])]
    options = {
        "query_dequant_scale": q_scale, "key_dequant_scale": k_scale, "block_table": table,
        "actual_seq_lengths_key": lengths, "layout_key": "PA_BSND", "sparse_count": 8,
    }  # fmt: skip
    torch.library.opcheck(npu.lightning_indexer.default, arguments, to_device(options, device))


@pytest.mark.parametrize("backend, device", [("aot_eager", "cpu"), ("npu", "npu")])
def test_compiled_indexer_of_int8_picks_the_same(backend, device):
    pytest.importorskip("npu_compiler")
    given = [tensors()[name].to(device) for name in ("query", "key", "weights")]
    compiled = torch.compile(picked_of_int8, backend=backend, fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(*given), picked_of_int8(*given))


@pytest.mark.parametrize(
    "layout, device, needs_gradients",
    [
        ("BSND", "cpu", True),
        ("BSND", "npu", False),
        ("PA_BSND", "cpu", False),
        ("PA_BSND", "npu", True),
    ],
)
def test_attention_passes_opcheck(to_device, layout, device, needs_gradients):
    given = tensors()
    key, value = given["key"], given["value"]
    options = {"layout_kv": layout, "query_rope": torch.randn(2, 3, 4, 8)}
    options["key_rope"] = torch.randn(2, 40, 1, 8)
    if layout == "PA_BSND":
        cache, table, lengths = paged_arguments()
        key, value, options["key_rope"] = cache[..., :16], cache, cache[..., 16:].clone()
        options |= {"block_table": table, "actual_seq_lengths_kv": lengths}
    indices = torch.randint(-1, 9, (2, 3, 1, 6), dtype=torch.int32).to(device)
    arguments = [part.detach().clone().to(device) for part in (given["query"], key, value)]
    options = to_device(options, device)
    for part in (*arguments, options["query_rope"], options["key_rope"]):
        part.requires_grad_(needs_gradients)
    checks = list(CHECKS)
    if device == "npu" and needs_gradients:  # torch knows this check for CPU, CUDA and XPU alone
        checks.remove("test_autograd_registration")
    torch.library.opcheck(
        npu.sparse_flash_attention.default,
        (*arguments, indices, 0.3, 1),
        options,
        test_utils=checks,
    )


@INDUCTOR
@pytest.mark.parametrize(
    "backend, device", [("inductor", "cpu"), ("aot_eager", "npu"), ("npu", "npu")]
)
def test_compiled_without_a_break_gives_the_same(backend, device):
    pytest.importorskip("npu_compiler")
    given = {name: part.to(device) for name, part in tensors().items()}
    compiled = torch.compile(both, backend=backend, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(**given), both(**given), rtol=1e-4, atol=1e-5)


def test_compiled_for_any_length_without_compiling_again():
    compiled = torch.compile(both, backend="aot_eager", fullgraph=True, dynamic=True)
    for length, keys in ((3, 40), (5, 51), (7, 77)):
        given = tensors(length=length, keys=keys)
        with torch.compiler.set_stance("fail_on_recompile" if length > 3 else "default"):
            torch.testing.assert_close(compiled(**given), both(**given))


def test_compiled_training_step_has_the_eager_gradients():
    given = tensors()

    def gradients(function):
        mine = {name: part.detach().clone() for name, part in given.items()}
        for name in ("query", "key", "value"):
            mine[name].requires_grad_()
        y = function(**mine)
        y.square().sum().backward()
        return [mine[name].grad for name in ("query", "key", "value")]

    # Parts the graph as Inductor does, without the C++ that Inductor compiles.
    compiled = torch.compile(both, backend="aot_eager_decomp_partition", fullgraph=True)
    expected = gradients(both)
    assert all(part.any() for part in expected)
    torch.testing.assert_close(gradients(compiled), expected, rtol=1e-4, atol=1e-5)


def test_export_keeps_the_ops_whole():
    class Both(torch.nn.Module):
        def forward(self, query, key, weights, value):
            return both(query, key, weights, value)

    given = tensors()
    length = torch.export.Dim("length", min=2, max=30)
    keys = torch.export.Dim("keys", min=9, max=4_000)
    shapes = {"query": {1: length}, "key": {1: keys}, "weights": {1: length}, "value": {1: keys}}
    program = torch.export.export(Both(), (), given, dynamic_shapes=shapes)
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert names.count("npu.lightning_indexer.default") == 1
    assert names.count("npu.sparse_flash_attention.default") == 1
    other = tensors(length=6, keys=70)
    torch.testing.assert_close(program.module()(**other), both(**other))

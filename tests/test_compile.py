"""torch.compile(backend="npu") as a user meets it: by name, after `import torch` alone."""

import copy
import importlib
import warnings

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 32)]
    return torch.nn.Sequential(*layers).eval()


def test_backend_is_found_by_its_name():
    assert "npu" in torch._dynamo.list_backends()


@pytest.mark.parametrize("device", ["npu", "cpu"])
def test_compiled_equals_eager_where_the_model_lives(model, device):
    x = torch.randn(8, 64)
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(copy.deepcopy(model).to(device), backend="npu")
        received = compiled(x.to(device))
    assert received.device.type == device
    torch.testing.assert_close(received.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_two_calls_share_no_output(model):
    compiled = torch.compile(model.to("npu"), backend="npu")
    with torch.no_grad():
        first = compiled(torch.zeros(8, 64, device="npu"))
        kept = first.clone()
        compiled(torch.ones(8, 64, device="npu"))
    assert torch.equal(first.cpu(), kept.cpu())


def test_a_changed_weight_counts_at_the_next_call(model):
    model = model.to("npu")
    compiled = torch.compile(model, backend="npu")
    x = torch.randn(8, 64, device="npu")
    with torch.no_grad():
        compiled(x)
        model[0].weight.mul_(2.0)
        torch.testing.assert_close(compiled(x).cpu(), model(x).cpu(), rtol=1e-4, atol=1e-4)


def test_llama_compiles_and_equals_the_cpu(tiny_llama_config):
    torch.manual_seed(0)
    on_cpu = LlamaForCausalLM(LlamaConfig(**tiny_llama_config)).float().eval()
    compiled = torch.compile(copy.deepcopy(on_cpu).to("npu"), backend="npu")
    tokens = torch.randint(0, 128, (1, 16))
    with torch.no_grad():
        expected = on_cpu(tokens, use_cache=False).logits
        received = compiled(tokens.to("npu"), use_cache=False).logits
    torch.testing.assert_close(received.cpu(), expected, rtol=1e-3, atol=1e-4)


def test_explain_counts_programs_and_nodes(model):
    import npu_compiler

    explanation = npu_compiler.explain(model, torch.randn(8, 64))
    assert explanation.program_count == 1
    assert explanation.lowered_count == explanation.node_count
    assert "1 program" in str(explanation)


def test_flex_attention_in_a_compiled_function_has_eagers_results_and_gradients():
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    torch.manual_seed(0)
    mask = flex.create_block_mask(
        lambda b, h, q, k: q >= k, None, None, 32, 32, device="npu", BLOCK_SIZE=16
    )

    def attend(x, weight):
        q, k, v = (x @ weight).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return flex.flex_attention(
            q, k, v, score_mod=lambda s, b, h, m, n: s - 0.1 * (m - n), block_mask=mask
        )

    results = []
    for run in (attend, torch.compile(attend, backend="npu")):
        torch.manual_seed(1)
        x = torch.randn(2, 32, 12, device="npu")
        weight = torch.randn(12, 48, device="npu", requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # eagerly torch warns about its speed
            out = run(x, weight)
        out.square().sum().backward()
        results.append([out.detach(), weight.grad])
    for eager, compiled in zip(*results, strict=True):  # sums of many products, near 0 in places
        largest = float(eager.abs().max())
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=5e-6 * largest)

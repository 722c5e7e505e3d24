import pytest
import torch
import transformers
from torch import fx

from npu_compiler.lowering import node_origins
from npu_llm.capture import layer_dedup
from npu_llm.capture.step import capture_step

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip
GPT = {
    "n_embd": 32, "n_layer": 5, "n_head": 4, "vocab_size": 97, "n_positions": 64,
    "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.3,
}  # fmt: skip
KINDS = [("sliding_attention", "full_attention")[place == 5] for place in range(12)]
FAMILIES = {  # how many of the layers are copied
    "llama": (transformers.LlamaConfig(**SIZES), 2),
    "gemma3": (
        transformers.Gemma3TextConfig(
            **SIZES | {"num_hidden_layers": 12, "layer_types": KINDS, "sliding_window": 5}
        ),
        8,
    ),
    "mixtral": (transformers.MixtralConfig(**SIZES, num_local_experts=4), 2),
    "gpt2": (transformers.GPT2Config(**GPT), 2),
    "gpt2 scaled by the layer": (
        transformers.GPT2Config(**GPT, scale_attn_by_inverse_layer_idx=True),
        0,
    ),
    "few": (transformers.LlamaConfig(**SIZES | {"num_hidden_layers": 3}), 0),
}

if hasattr(transformers, "DeepseekV32Config"):
    FAMILIES["deepseek_v32"] = (  # the first layer has no experts
        transformers.DeepseekV32Config(
            **SIZES | {"num_key_value_heads": 4, "num_hidden_layers": 5},
            kv_lora_rank=20,
            q_lora_rank=36,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=12,
            moe_intermediate_size=24,
            n_routed_experts=8,
            n_group=2,
            topk_group=1,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            index_topk=4,
            index_head_dim=12,
            index_n_heads=6,
        ),
        1,
    )


def make(config):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")
    return model


def capture(model, monkeypatch):
    """Captures a model; returns the step, and how many layers were copied."""
    copied = []
    original = layer_dedup._copy

    def copy(first, layer, *others):
        copied.append(layer.path)
        return original(first, layer, *others)

    monkeypatch.setattr(layer_dedup, "_copy", copy)
    captured = capture_step(model)
    return captured, len(set(copied))


def computed(graph: fx.Graph) -> list[str]:
    """Names the calls that compute tensors; copies share sizes."""
    values = [(node, node.meta.get("val")) for node in graph.nodes if node.op == "call_function"]
    return [str(node.target) for node, value in values if not isinstance(value, torch.SymInt)]


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=pytest.mark.long if name in ("gemma3", "mixtral") else ())
        for name in FAMILIES
    ],
)
def test_copies_are_what_tracing_each_layer_gives(family, monkeypatch):
    config, expected = FAMILIES[family]
    model = make(config)
    captured, copied = capture(model, monkeypatch)
    assert copied == expected
    monkeypatch.setattr(layer_dedup, "_FEWEST", 1000)
    plain, none = capture(model, monkeypatch)
    assert none == 0
    assert computed(captured.graph_module.graph) == computed(plain.graph_module.graph)
    assert captured.limits == plain.limits
    origins, others = (
        [place for _, place in sorted(node_origins(one.graph_module.graph).items())]
        for one in (captured, plain)
    )
    assert set(origins) == set(others)
    for count, past in ((3, 0), (2, 9)):
        ids = torch.arange(2 * count).reshape(2, count) + 3
        places = torch.arange(past, past + count).expand(2, count)
        arguments = [ids, torch.ones(2, past + count, dtype=torch.int64), places]
        arguments = arguments if "position_ids" in captured.inputs else arguments[:2]
        caches = [torch.randn(2, heads, past, size) for heads, size in captured.caches]
        inputs = (*arguments, torch.arange(count), *caches)
        for ours, theirs in zip(
            captured.graph_module(*inputs), plain.graph_module(*inputs), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_last_layer_that_is_traced_otherwise_is_noticed(monkeypatch):
    model = make(FAMILIES["llama"][0])
    forward = type(model.model.layers[0].mlp).forward

    def by_place(mlp, hidden):
        owner = next(one for one in model.model.layers if one.mlp is mlp)
        return forward(mlp, hidden) * (2 if owner.self_attn.layer_idx == 4 else 1)

    monkeypatch.setattr(type(model.model.layers[0].mlp), "forward", by_place)
    captured, copied = capture(model, monkeypatch)
    assert copied == 2  # in the trace that was given up
    ids = torch.arange(3, 9).reshape(2, 3)
    past = [torch.zeros(2, heads, 0, size) for heads, size in captured.caches]
    logits, *_ = captured.graph_module(
        ids, torch.ones_like(ids), torch.arange(3).expand(2, 3), torch.arange(3), *past
    )
    with torch.no_grad():
        torch.testing.assert_close(logits, model(ids).logits)


def test_a_layer_that_leaves_something_for_others_is_not_copied(monkeypatch):
    model = make(FAMILIES["llama"][0])
    left = []
    forward = type(model.model.layers[0]).forward

    def leaving(layer, hidden_states, **kwargs):
        result = forward(layer, hidden_states, **kwargs)
        layer.left = left.append(hidden_states) or len(left)
        return result

    monkeypatch.setattr(type(model.model.layers[0]), "forward", leaving)
    _, copied = capture(model, monkeypatch)
    assert copied == 0


def test_layers_are_as_before_the_trace(monkeypatch):
    model = make(FAMILIES["llama"][0])
    capture(model, monkeypatch)
    assert not any("forward" in vars(module) for module in model.modules())

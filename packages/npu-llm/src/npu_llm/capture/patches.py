"""Patches of transformers' code while a step is traced, and hooks that record modules.

They are set on the model's modules, not on their classes, and removed after the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.fx import traceback
from transformers.integrations import sdpa_attention

__all__ = [
    "all_experts",
    "grouped_heads",
    "record_modules",
]


@contextmanager
def all_experts(model: torch.nn.Module) -> Iterator[None]:
    """Makes a model's experts traceable inside the block, if they are not."""
    with ExitStack() as stack:
        for module in model.modules():
            for name, instead in _INSTEAD.get(type(module).__name__, {}).items():
                stack.enter_context(mock.patch.object(module, name, partial(instead, module)))
        yield


def _jetmoe_feed_forward(module: Any, layer_input: torch.Tensor) -> torch.Tensor:
    """Returns (batch, tokens, hidden), like the original."""
    shares, chosen, _ = _chosen(module.router, layer_input)
    hidden = _expert_of_each(module.input_linear, _repeated(layer_input, chosen), chosen)
    gate, up = hidden.chunk(2, dim=-1)
    found = _expert_of_each(module.output_linear, module.activation(gate) * up, chosen)
    total: torch.Tensor = (found * shares[..., None]).sum(2) + module.bias
    return total


def _jetmoe_queries(module: Any, layer_input: torch.Tensor) -> tuple[torch.Tensor, Any, Any]:
    """Returns queries (batch, tokens, chosen, hidden), the router's logits, and the choice."""
    shares, chosen, logits = _chosen(module.router, layer_input)
    inputs = _repeated(layer_input, chosen)
    return _expert_of_each(module.input_linear, inputs, chosen), logits, (shares, chosen)


def _jetmoe_outputs(module: Any, layer_input: torch.Tensor, choice: Any) -> torch.Tensor:
    """Returns (batch, tokens, hidden) for attention results (batch, tokens, chosen, hidden)."""
    shares, chosen = choice
    found = _expert_of_each(module.output_linear, layer_input, chosen)
    total: torch.Tensor = (found * shares[..., None]).sum(2) + module.bias
    return total


def _chosen(router: Any, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns weights and indices of the chosen experts (batch, tokens, chosen), and logits."""
    logits = router.layer(states).float()
    scores, chosen = logits.topk(router.top_k, dim=-1)
    return torch.softmax(scores, dim=-1).type_as(states), chosen, logits.flatten(0, 1)


def _repeated(states: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return states[:, :, None].expand(-1, -1, chosen.shape[-1], -1)


def _expert_of_each(experts: Any, inputs: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Returns inputs (batch, tokens, chosen, inputs) times each expert's weight matrix."""
    parts = []
    for index in range(experts.num_experts):
        found = torch.nn.functional.linear(inputs, experts.weight[index])
        parts.append(found * (chosen == index).to(found.dtype)[..., None])
    return torch.stack(parts).sum(0)


def _dbrx_experts(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Returns the weighted sum of the chosen experts: (batch, tokens, hidden)."""
    states = hidden_states.reshape(-1, module.hidden_size)
    shape = (-1, module.ffn_hidden_size, module.hidden_size)
    one, other, last = (weight.view(shape) for weight in _dbrx_weights(module))
    shares = torch.zeros(states.shape[0], module.num_experts, dtype=states.dtype)
    shares = shares.scatter(1, top_k_index, top_k_weights.to(states.dtype))
    result = torch.zeros_like(states)
    for index in range(module.num_experts):
        found = module.mlp(states, one[index], other[index], last[index])
        result = result + found * shares[:, index, None]
    return result.view(hidden_states.shape[0], -1, module.hidden_size)


def _dbrx_weights(module: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return module.mlp.w1, module.mlp.v1, module.mlp.w2


# The replaced methods of a class.
_INSTEAD: dict[str, dict[str, Callable[..., Any]]] = {
    "DbrxExperts": {"forward": _dbrx_experts},
    "JetMoeMoA": {"map": _jetmoe_queries, "reduce": _jetmoe_outputs},
    "JetMoeMoE": {"forward": _jetmoe_feed_forward},
}


_CHOICE = "use_gqa_in_sdpa"


@contextmanager
def grouped_heads() -> Iterator[None]:
    """Makes transformers' attention share keys between heads, inside the block."""
    if not hasattr(sdpa_attention, _CHOICE):
        yield
        return
    with mock.patch.object(sdpa_attention, _CHOICE, return_value=True):
        yield


_KEY = "nn_module_stack"


@contextmanager
def record_modules(model: torch.nn.Module) -> Iterator[None]:
    """Records the path of the running module in nodes that are traced inside the block.

    Args:
        model: root of the paths.
    """
    outer: list[Any] = []

    def hooks(path: str) -> tuple[Any, Any]:
        def enter(module: torch.nn.Module, _: Any) -> None:
            stack = traceback.current_meta.get(_KEY)
            outer.append(stack)
            traceback.current_meta[_KEY] = {**(stack or {}), path: (path, type(module))}

        def leave(*_: Any) -> None:
            traceback.current_meta[_KEY] = outer.pop()

        return enter, leave

    handles = []
    for path, module in model.named_modules():
        enter, leave = hooks(path)
        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        with traceback.preserve_node_meta():
            yield
    finally:
        for handle in handles:
            handle.remove()

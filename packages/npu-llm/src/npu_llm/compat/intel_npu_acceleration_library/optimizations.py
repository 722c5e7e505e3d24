"""Fuses linear layers with the same input."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Sequence

import torch
from torch import fx, nn

from npu_llm.errors import OptionError

__all__ = ["delattr_recursively", "fuse_linear_layers", "horizontal_fusion_linear"]


def delattr_recursively(module: nn.Module, target: str) -> None:
    """Deletes an attribute by its dotted name."""
    path, _, name = target.rpartition(".")
    delattr(module.get_submodule(path), name)


def fuse_linear_layers(
    model: nn.Module, modules: dict[str, nn.Linear], targets: Sequence[str], fused_layer_name: str
) -> None:
    """Replaces linear layers with the same input by one layer.

    Args:
        model: the model with these layers; modified in place.
        modules: the layers by name.
        targets: names of the layers to fuse, in the order of their outputs.
        fused_layer_name: name of the new layer.

    Raises:
        OptionError: [fused-layers] for other modules, or inputs that differ in size.
    """
    layers = [modules[name] for name in targets]
    inputs = {getattr(layer, "in_features", None) for layer in layers}
    if len(inputs) != 1 or not all(isinstance(layer, nn.Linear) for layer in layers):
        raise OptionError(
            "`fuse_linear_layers` must be given torch.nn.Linear layers with equal inputs, got "
            f"{[str(layer) for layer in layers]}. Fuse layers that read the same tensor.",
            code="fused-layers",
        )
    has_bias = any(layer.bias is not None for layer in layers)
    weight = torch.cat([layer.weight.detach() for layer in layers])
    fused = nn.Linear(1, 1, bias=has_bias)
    fused.out_features, fused.in_features = weight.shape
    fused.weight = nn.Parameter(weight)
    if has_bias:
        none = (weight.new_zeros(layer.out_features) for layer in layers)
        fused.bias = nn.Parameter(
            torch.cat(
                [zeros if layer.bias is None else layer.bias.detach()
                 for layer, zeros in zip(layers, none, strict=True)]
            )
        )  # fmt: skip
    fused.train(layers[0].training)
    setattr(model, fused_layer_name, fused)
    for name in targets:
        delattr_recursively(model, name)


def horizontal_fusion_linear(model: nn.Module) -> fx.GraphModule:
    """Returns the model as a graph in which linear layers with the same input are fused.

    Args:
        model: a module that torch.fx can trace.

    Raises:
        OptionError: [fused-layers] for another.
    """
    try:
        traced = fx.symbolic_trace(model)
    except Exception as failure:  # the model's code runs on proxies
        raise OptionError(
            "`horizontal_fusion_linear` must be given a module that torch.fx can trace, got "
            f"{type(model).__name__}: {failure}. Omit it: compile fuses any model's layers with "
            "use_to=True.",
            code="fused-layers",
        ) from failure
    layers = {name: module for name, module in traced.named_modules() if type(module) is nn.Linear}
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    counts = Counter(node.target for node in calls)
    readers: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    for node in calls:
        if node.target in layers and counts[node.target] == 1 and node.args:
            readers[node.args[0]].append(node)
    for nodes in readers.values():
        if len(nodes) > 1 and len({layers[node.target].weight.dtype for node in nodes}) == 1:
            _fuse(traced, layers, nodes)
    traced.graph.lint()
    traced.recompile()
    return traced


def _fuse(traced: fx.GraphModule, layers: dict[str, nn.Linear], nodes: list[fx.Node]) -> None:
    targets = [str(node.target) for node in nodes]
    name = "fused_" + "_".join(targets).replace(".", "_")
    sizes = [layers[target].out_features for target in targets]
    fuse_linear_layers(traced, layers, targets, name)
    with traced.graph.inserting_before(nodes[0]):
        fused = traced.graph.call_module(name, nodes[0].args)
        parts = traced.graph.call_method("split", (fused, sizes, -1))
        for place, node in enumerate(nodes):
            part = traced.graph.call_function(operator.getitem, (parts, place))
            node.replace_all_uses_with(part)
    for node in nodes:
        traced.graph.erase_node(node)

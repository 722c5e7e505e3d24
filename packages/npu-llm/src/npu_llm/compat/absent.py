"""Names of intel-npu-acceleration-library that are not served, and what serves instead."""

from __future__ import annotations

from npu_llm.errors import CompatError

__all__ = ["HOME", "NAME", "absent_module", "absent_name"]

NAME = "intel_npu_acceleration_library"
HOME = f"npu_llm.compat.{NAME}"

_BINDINGS = "Use backend.NNFactory, whose methods build the same graphs."
_COMPILE = "Call compiler.compile, which does all that a model needs."
_LAYERS = "Omit it: compile serves transformers' own layers."
_CACHE = "Omit it: compiled programs are kept, models are not."

# Modules, by their names below that library's.
_MODULES = {
    "backend.base": "Derive from backend.NNFactory, and override its run.",
    "backend.bindings": _BINDINGS,
    "backend.ops": "Use torch's functions on a graph's tensors.",
    "bindings": _BINDINGS,
}
# What modules that are served leave out.
_NAMES = {
    "backend.check_npu_and_driver_version": "`npu-runtime doctor` tells what serves, and why not.",
    "backend.lib": _BINDINGS,
    "backend.driver.check_npu_and_driver_version": "`npu-runtime doctor` tells what serves.",
    "compiler.apply_general_optimizations": _COMPILE,
    "compiler.apply_horizontal_fusion": "Call optimizations.horizontal_fusion_linear.",
    "compiler.create_npu_kernels": _COMPILE,
    "compiler.module_optimization": "Walk model.named_children() yourself.",
    "compiler.optimize_llama_attention": _LAYERS,
    "compiler.weights_quantization": "Call compiler.compile with dtype=int8 or int4.",
    "modelling.get_cache_dir": _CACHE,
    "modelling.get_mangled_model_name": _CACHE,
    "modelling.get_model_path": _CACHE,
    "nn.LlamaAttention": _LAYERS,
    "nn.conv.Im2ColConv2d": "Use nn.Conv2d.",
    "nn.llm.FusedLlamaMLP": _LAYERS,
    "nn.llm.LlamaAttention": _LAYERS,
}


def absent_module(fullname: str) -> CompatError | None:
    """Returns the error for a module that library had and this package has not; None for others.

    Args:
        fullname: the module's, below that library's name.
    """
    short = fullname.removeprefix(f"{NAME}.")
    return _error(short, _MODULES[short]) if short in _MODULES else None


def absent_name(module: str, name: str) -> CompatError | AttributeError:
    """Returns the error for a name that a module has not.

    Args:
        module: `__name__` of the module.
        name: what was asked of it.
    """
    short = f"{module}.{name}".removeprefix(f"{HOME}.")
    if short in _NAMES:
        return _error(short, _NAMES[short])
    return AttributeError(f"module {module!r} has no attribute {name!r}")


def _error(short: str, advice: str) -> CompatError:
    return CompatError(
        f"{NAME}.{short}: must be a part that is served here; got one that is not. {advice}",
        code="compat-absent",
    )

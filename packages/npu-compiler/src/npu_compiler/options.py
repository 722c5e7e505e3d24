"""Compilation options and their validation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from npu_compiler.errors import OptionError
from npu_compiler.option_names import check_ops, nearest
from npu_compiler.programs.precision import PRECISIONS, precision_name
from npu_compiler.quantize import GROUP_SIZES, MODES, ROUNDINGS
from npu_ops.kernel_programs.sparse_attention import SparseAttention

__all__ = [
    "CompilerConfig",
    "SparseAttention",
    "backend_options",
    "parse_options",
    "resolve_config",
]

_SPARSE = "`sparse_attention` must be left out, because the program has no key-value cache"
# Options that torch.compile has arguments for, or that moving the module sets.
_NOT_FOR_BACKENDS = {
    "dynamic": "it is an argument of torch.compile. Write torch.compile(dynamic=...), or use "
    "npu_compiler.compile",
    "activations": "it needs calibration data. Use npu_compiler.export(calibration=...)",
    "rounding": "it needs calibration data. Use npu_compiler.export(calibration=...)",
    "sparse_attention": "its programs have no key-value cache. Use "
    "npu_llm.load(..., sparse_attention=...)",
    "use_to": "a backend has no module to move. Call module.to('npu') before torch.compile, or "
    "use npu_compiler.compile",
}
int8, int4 = "int8", "int4"  # values of dtype, under intel-npu-acceleration-library's names

_SWITCHES = ("strict", "freeze", "use_to", "check_indices", "check_weights")
_THREE_WAY = ("training", "dynamic")
_NAMES = {"fallback_ops": "aten.gelu.default", "keep_float32": "layers.0.norm"}
_LISTED = {
    "group_size": GROUP_SIZES,
    "rounding": (*ROUNDINGS, None),
    "activations": ("int8", None),
    "verify": ("first", "always", "off"),
    "nan": ("propagate", "fast", None),
}
_OWN_TARGETS = ("openvino", "kernels", "NPU", None)


# keep_float32 by the half-precision simulation of the first call.
AUTO = "auto"
# The option's name for buckets without a list.
POWERS_OF_TWO = "powers of two"


@dataclass(frozen=True)
class CompilerConfig:
    """Options of npu_compiler.compile and of torch.compile(options={...}).

    Attributes:
        dtype: precision of the computation, "float32", "bfloat16" or "float16"; or the compressed
            form of the weights of matrix products, "int8" or "int4". A torch dtype works as well.
            None follows the graph's dtype. Inputs, outputs and parameters keep theirs.
        training: True for graphs with a backward graph; weights stay inputs of the program. False
            for inference; results take no gradient. None: inference under npu_compiler.compile, and
            grad mode decides under torch.compile.
        strict: raise an error for a node that would run eagerly.
        dynamic: whether sizes may vary without a new compilation, like torch.compile's `dynamic`:
            False never, True at once, None after the first change. torch.compile(options=...) does
            not take it.
        buckets: dynamic sizes are rounded up to these, and each bucket gets a static program: a
            list of sizes, such as (32, 64, 128), or "powers of two". None: powers of two if the
            device needs static sizes, and programs with dynamic sizes otherwise.
        precision: precision of the computation if weights are compressed.
        freeze: weights become constants of inference programs. Without it they stay inputs.
        fallback_ops: ops, as in "aten.gelu.default", that are to run eagerly.
        keep_float32: modules, as in "layers.0.mlp.down" or "layers.*.norm", whose own calls run
            eagerly between programs, in the dtype of the graph; npu_compiler.check_half finds them.
            Calls outside of any module go by their node's name. "auto": the first call of an
            inference graph is simulated in half precision on its values, and the modules that need
            float32 are kept; see npu_compiler.torch_compile.auto_kept.
        device_options: OpenVINO properties for the device's compiler, in addition to those of the
            precision, such as {"SNIPPETS_MODE": "DISABLE"}.
        enabled_passes: passes to run in addition to the default ones, such as "merge_linears".
        disabled_passes: passes to leave out, such as "fuse_linear"; see
            npu_compiler.passes.pipeline.
        group_size: inputs of an int4 weight that share a scale: 32, 64 or 128.
        activations: "int8", with dtype "int8": convolutions and matrix products compute in int8.
            Only npu_compiler.export, which takes calibration data, does this.
        symmetric: compressed weights have no zero points: slightly smaller and slightly less exact.
        rounding: how npu_compiler.export rounds int4 weights by calibration data: "gptq", the
            default, or "awq" for AWQ and scale estimation.
        verify: "first": each program is compared with torch on its first inputs, before results are
            returned. A program that differs is corrected or runs eagerly, with a warning. "always":
            at every call, for debugging; "off": never.
        nan: "propagate": NaN passes through every op as in torch; "fast": inference may use faster
            forms that drop NaN. None: "propagate", except for the forms that the documentation
            lists.
        check_indices: an index out of range raises, as in torch; without the check the result
            depends on the device.
        check_weights: detect changes of weights that bypass the version counter, as through `.data`
            or a numpy alias, at the next call. False: only after npu_compiler.refresh.
        target: target of inference programs: "openvino", the device's compiler; "kernels", npu-ops'
            kernels on the host's cores, if they cover the whole program, see
            `graph_compiler.targets`; "NPU", operations that the NPU's compiler accepts, on any
            device: refused operations are rewritten if an equal form exists, and run eagerly
            otherwise; a name of `npu-compiler target list` from another wheel, programs for the
            simulator of its vendor. None: "NPU" on that device; on OpenVINO's CPU plugin, kernels
            for few rows and small weights, for which call overhead exceeds the arithmetic.
        sparse_attention: which keys a token of a long sequence attends to, an approximation for
            models that keep their KV cache in a kernel program, as npu_llm.load makes them.
            npu_compiler.compile and torch.compile refuse it.
        cache_dir: directory of the compile cache; by default NPU_COMPILE_CACHE_DIR.
        use_to: also move the module to the npu device, before it is compiled. A call may have its
            inputs on the CPU, and its results are then there as well. torch.compile(options=...)
            does not take it.

    Raises:
        OptionError: [option-value] for a value of the wrong type or outside its list,
            [unknown-dtype], [option-conflict] for two options that contradict each other,
            [target-form] for a target with programs that nothing here runs.
    """

    dtype: str | torch.dtype | None = None
    training: bool | None = None
    strict: bool = False
    dynamic: bool | None = None
    buckets: tuple[int, ...] | str | None = None
    precision: str | torch.dtype | None = None
    freeze: bool = True
    fallback_ops: tuple[str, ...] = ()
    keep_float32: tuple[str, ...] | str = ()
    device_options: Mapping[str, str] = field(default_factory=dict)
    enabled_passes: tuple[str, ...] = ()
    disabled_passes: tuple[str, ...] = ()
    group_size: int = 64
    activations: str | None = None
    symmetric: bool = False
    rounding: str | None = None
    verify: str = "first"
    nan: str | None = None
    check_indices: bool = True
    check_weights: bool = True
    target: str | None = None
    sparse_attention: SparseAttention | None = None
    cache_dir: Path | str | None = None
    use_to: bool = False

    def __post_init__(self) -> None:
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise _bad_value(name, "True or False", getattr(self, name))
        for name in _THREE_WAY:
            if getattr(self, name) is not None and not isinstance(getattr(self, name), bool):
                raise _bad_value(name, "True, False or None", getattr(self, name))
        for name, allowed in _LISTED.items():
            if getattr(self, name) not in allowed:
                rule = "one of " + ", ".join(map(repr, allowed))
                raise _bad_value(name, rule, getattr(self, name))
        if not isinstance(self.sparse_attention, (SparseAttention, type(None))):
            raise _bad_value("sparse_attention", "a SparseAttention", self.sparse_attention)
        if self.cache_dir is not None:
            if not isinstance(self.cache_dir, (str, os.PathLike)):
                raise _bad_value("cache_dir", "a path", self.cache_dir)
            self._set("cache_dir", Path(self.cache_dir).expanduser())
        for name, example in _NAMES.items():
            self._set(name, _names(name, getattr(self, name), example))
        check_ops("fallback_ops", self.fallback_ops)
        self._set("device_options", _properties(self.device_options))
        for name in ("enabled_passes", "disabled_passes"):
            self._set(name, _pass_names(name, getattr(self, name)))
        self._set("buckets", _buckets(self.buckets))
        if self.dtype is not None:
            self._set("dtype", _precision_of("dtype", self.dtype))
        if self.precision is not None:
            self._set("precision", _float_precision(self.precision))
        self._set("target", _target(self.target))
        self._check_conflicts()

    @property
    def is_for_vendor(self) -> bool:
        """Whether another vendor's compiler makes the programs."""
        return self.target not in _OWN_TARGETS

    @property
    def computed_in(self) -> str | None:
        """Precision of the computation; None for the graph's dtype."""
        own = None if self.compression else self.dtype
        found = self.precision or own
        return None if found is None else str(found)

    @property
    def compression(self) -> str | None:
        """Compressed form of the weights of matrix products: int8, int4 or None."""
        return str(self.dtype) if self.dtype in MODES else None

    @property
    def bucket_sizes(self) -> tuple[int, ...] | None:
        """The sizes of buckets in ascending order; None for powers of two."""
        return self.buckets if isinstance(self.buckets, tuple) else None

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_conflicts(self) -> None:
        if self.activations is not None and self.dtype != self.activations:
            raise _conflict(
                f"`dtype` must equal `activations` {self.activations!r}",
                f"dtype {self.dtype!r}",
                f"Give dtype {self.activations!r}",
            )
        if self.compression is None:
            if self.precision is not None and self.dtype not in (None, self.precision):
                raise _conflict(
                    "`dtype` and `precision` must not differ",
                    f"dtype {self.dtype!r}, precision {self.precision!r}",
                    "Give one of them",
                )
            return
        if self.training:
            raise _conflict(
                f"dtype {self.dtype!r}: `training` must be off, because compressed weights are "
                "constants",
                "training True",
                "Train in a float dtype and compress afterwards",
            )
        if "merge_linears" in self.enabled_passes:
            raise _conflict(
                f"dtype {self.dtype!r}: `enabled_passes` must not have merge_linears, which joins "
                "weights",
                "merge_linears among enabled_passes",
                "Leave it out",
            )
        if not self.freeze:
            raise _conflict(
                f"dtype {self.dtype!r}: `freeze` must be on, because only frozen weights are "
                "compressed",
                "freeze False",
                "Leave freeze on",
            )


def parse_options(options: Mapping[str, Any] | None) -> CompilerConfig:
    """Builds a configuration from options given by name.

    Raises:
        OptionError: [unknown-option] with similar names; others as CompilerConfig raises.
    """
    known = [field.name for field in fields(CompilerConfig)]
    given = dict(options or {})
    for name in given:
        if name not in known:
            hint = nearest(str(name), known) or "Choose one of these. "
            raise OptionError(
                f"compiling for npu: `options` must be among {', '.join(known)}, got {name!r}. "
                f"{hint.rstrip()}",
                code="unknown-option",
            )
    return CompilerConfig(**given)


def resolve_config(
    subject: str,
    config: CompilerConfig | None,
    options: Mapping[str, Any],
    *,
    is_calibrated: bool = False,
) -> CompilerConfig:
    """Returns the configuration from a config object or from options by name.

    Args:
        subject: the function, for messages.
        config: as an object.
        options: by name.
        is_calibrated: whether the function takes calibration data.

    Raises:
        OptionError: [option-value] if config is not a CompilerConfig, [option-conflict] when both
            are given, [option-place] for an option that needs missing calibration data; others as
            parse_options.
    """
    if config is None:
        config, options = parse_options(options), {}
    if not isinstance(config, CompilerConfig):
        raise OptionError(
            f"{subject}: `config` must be a CompilerConfig, got {type(config).__name__}. "
            "Write CompilerConfig(...), or the options by name.",
            code="option-value",
        )
    if options:
        raise OptionError(
            f"{subject}: `options` must be given in `config` or by name, got both, by name "
            f"{', '.join(options)}. Put them into the CompilerConfig.",
            code="option-conflict",
        )
    if config.sparse_attention is not None:
        raise OptionError(
            f"{subject}: {_SPARSE}, got sparse_attention {config.sparse_attention}. Use "
            "npu_llm.load(..., sparse_attention=...), or omit it.",
            code="option-place",
        )
    by_data = {"activations": config.activations, "rounding": config.rounding}
    asked = [f"{name} {value!r}" for name, value in by_data.items() if value is not None]
    if asked and not is_calibrated:
        raise OptionError(
            f"{subject}: `activations` and `rounding` must be left out, because only an export has "
            f"calibration data, got {', '.join(asked)}. Use "
            "npu_compiler.export(calibration=...) and npu_compiler.load.",
            code="option-place",
        )
    return config


def backend_options(options: Mapping[str, Any] | None) -> CompilerConfig:
    """Builds a configuration from torch.compile(options=...).

    Raises as parse_options, and [option-place] for an option that torch.compile sets otherwise.
    """
    config = parse_options(options)
    for name, way in _NOT_FOR_BACKENDS.items():
        if getattr(config, name):
            raise OptionError(
                f'torch.compile(backend="npu"): `{name}` must be left out for a backend, got '
                f"{getattr(config, name)!r}: {way}.",
                code="option-place",
            )
    return config


def _target(value: Any) -> str | None:
    if value in _OWN_TARGETS:
        return value  # type: ignore[no-any-return]
    from npu_compiler.target_compiler.targets import find_target  # late: few compilations have one

    try:
        return find_target(value, graphs=True).number
    except OptionError as failure:
        if failure.code != "unknown-target":
            raise
        names = ", ".join(map(repr, _OWN_TARGETS))
        rule = f"one of {names}, or a name of `npu-compiler target list`"
        raise _bad_value("target", rule, value) from failure


def _precision_of(name: str, dtype: Any) -> str:
    if not isinstance(dtype, (str, torch.dtype)):
        raise _bad_value(name, "a torch dtype or its name", dtype)
    return precision_name(dtype)


def _float_precision(dtype: Any) -> str:
    name = _precision_of("precision", dtype)
    if name in MODES:
        floats = ", ".join(name for name in PRECISIONS if name not in MODES)
        raise OptionError(
            f"`precision` must be one of {floats}, got {dtype!r}. Pass it as `dtype` to compress "
            "weights.",
            code="unknown-dtype",
        )
    return name


def _names(option: str, value: Any, example: str) -> tuple[str, ...] | str:
    if option == "keep_float32" and value == AUTO:
        return AUTO
    is_list = isinstance(value, (list, tuple, set, frozenset))
    if not is_list or not all(isinstance(name, str) for name in value):
        raise _bad_value(option, f'a list of names such as "{example}"', value)
    return tuple(value)


def _properties(value: Any) -> dict[str, str]:
    is_map = isinstance(value, Mapping)
    if not is_map or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise _bad_value("device_options", 'a mapping such as {"SNIPPETS_MODE": "DISABLE"}', value)
    return dict(value)


def _pass_names(option: str, value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, (list, tuple, set, frozenset))
    if not is_list:
        raise _bad_value(option, 'a list of names such as "fuse_linear"', value)
    if not value:
        return ()
    from npu_compiler.passes.pipeline import pass_names  # late: it imports all passes and their ops

    for name in value:
        if name not in pass_names():
            rule = f"names of passes ({', '.join(pass_names())})"
            raise _bad_value(option, rule, name, nearest(str(name), pass_names()))
    return tuple(value)


def _buckets(value: Any) -> tuple[int, ...] | str | None:
    if value is None or value == POWERS_OF_TWO:
        return value  # type: ignore[no-any-return]
    is_list = isinstance(value, (list, tuple))
    are_sizes = is_list and all(type(size) is int and size > 0 for size in value)
    if not are_sizes or not value:
        raise _bad_value("buckets", f'sizes above 0, or "{POWERS_OF_TWO}"', value)
    return tuple(sorted(set(value)))


def _bad_value(name: str, rule: str, received: Any, hint: str = "") -> OptionError:
    return OptionError(
        f"option {name}: {rule}, got {received!r} ({type(received).__name__}). "
        f"{hint}Pass such a value.",
        code="option-value",
    )


def _conflict(rule: str, received: str, step: str) -> OptionError:
    return OptionError(f"{rule}, got {received}. {step}.", code="option-conflict")

"""LoadOptions: validated options for loading a model."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import npu_runtime
from npu_llm.checkpoint.facts import ModelFacts
from npu_llm.choices import (
    DEFAULT_PRECISION,
    TARGET_PRECISION,
    KvCache,
    PipelineName,
    Verify,
    choose_pipeline,
    parse_kv_cache,
    parse_pipeline,
    parse_verify,
)
from npu_llm.errors import OptionError
from npu_llm.models.entry import Entry
from npu_llm.precision import PRECISIONS, Precision, parse_precision
from npu_llm.progress import ProgressListener
from npu_ops.kernel_programs.sparse_attention import SparseAttention

if TYPE_CHECKING:
    import torch

__all__ = ["LoadOptions", "dtype_in"]


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options for loading a model.

    Attributes:
        dtype: precision of weights and arithmetic.
        max_context: maximum number of tokens of prompt and answer; None for the model's limit.
        pipeline: "kernels", "dynamic" or "static"; None or "auto" to choose by device and model.
        kv_cache: storage type of keys and values; None or "auto" for the dtype of the arithmetic.
        sparse_attention: selection of keys for tokens of a long sequence, or the number of
            positions; None for all.
        verify: when to compare programs with torch, see npu_llm.verification.verifier.
        device: None or "npu".
        cache_dir: the compile cache; None for the cache of the settings.
        gguf_file: file name of the GGUF file in a folder.
        trust_remote_code: whether to run model code from the checkpoint.
        ignore_unexpected: whether to ignore tensors that the model does not use.
        revision: revision of the model on the hub.
        token: access token for the hub.
        on_progress: called with a stage and its share done, 0.0 to 1.0.
        adapted_modules: paths of the layers that adapters may change, in OpenVINO's programs.
        is_for_npus: whether static programs are written for NPUs, on any device; see for_device.

    Raises:
        OptionError: [unknown-dtype], [unknown-kv-cache], [unknown-verify], [unknown-pipeline] or
            [other-device].
        npu_ops.errors.OperatorInputError: [sparse-attention] for an invalid number.
    """

    dtype: str | torch.dtype | None = None
    max_context: int | None = None
    pipeline: str | None = None
    kv_cache: str | None = None
    sparse_attention: int | SparseAttention | None = None
    verify: str = "first"
    device: str | torch.device | None = None
    cache_dir: str | Path | None = None
    gguf_file: str | None = None
    trust_remote_code: bool = False
    ignore_unexpected: bool = False
    revision: str | None = None
    token: str | bool | None = field(default=None, repr=False)
    on_progress: ProgressListener | None = None
    adapted_modules: tuple[str, ...] = ()
    is_for_npus: bool = False

    def __post_init__(self) -> None:
        parse_precision(self.dtype)
        parse_kv_cache(self.kv_cache)
        _ = self.chosen_keys  # raises for an invalid number
        parse_verify(self.verify)
        parse_pipeline(self.pipeline)
        if self.device is not None and not _is_npu(self.device):
            raise OptionError(
                f"`device` must be npu, got {self.device!r}. Omit it, and select the device "
                "behind npu with the variable NPU_DEVICE.",
                code="other-device",
            )

    @property
    def precision(self) -> Precision:
        """The precision of OpenVINO's programs, which cannot compute from file blocks.

        It is the default if none, or the files' own, was requested.
        """
        asked = parse_precision(self.dtype)
        if asked is not None and asked.weights != "file":
            return asked
        return PRECISIONS[TARGET_PRECISION if self.is_for_npus else DEFAULT_PRECISION]

    @property
    def needs_facts(self) -> bool:
        """Whether the precision depends on the model's files."""
        asked = parse_precision(self.dtype)
        return asked is None or asked.weights == "file"

    def precision_for(self, facts: ModelFacts | None, pipeline: PipelineName) -> Precision:
        """Returns the precision of weights and arithmetic of a language model.

        Args:
            facts: the model's facts; None only if not needs_facts.
            pipeline: the model's pipeline.
        """
        if facts is None or not self.needs_facts:
            return self.precision
        if self.dtype in (None, "auto"):
            name = facts.default_precision(pipeline, is_for_npus=self.is_for_npus)
            return PRECISIONS[name]
        is_held = pipeline == "kernels" or facts.own_precision != "file"
        return PRECISIONS[facts.own_precision] if is_held else self.precision

    def for_device(self) -> LoadOptions:
        """Returns the options for a language model on the device behind npu.

        On an NPU, programs are static, and int8 by default.
        """
        is_npu = npu_runtime.device_info().device.startswith("NPU")
        return (
            replace(self, is_for_npus=True) if is_npu and self.pipeline_here == "static" else self
        )

    @property
    def pipeline_here(self) -> PipelineName:
        """The pipeline for the device behind npu.

        Raises:
            OptionError: [npu-dynamic] if the device cannot run the requested one.
        """
        return choose_pipeline(self.pipeline, npu_runtime.device_info().device)

    @property
    def asks_for_kernels(self) -> bool:
        """Whether "kernels" was requested, without a fallback to another pipeline."""
        return parse_pipeline(self.pipeline) == "kernels"

    @property
    def kept_as(self) -> KvCache | None:
        """The storage type of keys and values; None for the dtype of the arithmetic."""
        return parse_kv_cache(self.kv_cache)

    @property
    def chosen_keys(self) -> SparseAttention | None:
        """The selection of keys for tokens of a long sequence; None for all."""
        asked = self.sparse_attention
        if asked is None or isinstance(asked, SparseAttention):
            return asked
        return SparseAttention(top_k=asked)

    @property
    def verified(self) -> Verify:
        """The validated `verify` option."""
        return parse_verify(self.verify)

    @property
    def cache_folder(self) -> Path | None:
        """The compile cache; None for the cache of the settings."""
        return None if self.cache_dir is None else Path(self.cache_dir)

    @property
    def hub(self) -> dict[str, Any]:
        """The arguments of a download from the hub."""
        asked = {"revision": self.revision, "token": self.token}
        return {name: value for name, value in asked.items() if value is not None}

    def applied_to(self, entry: Entry) -> Entry:
        """Returns an entry with the user's context, cache, attention and trust options."""
        return replace(
            entry,
            max_context=self.max_context,
            kv_cache=self.kept_as,
            sparse_attention=self.chosen_keys,
            trusts_code=self.trust_remote_code,
        )

    def check_exported(self, precision: Precision, pipeline: PipelineName | None) -> None:
        """Checks that an exported folder matches the requested options.

        Args:
            precision: the folder's.
            pipeline: the folder's; None for a one-step model, which needs none.

        Raises:
            OptionError: [exported-dtype] or [exported-pipeline] for a mismatch, [npu-dynamic] if
                the device cannot run the folder's pipeline.
        """
        asked = parse_precision(self.dtype)
        if asked is not None and asked != precision:
            raise OptionError(
                f"`dtype` must be that of the exported folder, {precision.name}, got "
                f"{asked.name}. Omit it, or export the model in that precision.",
                code="exported-dtype",
            )
        if pipeline is None:
            return
        if parse_pipeline(self.pipeline) not in (None, pipeline):
            raise OptionError(
                f"`pipeline` must be that of the exported folder, {pipeline}, got {self.pipeline}. "
                "Omit it, or export the model for that pipeline.",
                code="exported-pipeline",
            )
        choose_pipeline(pipeline, npu_runtime.device_info().device)

    def check_kernels(self, why_not: str | None) -> None:
        """Checks that a model is a kernel program if the user requested one.

        Args:
            why_not: reason that it is not one; None if it is, or was not requested.

        Raises:
            OptionError: [no-kernels] if it is not one.
        """
        if why_not is not None and self.asks_for_kernels:
            raise OptionError(
                '`pipeline` must be "dynamic" or "static" for a model that is not a kernel '
                f'program, got "kernels". The reason is: {why_not.rstrip(".")}. Omit it for an '
                "automatic choice.",
                code="no-kernels",
            )

    def check_context(self, name: str, bound: int | None) -> None:
        """Checks max_context against a model's limit.

        Args:
            name: the model's name, for the message.
            bound: the model's context in tokens; None if it sets no limit.

        Raises:
            OptionError: [max-context] for a value below 1, or above the model's limit.
        """
        asked = self.max_context
        if asked is None or (asked >= 1 and (bound is None or asked <= bound)):
            return
        upper = "" if bound is None else f" and at most {bound:,}, the limit of {name}"
        raise OptionError(
            f"`max_context` must be at least 1{upper}, got {asked:,}. Omit it for the model's "
            "limit.",
            code="max-context",
        )

    def check_pipeline(self, pipeline: PipelineName) -> None:
        """Checks that a pipeline supports the requested storage and selection of keys and values.

        Raises:
            OptionError: [static-kv-cache] in the static pipeline, [sparse-attention] in a pipeline
                without key blocks.
        """
        if self.chosen_keys is not None and pipeline != "kernels":
            raise OptionError(
                "`sparse_attention` must be omitted in a pipeline without blocks of keys to choose "
                f'from, got {self.chosen_keys} in the pipeline "{pipeline}". Omit it for dense '
                'attention, or pass pipeline="kernels" for a model that can run on the '
                "host's cores.",
                code="sparse-attention",
            )
        if self.kept_as is not None and pipeline == "static":
            raise OptionError(
                "`kv_cache` must be omitted in the static pipeline, which stores keys and values "
                f"in their computed dtype, got {self.kv_cache}. Omit it, or pass "
                'pipeline="dynamic" if the device is not an NPU.',
                code="static-kv-cache",
            )


def _is_npu(device: str | torch.device) -> bool:
    import torch  # imported late: users seldom pass a device

    try:
        return torch.device(device).type == "npu"
    except (RuntimeError, TypeError):  # there is no such device
        return False


def dtype_in(config: Any, dtype: str | torch.dtype | None) -> str | torch.dtype | None:
    """Returns the dtype from a CompilerConfig or an argument.

    Args:
        config: a CompilerConfig, which programs for intel-npu-acceleration-library pass as the
            second argument; None without. Its `use_to` has no effect, because the whole model
            becomes a program.
        dtype: the argument of that name.

    Raises:
        OptionError: [pretrained-config] for another object, a config with options that only
            `compile` supports, or a dtype that differs from the argument's.
    """
    if config is None:
        return dtype
    if type(config).__name__ != "CompilerConfig":
        raise _unfit_config("a CompilerConfig", f"a {type(config).__name__}")
    default = type(config)()
    names = {one.name for one in fields(config)} - {"dtype", "use_to"}
    others = sorted(name for name in names if getattr(config, name) != getattr(default, name))
    if others:
        raise _unfit_config("a CompilerConfig that sets only dtype", ", ".join(others))
    if config.dtype is None:
        return dtype
    name = str(config.dtype).removeprefix("torch.")
    if dtype is not None and str(dtype).removeprefix("torch.") != name:
        raise _unfit_config(f"one of dtype {dtype}, the argument", name)
    return name


def _unfit_config(rule: str, received: str) -> OptionError:
    return OptionError(
        f"from_pretrained: `config` must be {rule}, got {received}. Pass dtype=... instead.",
        code="pretrained-config",
    )

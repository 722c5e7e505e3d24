"""LoadOptions: how a model is to be started, checked when they are made."""

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
    """What a user asks for when starting a model.

    Attributes:
        dtype: the precision of weights and arithmetic.
        max_context: how many tokens prompt and answer may have together; None for as many as the
            model was made for.
        pipeline: "kernels", "dynamic" or "static"; None or "auto" to choose by device and model.
        kv_cache: what keys and values are stored as; None or "auto" for the dtype of the
            arithmetic.
        sparse_attention: which keys a token of a long sequence attends to, or how many positions
            that are; None for all.
        verify: when programs are compared with torch, see npu_llm.verification.verifier.
        device: None or "npu".
        cache_dir: the compile cache; None for that of the settings.
        gguf_file: which GGUF file in a folder.
        trust_remote_code: whether model code inside the checkpoint may run.
        ignore_unexpected: whether to drop tensors that the model has no place for.
        revision: which revision, for a name on the hub.
        token: access token, for a name on the hub.
        on_progress: called with a stage and how much of it is done, 0.0 to 1.0.
        adapted_modules: paths of the layers that adapters may change, in OpenVINO's programs.
        is_for_npus: whether static programs are written for NPUs, on any device; see for_device.

    Raises:
        OptionError: [unknown-dtype], [unknown-kv-cache], [unknown-verify], [unknown-pipeline] or
            [other-device].
        npu_ops.errors.OperatorInputError: [sparse-attention] for a number that it cannot be.
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
        _ = self.chosen_keys  # raises for a number that it cannot be
        parse_verify(self.verify)
        parse_pipeline(self.pipeline)
        if self.device is not None and not _is_npu(self.device):
            raise OptionError(
                f"`device` must be npu, got {self.device!r}. Omit it, and choose what "
                "serves as npu with the variable NPU_DEVICE.",
                code="other-device",
            )

    @property
    def precision(self) -> Precision:
        """The precision of OpenVINO's programs, which compute from no blocks of files.

        If none was asked for, or the files' own, it is the default.
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
        """Returns the precision of weights and arithmetic of a model that continues text.

        Args:
            facts: the model's; None only if not needs_facts.
            pipeline: that runs it.
        """
        if facts is None or not self.needs_facts:
            return self.precision
        if self.dtype in (None, "auto"):
            name = facts.default_precision(pipeline, is_for_npus=self.is_for_npus)
            return PRECISIONS[name]
        is_held = pipeline == "kernels" or facts.own_precision != "file"
        return PRECISIONS[facts.own_precision] if is_held else self.precision

    def for_device(self) -> LoadOptions:
        """Returns the options for a model that continues text, on the device that serves as npu.

        On an NPU its programs of fixed sizes are written for NPUs, in int8 by default.
        """
        is_npu = npu_runtime.device_info().device.startswith("NPU")
        return (
            replace(self, is_for_npus=True) if is_npu and self.pipeline_here == "static" else self
        )

    @property
    def pipeline_here(self) -> PipelineName:
        """The pipeline to use on the device that serves as npu.

        Raises:
            OptionError: [npu-dynamic] if the device cannot run the one that was asked for.
        """
        return choose_pipeline(self.pipeline, npu_runtime.device_info().device)

    @property
    def asks_for_kernels(self) -> bool:
        """Whether the pipeline must be "kernels", not another if the model does not allow it."""
        return parse_pipeline(self.pipeline) == "kernels"

    @property
    def kept_as(self) -> KvCache | None:
        """What keys and values are stored as; None for the dtype of the arithmetic."""
        return parse_kv_cache(self.kv_cache)

    @property
    def chosen_keys(self) -> SparseAttention | None:
        """Which keys a token of a long sequence attends to; None for all."""
        asked = self.sparse_attention
        if asked is None or isinstance(asked, SparseAttention):
            return asked
        return SparseAttention(top_k=asked)

    @property
    def verified(self) -> Verify:
        """When programs are compared with torch."""
        return parse_verify(self.verify)

    @property
    def cache_folder(self) -> Path | None:
        """The compile cache; None for that of the settings."""
        return None if self.cache_dir is None else Path(self.cache_dir)

    @property
    def hub(self) -> dict[str, Any]:
        """The arguments of a download from the hub."""
        asked = {"revision": self.revision, "token": self.token}
        return {name: value for name, value in asked.items() if value is not None}

    def applied_to(self, entry: Entry) -> Entry:
        """Returns an entry with the context, cache, attention and trust that a user chose."""
        return replace(
            entry,
            max_context=self.max_context,
            kv_cache=self.kept_as,
            sparse_attention=self.chosen_keys,
            trusts_code=self.trust_remote_code,
        )

    def check_exported(self, precision: Precision, pipeline: PipelineName | None) -> None:
        """Checks that an exported folder is what was asked for.

        Args:
            precision: the folder's.
            pipeline: the folder's; None for a model of one step, which needs none.

        Raises:
            OptionError: [exported-dtype] or [exported-pipeline] if another was asked for,
                [npu-dynamic] if the device cannot run the folder's pipeline.
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
        """Checks that a model is a kernel program if the user asked for that.

        Args:
            why_not: why it is none; None if it is, or if none was wanted.

        Raises:
            OptionError: [no-kernels] if it is none.
        """
        if why_not is not None and self.asks_for_kernels:
            raise OptionError(
                '`pipeline` must be "dynamic" or "static" for a model that is no kernel program; '
                f'got "kernels". The reason is: {why_not.rstrip(".")}. Omit it to have it chosen.',
                code="no-kernels",
            )

    def check_context(self, name: str, bound: int | None) -> None:
        """Checks max_context against what a model was made for.

        Args:
            name: the model's, for the message.
            bound: how many tokens it was made for; None if it sets no limit.

        Raises:
            OptionError: [max-context] for less than 1, or more than the model was made for.
        """
        asked = self.max_context
        if asked is None or (asked >= 1 and (bound is None or asked <= bound)):
            return
        upper = "" if bound is None else f" and at most {bound:,}, what {name} was made for"
        raise OptionError(
            f"`max_context` must be at least 1{upper}, got {asked:,}. Omit it for as many as "
            "the model can take.",
            code="max-context",
        )

    def check_pipeline(self, pipeline: PipelineName) -> None:
        """Checks that a pipeline can store keys and values as asked, and attend to some of them.

        Raises:
            OptionError: [static-kv-cache] for the static one, [sparse-attention] for one without
                blocks of keys.
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
                "`kv_cache` must be omitted in the static pipeline, which keeps keys and values as "
                f"they are computed, got {self.kv_cache}. Omit it, or pass "
                'pipeline="dynamic" where the device is no NPU.',
                code="static-kv-cache",
            )


def _is_npu(device: str | torch.device) -> bool:
    import torch  # late: few users name a device

    try:
        return torch.device(device).type == "npu"
    except (RuntimeError, TypeError):  # there is no such device
        return False


def dtype_in(config: Any, dtype: str | torch.dtype | None) -> str | torch.dtype | None:
    """Returns the dtype that a CompilerConfig or an argument names.

    Args:
        config: a CompilerConfig, which programs for intel-npu-acceleration-library pass second;
            None for none. Its `use_to` changes nothing: the whole model becomes a program.
        dtype: the argument of that name.

    Raises:
        OptionError: [pretrained-config] for another object, one that sets what only `compile`
            takes, or one whose dtype is not the argument's.
    """
    if config is None:
        return dtype
    if type(config).__name__ != "CompilerConfig":
        raise _unfit_config("a CompilerConfig", f"a {type(config).__name__}")
    default = type(config)()
    names = {one.name for one in fields(config)} - {"dtype", "use_to"}
    others = sorted(name for name in names if getattr(config, name) != getattr(default, name))
    if others:
        raise _unfit_config("a CompilerConfig that sets dtype alone", ", ".join(others))
    if config.dtype is None:
        return dtype
    name = str(config.dtype).removeprefix("torch.")
    if dtype is not None and str(dtype).removeprefix("torch.") != name:
        raise _unfit_config(f"one of dtype {dtype}, the argument", name)
    return name


def _unfit_config(rule: str, received: str) -> OptionError:
    return OptionError(
        f"from_pretrained: `config` must be {rule}, got {received}. Pass dtype=... in its place.",
        code="pretrained-config",
    )

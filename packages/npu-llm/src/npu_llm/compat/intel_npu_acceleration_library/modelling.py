"""Models by name: language models as npu_llm programs, others with replaced layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModel

import npu_llm
from npu_llm.compat.alias import absent_name
from npu_llm.compat.intel_npu_acceleration_library.compiler import CompilerConfig, checked_config
from npu_llm.compat.intel_npu_acceleration_library.compiler import compile as compile_model
from npu_llm.compat.intel_npu_acceleration_library.dtypes import int4
from npu_llm.compat.intel_npu_acceleration_library.nn.layers import checked_dtype
from npu_llm.errors import OptionError

__all__ = ["NPUAutoModel", "NPUModel", "NPUModelForCausalLM", "NPUModelForSeq2SeqLM"]

# Options of transformers that npu_llm sets itself.
_DECIDED = (
    "attn_implementation", "dtype", "export", "low_cpu_mem_usage", "torch_dtype", "use_cache",
)  # fmt: skip
_PASSED = ("revision", "token", "trust_remote_code")


class NPUModel:
    """A model of any transformers class, loaded and compiled."""

    @staticmethod
    def from_pretrained(
        model_name_or_path: str,
        config: CompilerConfig | None = None,
        transformers_class: Any = None,
        export: bool = True,
        *args: Any,
        **options: Any,
    ) -> torch.nn.Module:
        """Loads a model, and compiles it as `compile` does.

        Args:
            model_name_or_path: a folder, or a name on the hub.
            config: compilation options.
            transformers_class: class that loads the model.
            export: ignored; compiled programs are cached, models are not.
            args: further arguments of the class's from_pretrained.
            options: further keyword arguments; `dtype` is a field of CompilerConfig.

        Raises:
            OptionError: [transformers-class] without a class.
        """
        if not hasattr(transformers_class, "from_pretrained"):
            raise OptionError(
                "NPUModel: `transformers_class` must be a class with from_pretrained, got "
                f"{transformers_class!r}. Pass one such as transformers.AutoModel.",
                code="transformers-class",
            )
        config = _config(config, options)
        loaded = transformers_class.from_pretrained(model_name_or_path, *args, **options)
        return compile_model(loaded, config)


class NPUAutoModel:
    """transformers' AutoModel, compiled."""

    @staticmethod
    def from_pretrained(
        model_name_or_path: str, config: CompilerConfig | None = None, **options: Any
    ) -> torch.nn.Module:
        """Loads a model; see NPUModel.from_pretrained."""
        return NPUModel.from_pretrained(model_name_or_path, config, AutoModel, **options)


class NPUModelForCausalLM(npu_llm.NPUModelForCausalLM):
    """A language model as one program."""

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, model_name_or_path: str, config: CompilerConfig | None = None, **options: Any
    ) -> NPUModelForCausalLM:
        """Loads a model as npu_llm.NPUModelForCausalLM does.

        Args:
            model_name_or_path: see npu_llm.NPUModelForCausalLM.
            config: its dtype is the precision.
            options: revision, token and trust_remote_code, see npu_llm.NPUModelForCausalLM; dtype
                as in config; options that npu_llm sets itself, such as use_cache and torch_dtype,
                are ignored.

        Raises:
            OptionError: [compat-argument] for an unknown argument, or training.
        """
        return super().from_pretrained(model_name_or_path, **_arguments(cls, config, options))

    def generate(self, inputs: Any = None, *args: Any, **options: Any) -> Any:
        """Generates; inputs may be a newer tokenizer's chat encoding: tokens with a mask."""
        if isinstance(inputs, Mapping):
            return super().generate(None, *args, **{**inputs, **options})
        return super().generate(inputs, *args, **options)

    def eval(self) -> NPUModelForCausalLM:
        """Returns the model, which supports only inference."""
        return self

    def to(self, *_: Any, **__: Any) -> NPUModelForCausalLM:
        """Returns the model, which cannot be moved."""
        return self


class NPUModelForSeq2SeqLM(npu_llm.NPUModelForSeq2SeqLM):
    """An encoder-decoder model, each part a program."""

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, model_name_or_path: str, config: CompilerConfig | None = None, **options: Any
    ) -> NPUModelForSeq2SeqLM:
        """Loads a model as npu_llm.NPUModelForSeq2SeqLM does; see NPUModelForCausalLM."""
        return super().from_pretrained(model_name_or_path, **_arguments(cls, config, options))


def _arguments(
    kind: type, config: CompilerConfig | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Returns the arguments for npu_llm's class."""
    config = _config(config, options)
    others = sorted(set(options) - set(_DECIDED) - set(_PASSED))
    if others or config.training:
        raise OptionError(
            f"`{kind.__name__}` must be given {', '.join(_PASSED)} besides the config, without "
            f"training, got {', '.join(others) or 'training=True'}. Load the model with "
            "transformers, and compile it.",
            code="compat-argument",
        )
    passed = {name: options[name] for name in _PASSED if name in options}
    return passed | {"dtype": _precision(config.dtype)}


def _config(config: CompilerConfig | None, options: dict[str, Any]) -> CompilerConfig:
    """Returns the configuration, or one from keyword arguments, as in early releases there."""
    if config is not None:
        return checked_config(config, {})
    names = [name for name in ("dtype", "training", "use_to") if name in options]
    return checked_config(None, {name: options.pop(name) for name in names})


def _precision(dtype: Any) -> str:
    kind = checked_dtype(dtype)
    if kind == int4:
        return "int4"
    return str(getattr(kind, "torch_dtype", kind)).removeprefix("torch.")


def __getattr__(name: str) -> Any:
    raise absent_name(__name__, name)

"""Loads a model without transformers, which is imported when its interface is first used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_llm.generation.language_model import LanguageModel, make_ready
from npu_llm.models.load_options import LoadOptions
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from npu_llm.generation.model import NPUModelForCausalLM

__all__ = ["LazyModel", "load"]


@public_call
def load(name_or_path: str | Path, **arguments: Any) -> LazyModel:
    """Loads a model as NPUModelForCausalLM.from_pretrained does, but faster in a new process.

    From the compile cache or an exported folder a model starts without transformers, which is
    imported when its interface is first used, such as `generate` or `config`. An exported folder
    starts, on the device and driver that it was exported with, without compiling anything.

    Args:
        name_or_path: an exported folder, or what from_pretrained takes.
        arguments: those of from_pretrained.

    Raises:
        NpuError: as from_pretrained does.
    """
    return LazyModel(make_ready(name_or_path, LoadOptions(**arguments)))


class LazyModel(LanguageModel):
    """A LanguageModel with all of NPUModelForCausalLM's methods and attributes."""

    @property
    def full(self) -> NPUModelForCausalLM:
        """The same model as an NPUModelForCausalLM, with the same state."""
        from npu_llm.generation.model import NPUModelForCausalLM  # takes more than a second

        return NPUModelForCausalLM.sharing(self)

    def __getattr__(self, name: str) -> Any:
        # Only called for attributes that LanguageModel does not have.
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.full, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See NPUModelForCausalLM.forward."""
        return self.full(*args, **kwargs)

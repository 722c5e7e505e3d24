"""LazyModel: a loaded model with transformers' interface, imported at the first use of that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from npu_llm.cache_names import NAMES
from npu_llm.generation.engine_answers import answer_by_engine
from npu_llm.generation.language_model import LanguageModel, make_ready
from npu_llm.kv_cache.cache import check_prompt
from npu_llm.models.load_options import LoadOptions
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from npu_llm import NPUModelForCausalLM

__all__ = ["LazyModel", "load"]


@public_call
def load(name_or_path: str | Path, **arguments: Any) -> LazyModel:
    """Loads a model as NPUModelForCausalLM.from_pretrained does, but faster in a new process.

    From the compile cache or an exported folder a model starts without transformers, which is
    imported when its interface is first used, such as `config`; greedy `generate` needs none. An
    exported folder starts, on the device and driver that it was exported with, without compiling
    anything.

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
        import npu_llm  # whose lazy name imports transformers, which takes more than a second

        return npu_llm.NPUModelForCausalLM.sharing(self)

    def __getattr__(self, name: str) -> Any:
        # Only called for attributes that LanguageModel does not have.
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.full, name)

    @public_call
    def generate(
        self, inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """See NPUModelForCausalLM.generate; greedy answers need no transformers."""
        prompt = kwargs.get("input_ids") if inputs is None else inputs
        is_plain = generation_config is None and not args and not NAMES & kwargs.keys()
        if is_plain and isinstance(prompt, torch.Tensor):
            check_prompt(prompt, kwargs.get("attention_mask"), past=0)
            answer = answer_by_engine(self, prompt, kwargs)
            if answer is not None:
                return answer
        return self.full.generate(inputs, generation_config, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See NPUModelForCausalLM.forward."""
        return self.full(*args, **kwargs)

"""LazyModel: a loaded model with transformers' interface, which is imported on first use."""

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
    """Loads a model like NPUModelForCausalLM.from_pretrained, but faster in a new process.

    A model from the compile cache or an exported folder loads without transformers. The first use
    of its interface, such as `config`, imports it; greedy `generate` does not need it. On the
    device and driver of its export, an exported folder loads without compiling.

    Args:
        name_or_path: an exported folder, or a value that from_pretrained accepts.
        arguments: other arguments of from_pretrained.

    Raises:
        NpuError: the errors of from_pretrained.
    """
    return LazyModel(make_ready(name_or_path, LoadOptions(**arguments)))


class LazyModel(LanguageModel):
    """A LanguageModel with all of NPUModelForCausalLM's methods and attributes."""

    @property
    def full(self) -> NPUModelForCausalLM:
        """The same model as an NPUModelForCausalLM that shares its state."""
        import npu_llm  # a lazy import of transformers, which takes more than a second

        return npu_llm.NPUModelForCausalLM.sharing(self)

    def __getattr__(self, name: str) -> Any:
        # Python calls it only for attributes that LanguageModel does not have.
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.full, name)

    @public_call
    def generate(
        self, inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """See NPUModelForCausalLM.generate; greedy generation does not need transformers."""
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

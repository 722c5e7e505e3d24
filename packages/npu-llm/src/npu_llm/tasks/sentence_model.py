"""SentenceTransformer with its encoder compiled for the npu device.

sentence-transformers has a fixed list of backends, so this is a class of the same name and
arguments; users change the import. It needs the extra `embeddings` of this package.
"""

from __future__ import annotations

from typing import Any

import sentence_transformers
from sentence_transformers.base.modules import Transformer

from npu_llm.errors import OptionError
from npu_llm.tasks.models import NPUModelForFeatureExtraction

__all__ = ["SentenceTransformer"]


class _NpuTransformer(Transformer):  # type: ignore[misc]
    """The module that contains the encoder."""

    def _load_model(
        self,
        model_name_or_path: str,
        transformer_task: str,
        config: Any,
        backend: str,
        is_peft_model: bool,
        **model_kwargs: Any,
    ) -> Any:
        if transformer_task != "feature-extraction" or is_peft_model:
            raise OptionError(
                f"`{model_name_or_path}` must be an encoder without adapters for the npu backend, "
                f"got {'an adapter' if is_peft_model else transformer_task}. Merge the adapter, "
                "or use another backend.",
                code="model-task",
            )
        known = (
            "dtype", "verify", "cache_dir", "revision", "token", "trust_remote_code",
            "ignore_unexpected",
        )  # fmt: skip
        given = {name: value for name, value in model_kwargs.items() if name in known}
        return NPUModelForFeatureExtraction.from_pretrained(model_name_or_path, **given)


class SentenceTransformer(sentence_transformers.SentenceTransformer):  # type: ignore[misc]
    """sentence_transformers.SentenceTransformer with backend="npu" by default.

    All its methods are those of sentence-transformers: encode, similarity, prompts, pooling. The
    arguments in model_kwargs are those of NPUModelForFeatureExtraction.from_pretrained, such as
    dtype.
    """

    def __init__(
        self, model_name_or_path: str | None = None, *, backend: str = "npu", **arguments: Any
    ) -> None:
        """Loads a model.

        Args:
            model_name_or_path: see sentence_transformers.SentenceTransformer.
            backend: "npu", or a backend of sentence-transformers.
            arguments: other arguments of sentence_transformers.SentenceTransformer.

        Raises:
            OptionError: [model-task] for a model that is not a one-step encoder, or for an adapter.
            NpuError: the errors of NPUModelForFeatureExtraction.from_pretrained.
        """
        if backend == "npu":
            arguments.setdefault("device", "cpu")  # device of tokens and embeddings
        chosen: Any = backend  # theirs lists only their backends
        super().__init__(model_name_or_path, backend=chosen, **arguments)

    def _load_module_class_from_ref(self, *args: Any, **kwargs: Any) -> Any:
        kind = super()._load_module_class_from_ref(*args, **kwargs)
        backend: Any = self.backend
        return _NpuTransformer if kind is Transformer and backend == "npu" else kind

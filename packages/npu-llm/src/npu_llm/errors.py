"""The errors of this package, all under npu_runtime's NpuError.

docs/reference/errors.md explains the codes.
"""

from __future__ import annotations

from npu_command.errors import NpuError

__all__ = [
    "CacheError",
    "CaptureError",
    "CompatError",
    "ContextError",
    "LlmError",
    "MemoryNeedError",
    "ModelError",
    "OptionError",
    "ServerError",
    "SessionError",
    "check_token_range",
    "missing_tokenizer",
]


class LlmError(NpuError):
    """Something that npu-llm cannot do, with a stable code."""


class ModelError(LlmError):
    """A model's files are missing, damaged, or of a kind that cannot be loaded."""


class OptionError(LlmError, ValueError):
    """An option has a value that is not accepted."""


class ContextError(LlmError, ValueError):
    """A prompt, or a prompt with its answer, does not fit into the model's context."""


class CaptureError(LlmError):
    """A model's step cannot be captured as one graph with its cache as inputs."""


class CompatError(LlmError, ImportError):
    """A program needs a part of another library that is not served here."""


class CacheError(LlmError):
    """The cache directory cannot be used."""


class MemoryNeedError(LlmError):
    """A model does not fit into the memory that is available."""


class SessionError(LlmError):
    """A session cannot be saved or restored, or is in use."""


class ServerError(LlmError):
    """A server cannot take a request, or cannot be reached."""


def missing_tokenizer(subject: object) -> ModelError:
    """Returns the error for text that meets a model without a tokenizer.

    Args:
        subject: the model, by name or path.
    """
    return ModelError(
        f"{subject}: must have its tokenizer beside the weights, to read and write text; got none. "
        "Put tokenizer.json and tokenizer_config.json there.",
        code="missing-tokenizer",
    )


def check_token_range(name: str, low: int, high: int, vocabulary: int) -> None:
    """Raises OptionError [token-range] for tokens that a model does not have.

    Args:
        name: the argument that holds the tokens.
        low: the smallest token.
        high: the largest token.
        vocabulary: token ids are below this.
    """
    if low < 0 or high >= vocabulary:
        raise OptionError(
            f"{name}: must lie between 0 and {vocabulary - 1}; got {low if low < 0 else high}. "
            "Encode the text with the model's own tokenizer.",
            code="token-range",
        )

"""The errors of this package, all under npu_runtime's NpuError, and checks of tokens and text.

docs/reference/errors explains the codes. Python represents bytes of the command line that are not
UTF-8 as lone surrogates, on which tokenizers fail; check_text rejects them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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
    "check_text",
    "check_token_range",
    "invalid_file",
    "missing_tokenizer",
    "read_text",
    "stopping",
    "too_busy",
    "truncated_file",
]


class LlmError(NpuError):
    """An error of npu-llm, with a stable code."""


class ModelError(LlmError):
    """A model's files are missing, damaged, or of an unsupported kind."""


class OptionError(LlmError, ValueError):
    """An option has an invalid value."""


class ContextError(LlmError, ValueError):
    """A prompt, or a prompt with its answer, does not fit into the model's context."""


class CaptureError(LlmError):
    """A model's step cannot be captured as one graph with its cache as inputs."""


class CompatError(LlmError, ImportError):
    """A program needs a part of another library that is not supported here."""


class CacheError(LlmError):
    """The cache directory cannot be used."""


class MemoryNeedError(LlmError):
    """A model does not fit into the available memory."""


class SessionError(LlmError):
    """A session cannot be saved or restored, or is in use."""


class ServerError(LlmError):
    """A server cannot take a request, or cannot be reached."""


def stopping() -> ServerError:
    """Returns the error for a request to a component that is shutting down."""
    return ServerError(
        "`server` must be running to take a request, got one during shutdown. Retry after it has "
        "restarted.",
        code="server-stopping",
    )


def too_busy(limit: int) -> ServerError:
    """Returns the error for a request to a model whose queue is full."""
    return ServerError(
        f"server: takes at most {limit} requests for this model at a time, got one more. Retry "
        "later.",
        code="server-busy",
    )


def missing_tokenizer(subject: object) -> ModelError:
    """Returns the error for text input to a model without a tokenizer.

    Args:
        subject: name or path of the model.
    """
    return ModelError(
        f"`{subject}` must have a tokenizer next to its weights, to read and write text, got "
        "none. Put tokenizer.json and tokenizer_config.json there.",
        code="missing-tokenizer",
    )


def truncated_file(path: Path, size: int, needed: int, *, code: str) -> ModelError:
    """Returns the error for a file that is shorter than its header declares."""
    return ModelError(
        f"`{path}` must be a whole file; its header asks for {needed:,} bytes, it has {size:,}. "
        "Download it again.",
        code=code,
    )


def invalid_file(path: Path, form: str, reason: str, *, code: str) -> ModelError:
    """Returns the error for a file of an invalid format."""
    return ModelError(
        f"`{path}` must be a valid {form} file; {reason}. Download it again.", code=code
    )


def check_token_range(name: str, low: int, high: int, vocabulary: int) -> None:
    """Raises OptionError [token-range] for token ids outside the vocabulary.

    Args:
        name: name of the argument that holds the tokens.
        low: the smallest token.
        high: the largest token.
        vocabulary: token ids are below this.
    """
    if low < 0 or high >= vocabulary:
        raise OptionError(
            f"`{name}` must be between 0 and {vocabulary - 1}, got {low if low < 0 else high}. "
            "Encode the text with the model's tokenizer.",
            code="token-range",
        )


def check_text(subject: str, text: str) -> str:
    """Returns the text if it can be encoded as UTF-8.

    Raises:
        OptionError: [text-encoding] if it cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError as failure:
        raise _not_unicode(subject, f"{text[failure.start]!r} at {failure.start:,}") from failure
    return text


def read_text(subject: str, read: Callable[[], str]) -> str:
    """Returns the text that a function reads from a stream.

    Raises:
        OptionError: [text-encoding] when that is not UTF-8.
    """
    try:
        return check_text(subject, read())
    except UnicodeDecodeError as failure:
        raise _not_unicode(subject, str(failure)) from failure


def _not_unicode(subject: str, received: str) -> OptionError:
    return OptionError(
        f"`{subject}` must be text in UTF-8, got {received}. Convert it, for example with iconv.",
        code="text-encoding",
    )

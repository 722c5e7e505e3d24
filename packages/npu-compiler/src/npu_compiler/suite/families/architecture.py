"""Architectures of the suite: rows, construction of models, and shared inputs.

The rows are in one file per family in this folder, and all of them in table.py. transformers is
imported only when a model is built: the table does not need it.
"""

from __future__ import annotations

import contextvars
import importlib
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from npu_compiler.errors import SuiteError

__all__ = [
    "ANSWER_TOKENS",
    "ENCODER_DECODER",
    "IMAGE",
    "USUAL",
    "VOCABULARY",
    "Architecture",
    "Sizes",
    "answer",
    "coinciding",
    "drawn",
    "from_config",
    "image",
    "make",
    "padded",
    "rows",
    "text",
    "translation",
    "waveform",
]

VOCABULARY = 128
IMAGE = 64
_NOISE = 0.1
_GAIN = 1.4
_CONSTANT = 1e-6
_CHANNELS = 64

# Settings of all models with an encoder and a decoder.
ENCODER_DECODER: dict[str, Any] = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
}  # fmt: skip
ANSWER_TOKENS: dict[str, Any] = {
    "vocab_size": VOCABULARY, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip

# Their names in configurations.
_HEADS = frozenset(
    {
        *("attention_heads", "decoder_attention_heads", "decoder_num_attention_heads", "n_head"),
        *("encoder_attention_heads", "encoder_num_attention_heads", "n_heads", "num_heads"),
        *("num_attention_heads", "num_decoder_attention_heads", "num_encoder_attention_heads"),
        "num_key_value_heads",
    }
)
_CHANNELS_OF_A_HEAD = frozenset({"d_head", "d_kv", "head_dim", "v_head_dim"})

Inputs = Callable[[], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model's inputs."""

    batch: int = 2  # rows
    heads: int = 4  # of an attention with 64 channels, if a configuration gives it 4
    length: int = 16  # tokens of a text
    answer: int = 7  # tokens of an answer
    image: int = IMAGE  # height and width of an image in pixels; patches are 16
    samples: int = 4000  # of a waveform: 105, and 40 for each frame after the first


USUAL = Sizes()
_sizes: contextvars.ContextVar[Sizes] = contextvars.ContextVar("sizes", default=USUAL)


def drawn() -> Sizes:
    """The sizes of the model being built."""
    return _sizes.get()


def coinciding(seed: int) -> Sizes:
    """Draws sizes that coincide with sizes of the models (attention with 64 channels).

    Of three consecutive draws, one has equal numbers of tokens, heads and rows; in one, head
    channels are equal to these as well; and one has as many tokens as head channels.
    """
    draw = random.Random(seed).choice  # not cryptographic
    heads, length = ((4, 4), (8, 8), (4, 16))[seed % 3]
    either = (heads, _CHANNELS // heads)
    return Sizes(
        batch=heads if length == heads else draw((1, 2, heads)),
        heads=heads,
        length=length,
        answer=draw(either),
        image=draw((32, 64)),
        samples=105 + 40 * (draw(either) - 1),
    )


@dataclass(frozen=True)
class Architecture:
    """One row of the suite."""

    # transformers' `model_type`, with a suffix to distinguish variants; or timm's variant.
    name: str
    family: str  # one of npu_compiler.suite.table.FAMILIES, or timm
    # Builds the model, with weights from torch's generator.
    build: Callable[[], torch.nn.Module]
    inputs: Inputs  # creates its keyword arguments, on the CPU, from the same generator


def make(
    architecture: Architecture, *, seed: int = 0, sizes: Sizes = USUAL
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Builds a model in evaluation mode and its inputs, deterministic for a seed.

    Parameters that transformers initializes to a constant (biases, scales of norms, layer scales)
    get normal noise: a wrong bias would not be detected if all are zero. Weights with a smaller
    standard deviation are scaled to 1.4 / sqrt(fan-in): in small models the signal would vanish,
    and errors with it.

    Raises:
        SuiteError: [suite-transformers] if transformers is missing, or lacks the architecture;
            [suite-timm] if timm is missing.
    """
    torch.manual_seed(seed)
    token = _sizes.set(sizes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = architecture.build().eval()
        return _enlivened(model), architecture.inputs()
    finally:
        _sizes.reset(token)


def _enlivened(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.numel() > 1:
                _enliven(name, parameter)
    return model


def _enliven(name: str, parameter: torch.Tensor) -> None:
    spread, middle = float(parameter.std()), float(parameter.mean())
    if spread <= _CONSTANT * abs(middle):  # the mean of a constant may be rounded
        parameter.add_(torch.randn_like(parameter), alpha=_NOISE)
    elif parameter.dim() > 1:
        wanted = _GAIN * (parameter.numel() / parameter.shape[0]) ** -0.5
        if spread < wanted:
            parameter.mul_(wanted / spread)
    elif name.endswith("weight") and spread + abs(middle) < _NOISE:
        parameter.add_(1.0)  # the scale of a norm, which some models initialize around 0


def rows(family: str, inputs: Callable[[], dict[str, Any]]) -> Callable[..., Architecture]:
    """Returns a function that builds a family's rows from arguments of from_config and inputs."""

    def row(
        name: str, model: str, config: str, inputs: Any = inputs, **settings: Any
    ) -> Architecture:
        return Architecture(name, family, from_config(model, config, **settings), inputs)

    return row


def from_config(model: str, config: str, **settings: Any) -> Callable[[], torch.nn.Module]:
    """Returns a function that builds a transformers model from its configuration class.

    Args:
        model: name of the model's class, such as "BertModel".
        config: name of the configuration's class, such as "BertConfig".
        settings: arguments of the configuration; a nested configuration is a dict.
    """

    def build() -> torch.nn.Module:
        given = _of_this_draw(settings)
        built: torch.nn.Module = _of_transformers(model)(_of_transformers(config)(**given))
        return built

    return build


def _of_this_draw(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration with the drawn sizes of images and heads."""
    sizes = _sizes.get()
    if sizes is USUAL:
        return settings
    given = {
        name: _of_this_draw(value) if isinstance(value, dict) else value
        for name, value in settings.items()
    }
    if "image_size" in given:
        is_pair = isinstance(given["image_size"], list)
        given["image_size"] = [sizes.image, sizes.image] if is_pair else sizes.image
    heads = [name for name in _HEADS & given.keys() if given[name] == USUAL.heads]
    if heads:
        given |= dict.fromkeys(heads, sizes.heads)
        given |= dict.fromkeys(_CHANNELS_OF_A_HEAD & given.keys(), _CHANNELS // sizes.heads)
    return given


def _of_transformers(name: str) -> Any:
    try:
        library = importlib.import_module("transformers")
    except ImportError as failure:
        raise SuiteError(
            f"npu_compiler.suite: transformers must be installed, got {failure}. "
            'Install it: pip install "transformers>=5.20,<6".',
            code="suite-transformers",
        ) from failure
    try:
        return getattr(library, name)
    except AttributeError as failure:
        raise SuiteError(
            f"npu_compiler.suite: transformers must have {name}, got version "
            f'{library.__version__}. Install another: pip install "transformers>=5.20,<6".',
            code="suite-transformers",
        ) from failure


def text() -> dict[str, torch.Tensor]:
    """Returns token ids and a mask of ones, (batch, length) int64."""
    ids = torch.randint(3, VOCABULARY, (_sizes.get().batch, _sizes.get().length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def padded() -> dict[str, torch.Tensor]:
    """Returns `text` with the last quarter of the first row's tokens masked."""
    inputs = text()
    inputs["attention_mask"][0, -(_sizes.get().length // 4) :] = 0
    return inputs


def image() -> dict[str, torch.Tensor]:
    """Returns images, (batch, 3, image, image) float32."""
    size = _sizes.get().image
    return {"pixel_values": torch.randn(_sizes.get().batch, 3, size, size)}


def waveform() -> dict[str, torch.Tensor]:
    """Returns waveforms, (batch, samples) float32."""
    return {"input_values": torch.randn(_sizes.get().batch, _sizes.get().samples)}


def answer() -> dict[str, torch.Tensor]:
    """Returns token ids of an answer, (batch, answer) int64."""
    shape = (_sizes.get().batch, _sizes.get().answer)
    return {"decoder_input_ids": torch.randint(3, VOCABULARY, shape)}


def translation() -> dict[str, torch.Tensor]:
    """Returns `padded` with an answer."""
    return {**padded(), **answer()}

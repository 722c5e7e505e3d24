"""What an architecture of the suite is, how its model is built, and the inputs that several share.

The rows are in one file per family beside this one, and all of them in table.py. transformers is
imported when a model is built and not before: the table itself can be read without it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from npu_compiler.errors import SuiteError

__all__ = [
    "IMAGE",
    "VOCABULARY",
    "Architecture",
    "from_config",
    "image",
    "make",
    "padded",
    "text",
    "translation",
    "waveform",
]

VOCABULARY = 128
IMAGE = 64
_LENGTH = 16
_NOISE = 0.1
_GAIN = 1.4

Inputs = Callable[[], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Architecture:
    """One row of the suite.

    Attributes:
        name: as transformers' `model_type`, with what tells two forms apart behind it.
        family: one of npu_compiler.suite.table.FAMILIES.
        build: makes the model, with weights drawn from torch's generator.
        inputs: makes its keyword arguments, on the CPU, from the same generator.
    """

    name: str
    family: str
    build: Callable[[], torch.nn.Module]
    inputs: Inputs


def make(
    architecture: Architecture, *, seed: int = 0
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Builds a model in evaluation mode and its inputs, the same for one seed.

    Parameters that transformers starts as a constant (biases, scales of norms, layer scales) get
    normal noise: a wrong bias would not show where all of them are zero. Weights that it starts
    smaller are scaled to a standard deviation of 1.4 / sqrt(fan-in): in small models the input
    would fade on its way to the output, and nothing on that way would show.

    Raises:
        SuiteError: [suite-transformers] transformers is missing, or lacks the architecture.
    """
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = architecture.build().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.numel() > 1:
                _enliven(name, parameter)
    return model, architecture.inputs()


def _enliven(name: str, parameter: torch.Tensor) -> None:
    spread, middle = float(parameter.std()), float(parameter.mean())
    if spread == 0:
        parameter.add_(torch.randn_like(parameter), alpha=_NOISE)
    elif parameter.dim() > 1:
        wanted = _GAIN * (parameter.numel() / parameter.shape[0]) ** -0.5
        if spread < wanted:
            parameter.mul_(wanted / spread)
    elif name.endswith("weight") and spread + abs(middle) < _NOISE:
        parameter.add_(1.0)  # the scale of a norm, which some models start around 0


def from_config(model: str, config: str, **settings: Any) -> Callable[[], torch.nn.Module]:
    """Returns what builds a model of a transformers class from a configuration of another.

    Args:
        model: name of the model's class, such as "BertModel".
        config: name of the configuration's class, such as "BertConfig".
        settings: the configuration's arguments; a nested configuration is a dict.
    """

    def build() -> torch.nn.Module:
        built: torch.nn.Module = _of_transformers(model)(_of_transformers(config)(**settings))
        return built

    return build


def _of_transformers(name: str) -> Any:
    try:
        library = importlib.import_module("transformers")
    except ImportError as failure:
        raise SuiteError(
            f"npu_compiler.suite: builds its models with transformers; got {failure}. "
            'Install it: pip install "npu-compiler[suite]".',
            code="suite-transformers",
        ) from failure
    try:
        return getattr(library, name)
    except AttributeError as failure:
        raise SuiteError(
            f"npu_compiler.suite: needs transformers with {name}; got version "
            f'{library.__version__}. Install another: pip install "npu-compiler[suite]".',
            code="suite-transformers",
        ) from failure


def text() -> dict[str, torch.Tensor]:
    """Token ids and a mask of ones, (2, 16) int64."""
    ids = torch.randint(3, VOCABULARY, (2, _LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def padded() -> dict[str, torch.Tensor]:
    """As `text`, with the first row's last four tokens masked."""
    inputs = text()
    inputs["attention_mask"][0, 12:] = 0
    return inputs


def image() -> dict[str, torch.Tensor]:
    """Two images, (2, 3, 64, 64) float32."""
    return {"pixel_values": torch.randn(2, 3, IMAGE, IMAGE)}


def waveform() -> dict[str, torch.Tensor]:
    """Two sounds, (2, 4000) float32."""
    return {"input_values": torch.randn(2, 4000)}


def translation() -> dict[str, torch.Tensor]:
    """As `padded`, with (2, 7) token ids of the answer."""
    return {**padded(), "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 7))}

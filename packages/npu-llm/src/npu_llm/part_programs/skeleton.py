"""transformers' own model class, without weights, around compiled programs.

What generates, prepares inputs and aligns timestamps is the class's own code, whatever the
architecture; only the forward methods of the model and of its encoder are others.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers
from transformers import AutoConfig, GenerationConfig

from npu_llm.models.entry import Entry

try:
    from transformers.initialization import no_init_weights
except ImportError:  # before transformers 5
    from transformers.modeling_utils import no_init_weights

__all__ = ["make_skeleton"]


def make_skeleton(entry: Entry, ours: type) -> Any:
    """Returns a model of transformers' class whose parameters have no memory.

    Args:
        entry: names the class and holds the config.
        ours: a class whose methods come before transformers'.

    Returns:
        An instance of a subclass of both, with the name of transformers' class, which pipelines
        look at. Its `forward` has the signature of transformers', which generate looks at.
    """
    config = AutoConfig.from_pretrained(entry.folder)
    architecture = getattr(transformers, str(entry.about["architecture"]))
    forward = functools.wraps(architecture.forward)(_calls_ours)
    made = type(
        architecture.__name__, (ours, architecture), {"__module__": __name__, "forward": forward}
    )
    with torch.device("meta"), no_init_weights():
        model: Any = made(config)
    model.generation_config = GenerationConfig.from_pretrained(entry.folder)
    return model.eval()


def _calls_ours(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self.run_forward(*args, **kwargs)

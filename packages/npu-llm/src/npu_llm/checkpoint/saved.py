"""Configs and tokenizers in entries, read without running a model's code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from npu_llm.checkpoint.processors import untrusted

__all__ = ["load_saved_tokenizer", "read_saved_config", "save_config"]

_CONFIG = "config.json"
# Packages of classes from checkpoints.
_REMOTE = "transformers_modules"


def save_config(config: Any, folder: Path) -> None:
    """Writes a config so that reading it needs no code from the checkpoint.

    Args:
        config: a config of transformers, or of a class from a checkpoint.
        folder: output folder of config.json.
    """
    if not type(config).__module__.startswith(_REMOTE):
        config.save_pretrained(folder)
        return
    about = json.loads(config.to_json_string(use_diff=False))
    about.pop("auto_map", None)
    about |= {name: getattr(config, other) for name, other in config.attribute_map.items()}
    (folder / _CONFIG).write_text(json.dumps(about, indent=2) + "\n")


def read_saved_config(folder: Path) -> Any:
    """Reads a config from save_config; a config of an unknown class has only its values."""
    about = json.loads((folder / _CONFIG).read_text())
    if about.get("model_type") in CONFIG_MAPPING_NAMES:
        return AutoConfig.from_pretrained(folder)
    return PretrainedConfig.from_dict(about)


def load_saved_tokenizer(folder: Path, *, trust_remote_code: bool) -> Any:
    """Loads a tokenizer with transformers.

    Args:
        folder: its files.
        trust_remote_code: whether to run code in the folder.

    Raises:
        ModelError: [remote-code] if it needs code that is not trusted.
    """
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except ValueError as failure:
        if "custom code" in str(failure):
            raise untrusted(folder, "the tokenizer") from failure
        raise

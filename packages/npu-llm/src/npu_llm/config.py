"""Settings from the environment; no other module of this package reads it.

Arguments of from_pretrained and command options take precedence over these.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_command.setting_values import cache_directory, read_folder
from npu_llm.errors import OptionError

__all__ = ["Settings", "read_settings"]


@dataclass(frozen=True)
class Settings:
    """Settings from environment variables.

    Attributes:
        cache_dir: directory of the compile cache.
    """

    cache_dir: Path


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings.

    Args:
        environment: the variables; those of the process by default. `NPU_LLM_CACHE_DIR` names the
            cache directory, which is otherwise `npu-llm` in `XDG_CACHE_HOME`, or else in
            `~/.cache`.

    Raises:
        OptionError: [bad-setting] when NPU_LLM_CACHE_DIR is a file.
    """
    variables = os.environ if environment is None else environment
    named = read_folder(variables, "NPU_LLM_CACHE_DIR", error=OptionError)
    if named is not None:
        return Settings(cache_dir=named)
    return Settings(cache_dir=cache_directory("npu-llm", variables))

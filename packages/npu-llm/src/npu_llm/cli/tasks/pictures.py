"""Reads picture files, and starts a model that looks at them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from npu_llm.cli.display import Display
from npu_llm.cli.tasks.starting import start_task
from npu_llm.errors import OptionError

__all__ = ["looks_at_pictures", "read_picture", "start_looking"]

_TASK = "AutoModelForImageTextToText"


def looks_at_pictures(name_or_path: str) -> bool:
    """Whether a model reads images and text, and came with the processor for it.

    Args:
        name_or_path: a checkpoint folder, an exported folder, a GGUF file or a name on the hub.

    Raises:
        ModelError: if there is no such model.
    """
    # Heavy: a mistyped command should not wait for these.
    from npu_llm.checkpoint.facts import read_config
    from npu_llm.checkpoint.source import find_source
    from npu_llm.models.entry import MANIFEST

    path = Path(name_or_path).expanduser()
    if (path / MANIFEST).is_file():
        about = json.loads((path / MANIFEST).read_text()).get("about", {})
        return bool(about.get("task") == _TASK)
    source = find_source(name_or_path)
    if source.gguf_file is not None:
        return False
    has_processor = any(source.folder.glob("*processor_config.json"))
    return has_processor and "vision_config" in read_config(source.folder)


def read_picture(path: Path) -> Any:
    """Returns a picture as a PIL image in RGB.

    Raises:
        OptionError: [image-unreadable] if there is no picture in the file, [missing-pillow].
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as failure:
        raise OptionError(
            f"{path}: must be read by Pillow; got none installed. Run pip install "
            '"npu-llm[images]".',
            code="missing-pillow",
        ) from failure
    unreadable = (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError)
    try:
        with Image.open(path.expanduser()) as picture:
            return picture.convert("RGB")
    except unreadable as failure:
        reason = getattr(failure, "strerror", None) or type(failure).__name__
        raise OptionError(
            f"{path}: must be a file with a picture, such as PNG or JPEG; got: {reason}. Check the "
            "path, or convert the file.",
            code="image-unreadable",
        ) from failure


def start_looking(options: argparse.Namespace, display: Display) -> tuple[Any, Any]:
    """Starts the model that the options name; returns it and its processor.

    Raises:
        NpuError: if it cannot start, ModelError [missing-processor] among them.
    """
    # Heavy: a mistyped command should not wait for these.
    from npu_llm.cli.session import be_quiet

    be_quiet()
    from npu_llm.vision_language.models import NPUModelForImageTextToText
    from npu_llm.vision_language.prompting import load_processor

    path = str(Path(options.model).expanduser())
    processor = load_processor(path)
    model = start_task(NPUModelForImageTextToText, options, display)
    if getattr(options, "seed", None) is not None:
        import torch

        torch.manual_seed(options.seed)
    return model, processor

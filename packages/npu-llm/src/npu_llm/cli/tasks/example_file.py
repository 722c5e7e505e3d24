"""Example calls for quantizing a model of one step, from a file of texts or of paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu_llm.checkpoint.processors import load_beside
from npu_llm.cli.tasks.sample_file import read_image
from npu_llm.cli.tasks.text_lines import read_lines
from npu_llm.errors import OptionError
from npu_llm.speech.wave_file import read_wave

__all__ = ["read_calls"]


def read_calls(path: Path, model: str, modalities: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns a call for each line of a file.

    Args:
        path: texts, one a line; or paths of images or WAV files, relative to it.
        model: the checkpoint, whose tokenizer or processor prepares them.
        modalities: what the model reads: text, image or audio.

    Raises:
        OptionError: [text-lines], [text-encoding], [quantize-text] for a model that reads
            several kinds at once, [eval-data] for an image that cannot be read, [audio-rate] and
            others for sound.
        ModelError: [missing-processor] if the model came without what prepares its inputs.
    """
    import transformers

    lines = read_lines(str(path))
    if modalities == ("text",):
        tokenizer = load_beside(transformers.AutoTokenizer, model, "a tokenizer")
        return [dict(tokenizer(line, truncation=True, return_tensors="pt")) for line in lines]
    if modalities == ("image",):
        prepare = load_beside(transformers.AutoImageProcessor, model, "an image processor")
        config = load_beside(transformers.AutoConfig, model, "a config")
        pictures = (read_image(path.parent / line, config) for line in lines)
        return [dict(prepare(picture, return_tensors="pt")) for picture in pictures]
    if modalities == ("audio",):
        extract = load_beside(transformers.AutoFeatureExtractor, model, "a feature extractor")
        rate = int(extract.sampling_rate)
        sounds = (read_wave(path.parent / line, rate=rate) for line in lines)
        return [dict(extract(one, sampling_rate=rate, return_tensors="pt")) for one in sounds]
    raise OptionError(
        f"--data: a line must be all that a call reads; got a model that reads "
        f"{' and '.join(modalities)}. Omit it, or pass inputs= to the class's export.",
        code="quantize-text",
    )

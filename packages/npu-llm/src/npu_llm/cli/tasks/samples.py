"""Samples and example inputs of a task, read from files that name audio and images."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_llm.checkpoint.processors import load_beside
from npu_llm.cli.tasks.describe import read_image
from npu_llm.cli.tasks.embed import read_lines
from npu_llm.errors import OptionError, read_text
from npu_llm.speech.wave_file import read_wave

if TYPE_CHECKING:
    from npu_llm.evaluation import Form

__all__ = ["read_calls", "read_samples"]


def read_samples(
    path: Path, form: Form, model: str, *, trust_remote_code: bool
) -> list[dict[str, Any]]:
    """Reads samples; paths of audio and images are relative to the file.

    Args:
        path: the file.
        form: the fields of a sample; others are ignored.
        model: folder or name of the model, which defines labels, sampling rate and channels.
        trust_remote_code: whether code that came with the model may run.

    Returns:
        The samples, with audio as arrays (samples,) float32 and images as PIL images.

    Raises:
        OptionError: [eval-data] if the file cannot be read or a line is not such a sample;
            [image-unreadable] and [missing-pillow] for images; [audio-unreadable], [audio-rate] and
            others for audio, see npu_llm.speech.wave_file.
        ModelError: [missing-processor] if the model has no config or feature extractor,
            [remote-code] if one needs code that is not trusted.
    """
    from transformers import AutoConfig, AutoFeatureExtractor

    from npu_llm.evaluation import check_sample, labels_of

    kinds = set(form.fields.values())
    load = partial(load_beside, trust_remote_code=trust_remote_code)
    config = load(AutoConfig, model, "a config")
    labels = labels_of(config) if kinds & {"label", "labels"} else None
    samples = []
    for number, line in _lines(path):
        place = f"{path}: line {number}"
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError) as failure:
            raise _unreadable(place, f"a JSON object, got {failure}") from failure
        check_sample(sample, form, place, labels=labels)
        samples.append({name: sample[name] for name in form.fields if sample.get(name) is not None})
    if "audio" in kinds:
        extractor = load(AutoFeatureExtractor, model, "a feature extractor")
        rate = int(extractor.sampling_rate)
        for sample in samples:
            sample["audio"] = read_wave(path.parent / sample["audio"], rate=rate)
    if "image" in kinds:
        for sample in samples:
            sample["image"] = _read_image(path.parent / sample["image"], config)
    return samples


def _lines(path: Path) -> list[tuple[int, str]]:
    """Returns the lines that are not blank, numbered from 1."""
    try:
        text = read_text(str(path), lambda: path.read_text("utf-8"))
    except OSError as failure:
        raise _unreadable(path, f"a readable file, got {failure.strerror}") from failure
    found = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not found:
        raise _unreadable(path, "a file with samples, one JSON object per line, got none")
    return found


def _unreadable(place: object, wanted: str) -> OptionError:
    return OptionError(f"`{place}` must be {wanted}. Correct it.", code="eval-data")


def read_calls(
    path: Path, model: str, modalities: tuple[str, ...], *, trust_remote_code: bool
) -> list[dict[str, Any]]:
    """Returns the arguments of a call for each line of a file.

    Args:
        path: texts, one per line; or paths of images or WAV files, relative to the file.
        model: the checkpoint with the tokenizer or processor.
        modalities: inputs of the model: text, image or audio.
        trust_remote_code: whether code that came with the model may run.

    Raises:
        OptionError: [text-lines], [text-encoding], [quantize-text] for a multimodal model,
            [image-unreadable] for an image that cannot be read, [audio-rate] and others for audio.
        ModelError: [missing-processor] if the model has no processor, [remote-code] if the
            processor needs code that is not trusted.
    """
    import transformers

    load = partial(load_beside, trust_remote_code=trust_remote_code)
    lines = read_lines(str(path))
    if modalities == ("text",):
        tokenizer = load(transformers.AutoTokenizer, model, "a tokenizer")
        return [dict(tokenizer(line, truncation=True, return_tensors="pt")) for line in lines]
    if modalities == ("image",):
        prepare = load(transformers.AutoImageProcessor, model, "an image processor")
        config = load(transformers.AutoConfig, model, "a config")
        images = (_read_image(path.parent / line, config) for line in lines)
        return [dict(prepare(image, return_tensors="pt")) for image in images]
    if modalities == ("audio",):
        extract = load(transformers.AutoFeatureExtractor, model, "a feature extractor")
        rate = int(extract.sampling_rate)
        sounds = (read_wave(path.parent / line, rate=rate) for line in lines)
        return [dict(extract(one, sampling_rate=rate, return_tensors="pt")) for one in sounds]
    raise OptionError(
        f"`--data` must be omitted for a model that reads {' and '.join(modalities)}, got a file. "
        "Omit it, or pass inputs= to the class's export.",
        code="quantize-text",
    )


def _read_image(path: Path, config: Any) -> Any:
    """Returns an image in the model's color mode: grayscale for one channel."""
    return read_image(path, "L" if getattr(config, "num_channels", 3) == 1 else "RGB")

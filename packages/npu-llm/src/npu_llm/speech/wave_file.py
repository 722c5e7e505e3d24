"""Reads and validates WAV files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from npu_llm.errors import OptionError

__all__ = ["read_samples", "read_wave"]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE


def read_wave(path: Path, *, rate: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Reads a WAV file; has the arguments, result and errors of read_samples."""
    try:
        content = path.read_bytes()
    except OSError as failure:
        raise _unreadable(str(path), str(failure.strerror or failure)) from failure
    return read_samples(str(path), content, rate=rate)


def read_samples(
    subject: str, content: bytes, *, rate: int
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Decodes the content of a WAV file: PCM of 8, 16, 24 or 32 bits, or floats of 32 or 64.

    Args:
        subject: name of the file in messages.
        content: the file's bytes.
        rate: the required sample rate in Hz.

    Returns:
        (samples,) float32 between -1 and 1, channels averaged.

    Raises:
        OptionError: [audio-unreadable] for an invalid file, [audio-rate] for another rate,
            [audio-empty] for a file without samples, [input-not-finite] for NaN or infinity.
    """
    try:
        found, channels, held = _samples(content)
    except (struct.error, ValueError, KeyError) as failure:
        raise _unreadable(subject, str(failure) or "a truncated file") from failure
    if held != rate:
        raise OptionError(
            f"`{subject}` must have the model's rate of {rate:,} samples per second, got "
            f"{held:,}. Convert it, for example with `ffmpeg -i FILE -ar {rate} NEW.wav`.",
            code="audio-rate",
        )
    if len(found) < channels:
        raise OptionError(
            f"`{subject}` must contain samples, got none. Pass another file.",
            code="audio-empty",
        )
    if not np.isfinite(found).all():
        raise OptionError(
            f"{subject}: samples must be finite, got NaN or infinity. Write the file again.",
            code="input-not-finite",
        )
    whole = found[: len(found) // channels * channels].reshape(-1, channels)
    return np.ascontiguousarray(whole.mean(axis=1), dtype=np.float32)


def _samples(content: bytes) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], int, int]:
    """Returns all samples, the number of channels, and the sample rate."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise ValueError("not a WAV file")
    chunks: dict[bytes, bytes] = {}
    at = 12
    while at + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, at)
        chunks.setdefault(name, content[at + 8 : at + 8 + size])
        at += 8 + size + size % 2
    if b"fmt " not in chunks or b"data" not in chunks:
        raise ValueError("a WAV file without format or data")
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunks[b"fmt "])
    if kind == _EXTENSIBLE:
        (kind,) = struct.unpack_from("<H", chunks[b"fmt "], 24)
    if channels < 1:
        raise ValueError("a WAV file without a channel")
    data = chunks[b"data"]
    data = data[: len(data) // (bits // 8) * (bits // 8)] if bits >= 8 else data
    if (kind, bits) == (_PCM, 8):
        found = (np.frombuffer(data, np.uint8).astype(np.float64) - 128) / 128
    elif (kind, bits) == (_PCM, 24):
        triples = np.frombuffer(data, np.uint8).reshape(-1, 3).astype(np.int32)
        joined = triples[:, 0] | triples[:, 1] << 8 | triples[:, 2] << 16
        found = ((joined ^ 0x800000) - 0x800000) / 2.0**23
    elif kind == _PCM and bits in (16, 32):
        found = np.frombuffer(data, f"<i{bits // 8}") / 2.0 ** (bits - 1)
    elif kind == _FLOAT and bits in (32, 64):
        found = np.frombuffer(data, f"<f{bits // 8}").astype(np.float64)
    else:
        raise ValueError(f"samples of kind {kind} with {bits} bits")
    return found, channels, rate


def _unreadable(subject: str, reason: str) -> OptionError:
    return OptionError(
        f"`{subject}` must be a WAV file of PCM or float samples, got: {reason}. Convert it, for "
        "example with `ffmpeg -i FILE -ar 16000 NEW.wav`.",
        code="audio-unreadable",
    )

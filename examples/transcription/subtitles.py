"""Prints the speech of a WAV file, passage by passage, with times.

    python examples/transcription/subtitles.py talk.wav --model whisper-base [--language en]

MODEL is a folder or a name on the hub with any Whisper. The model is ours, everything around it is
transformers': the pipeline cuts the sound into windows, and joins their texts.
"""

from __future__ import annotations

import argparse
import wave

import numpy as np
from transformers import AutoFeatureExtractor, AutoTokenizer, pipeline

from npu_llm import NPUModelForSpeechSeq2Seq


def read(path: str) -> dict[str, object]:
    """Reads a WAV file of 16 bits and one channel, as the pipeline takes sound."""
    with wave.open(path) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return {"raw": samples / np.float32(32768), "sampling_rate": file.getframerate()}


def main() -> None:
    """Prints one line for each passage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--model", required=True)
    parser.add_argument("--language", help="default: found out")
    options = parser.parse_args()
    recognize = pipeline(
        "automatic-speech-recognition",
        model=NPUModelForSpeechSeq2Seq.from_pretrained(options.model),
        tokenizer=AutoTokenizer.from_pretrained(options.model),
        feature_extractor=AutoFeatureExtractor.from_pretrained(options.model),
        device="cpu",  # where sound and text are; the model's programs run on the npu device
    )
    asked = {"num_beams": 1} | ({"language": options.language} if options.language else {})
    found = recognize(read(options.file), return_timestamps=True, generate_kwargs=asked)
    for passage in found["chunks"]:
        start, end = passage["timestamp"]
        print(f"{start:7.2f} - {'' if end is None else f'{end:.2f}':7} {passage['text'].strip()}")


if __name__ == "__main__":
    main()

"""Classifies a sound with an Audio Spectrogram Transformer through transformers' own pipeline.

    python examples/audio/classify_sound.py [--model PATH]

Without a model, a small one is built with seeded random weights; its classes mean nothing, and its
scores are those of transformers. The sound is a tone that rises for a second.
"""

from __future__ import annotations

import argparse
import tempfile

import numpy as np
import torch
import transformers

from npu_llm import NPUModelForAudioClassification

RATE = 16_000


def save_small(folder: str) -> None:
    """Saves a small model, and its feature extractor for spectrograms."""
    torch.manual_seed(0)
    config = transformers.ASTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_length=100, num_mel_bins=64, id2label={0: "whistle", 1: "rain", 2: "speech"},
    )  # fmt: skip
    model = transformers.AutoModelForAudioClassification.from_config(config)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.05)  # so that classes differ
    model.save_pretrained(folder)
    transformers.ASTFeatureExtractor(num_mel_bins=64, max_length=100).save_pretrained(folder)


def main() -> None:
    """Prints the classes with the scores of both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a checkpoint folder, instead of a small model")
    options = parser.parse_args()
    at = np.arange(RATE) / RATE
    sound = (np.sin(2 * np.pi * (300 + 200 * at) * at) / 2).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            save_small(folder)
        path = options.model or folder
        extractor = transformers.AutoFeatureExtractor.from_pretrained(path)
        found = [
            transformers.pipeline(
                "audio-classification",
                model=kind.from_pretrained(path),
                feature_extractor=extractor,
                device="cpu",
            )(sound, top_k=3)
            for kind in (
                NPUModelForAudioClassification,
                transformers.AutoModelForAudioClassification,
            )
        ]
    for ours, theirs in zip(*found, strict=True):
        print(f"{ours['label']:12} npu {ours['score']:.6f}  transformers {theirs['score']:.6f}")


if __name__ == "__main__":
    main()

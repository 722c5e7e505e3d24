"""Generates with Llama, Phi-3 or Qwen3 on the npu device, and compares with transformers.

    python examples/decoders/generate.py [llama|phi|qwen] [--model PATH] [--dtype float32]

Without a model, a small one is built with seeded random weights; its words mean nothing, and its
tokens are those of transformers in float32. With --model, name a checkpoint folder of any decoder.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
import transformers

from npu_llm import NPUModelForCausalLM

SIZES = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
FAMILIES = {
    "llama": transformers.LlamaConfig,
    "phi": transformers.Phi3Config,
    "qwen": transformers.Qwen3Config,
}


def save_small(family: str, folder: str) -> None:
    """Saves a small model of a family."""
    torch.manual_seed(0)
    config = FAMILIES[family](**SIZES)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def main() -> None:
    """Prints the tokens of both, and whether they are the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", nargs="?", choices=sorted(FAMILIES), default="llama")
    parser.add_argument("--model", help="a checkpoint folder, instead of a small model")
    parser.add_argument("--dtype", default="float32", help="precision of weights and arithmetic")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            save_small(options.family, folder)
        path = options.model or folder
        ours = NPUModelForCausalLM.from_pretrained(path, dtype=options.dtype)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
        prompt = torch.arange(3, 11)[None]
        asked = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 12}
        answers = [model.generate(prompt, do_sample=False, **asked) for model in (ours, theirs)]
    for name, answer in zip(("npu", "transformers"), answers, strict=True):
        print(f"{name:12} {answer[0, 8:].tolist()}")
    print("the same" if answers[0].tolist() == answers[1].tolist() else "different")


if __name__ == "__main__":
    main()

"""Translates with T5 on the npu device through transformers' own generate, with beams.

    python examples/translation/translate.py [text] [--model PATH]

Without a model a small T5 is built with seeded random weights and letters for tokens: its output is
meaningless, but equal to that of transformers. With --model, name a checkpoint such as t5-small.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
import transformers

from npu_llm import NPUModelForSeq2SeqLM


def save_small(folder: str) -> None:
    """Saves a small T5, and a tokenizer of letters."""
    letters = "▁abcdefghijklmnopqrstuvwxyz:."
    words = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    tokenizer = transformers.T5Tokenizer(
        vocab=[*words, *((letter, -2.0) for letter in letters)], extra_ids=0
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=tokenizer.pad_token_id, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    for parameter in model.parameters():
        parameter.data.mul_(4 if parameter.dim() > 1 else 1)  # so that it prefers some letters
    model.save_pretrained(folder)


def main() -> None:
    """Prints both translations, and whether they are the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", default="translate English to German: the house is old.")
    parser.add_argument("--model", help="a checkpoint folder, instead of a small model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            save_small(folder)
        path = options.model or folder
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        ours = NPUModelForSeq2SeqLM.from_pretrained(path, dtype="float32")
        theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
        given = tokenizer(options.text.lower(), return_tensors="pt")
        asked = {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"]}
        answers = [
            model.generate(**asked, max_new_tokens=16, num_beams=3) for model in (ours, theirs)
        ]
    for name, answer in zip(("npu", "transformers"), answers, strict=True):
        print(f"{name:12} {tokenizer.decode(answer[0], skip_special_tokens=True)}")
    print("the same" if answers[0].tolist() == answers[1].tolist() else "different")


if __name__ == "__main__":
    main()

"""Translates standard input line by line, several lines at once.

    python examples/translation/translate_lines.py --model opus-mt-en-de < letter.txt

MODEL is a folder or a name on the hub with MarianMT or T5, which wants `--prefix "translate English
to German: "`. The model is ours; `generate` and the tokenizer are transformers'.
"""

from __future__ import annotations

import argparse
import sys

from transformers import AutoTokenizer

from npu_llm import NPUModelForSeq2SeqLM


def main() -> None:
    """Prints a line for each line that is not blank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--batch", type=int, default=8, help="lines at once")
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16", help="precision of weights and arithmetic")
    options = parser.parse_args()
    model = NPUModelForSeq2SeqLM.from_pretrained(options.model, dtype=options.dtype)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    lines = [options.prefix + line.strip() for line in sys.stdin if line.strip()]
    for first in range(0, len(lines), options.batch):
        batch = tokenizer(lines[first : first + options.batch], padding=True, return_tensors="pt")
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        found = model.generate(**given, num_beams=options.beams, max_new_tokens=128)
        print("\n".join(tokenizer.batch_decode(found, skip_special_tokens=True)), flush=True)


if __name__ == "__main__":
    main()

"""Speed of prompt lookup decoding compared with greedy generation, for rewriting a text.

    python packages/npu-llm/benchmarks/speculation.py [--dtypes float32,int8] [--guesses 5,10,20]

SmolLM2-135M-Instruct repeats a text with a small change, so drafts from the prompt are often
accepted. Plain and speculative runs alternate for several rounds, so that other load affects them
alike; the best round counts. The tokens must be the same. The table also shows the number of steps
per answer: a step of several tokens costs more than a step of one, so less time is saved than
steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from npu_llm import NPUModelForCausalLM
from npu_llm.checkpoint.source import find_installed_weights
from npu_llm.tokenizer.tokenizer import encode_chat
from npu_runtime import observe

TEXT = (
    "The lighthouse rose at the end of the long pier, where the waves met the stones. Every "
    "evening the keeper climbed the ninety-two steps, lit the lamp, and counted the ships that "
    "passed in the night. He wrote their names in a leather book, together with the hour and the "
    "weather. In the morning he walked back to the village, bought bread and milk, and told the "
    "children which ships he had seen."
)
TASKS = {
    "copy": f"Repeat the following text word for word:\n\n{TEXT}",
    "rewrite": "Copy the following text word for word, but write 'sailor' instead of 'keeper':"
    f"\n\n{TEXT}",
}


@dataclass
class Best:
    """The best round of a generation method."""

    seconds: float = float("inf")
    steps: int = 0


def run(model: Any, inputs: Any, guesses: int, new_tokens: int) -> tuple[list[int], float, int]:
    """Returns an answer's tokens, seconds and steps; 0 drafts for plain generation."""
    steps: list[Any] = []

    def note(spans: Sequence[Any]) -> None:
        steps.extend(span for span in spans if span.category in ("prefill", "decode"))

    observe.add_listener(note)
    started = time.perf_counter()
    output = model.generate(
        **inputs,
        do_sample=False,
        max_new_tokens=new_tokens,
        pad_token_id=model.tokenizer.pad_token_id,
        prompt_lookup_num_tokens=guesses or None,
    )
    seconds = time.perf_counter() - started
    observe.remove_listener(note)
    return output[0, inputs["input_ids"].shape[1] :].tolist(), seconds, len(steps)


def measure(
    model: Any, task: str, dtype: str, options: argparse.Namespace, guesses: list[int]
) -> None:
    inputs = encode_chat(model.tokenizer, [{"role": "user", "content": TASKS[task]}])
    best = {count: Best() for count in (0, *guesses)}
    expected, _, _ = run(model, inputs, 0, options.new_tokens)
    for _ in range(options.rounds):
        for count, result in best.items():
            tokens, seconds, result.steps = run(model, inputs, count, options.new_tokens)
            # A step of several tokens sums in another order, which may change the result below
            # fp32.
            if dtype == "float32" and tokens != expected:
                raise SystemExit(f"{task}, {count} guesses: other tokens than without guesses")
            result.seconds = min(result.seconds, seconds * len(expected) / len(tokens))
    for count, result in best.items():
        name = f"{count} guesses" if count else "plain"
        print(
            f"{dtype:10}{task:9}{name:12}{len(expected) / result.seconds:9.1f}"
            f"{best[0].seconds / result.seconds:7.2f}{result.steps:7}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--new-tokens", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtypes", default="float32,int8")
    parser.add_argument("--guesses", default="5,10,20")
    parser.add_argument("--tasks", default=",".join(TASKS))
    options = parser.parse_args()
    guesses = [int(count) for count in options.guesses.split(",")]
    print(f"{'dtype':10}{'task':9}{'way':12}{'tokens/s':>9}{'x':>7}{'steps':>7}")
    for dtype in options.dtypes.split(","):
        model = NPUModelForCausalLM.from_pretrained(find_installed_weights().path, dtype=dtype)
        for task in options.tasks.split(","):
            measure(model, task, dtype, options, guesses)


if __name__ == "__main__":
    main()

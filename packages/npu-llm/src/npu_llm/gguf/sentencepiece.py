"""SentencePiece's byte-pair encoding as ranked merges, for the tokenizers library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise

from npu_llm.gguf.vocabulary import TokenKind, Vocabulary, tokenizer_error

__all__ = ["score_merges"]


def score_merges(vocabulary: Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Returns merges with the effect of llama.cpp's merging by scores.

    There, two neighbours merge if their joint text is a token; the best score goes first, then the
    leftmost. So each possible split of a token into two is a merge, ranked by the token's score.

    Args:
        vocabulary: the tokens.
        scores: score of each token.

    Raises:
        ModelError: [gguf-tokenizer] if no order of merges has the same effect.
    """
    ids = vocabulary.ids
    reached: set[str] = set()
    ranked: list[tuple[float, int, int, str, str]] = []
    for text in sorted(ids, key=len):
        index = ids[text]
        pairs = [(text[:at], text[at:]) for at in range(1, len(text))]
        pairs = [pair for pair in pairs if all(len(p) == 1 or p in reached for p in pair)]
        if not pairs:
            continue
        reached.add(text)
        whole = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        if len(whole) < len(pairs) and vocabulary.kinds[index] is TokenKind.NORMAL:
            raise tokenizer_error(
                f"`tokenizer.ggml.tokens` must have each character of {text!r}. Convert the "
                "model again."
            )
        ranked += [(-scores[index], -len(text), -len(left), left, right) for left, right in whole]
    ranked.sort()
    _check_ties(ranked)
    return [(left, right) for _, _, _, left, right in ranked]


def _check_ties(ranked: Sequence[tuple[float, int, int, str, str]]) -> None:
    """Rejects different tokens with equal scores if the order of their merges has an effect.

    Merging the longest first equals growth from the left, for example in a run of spaces. Other
    cases are tested if two of them compete for a neighbour.
    """
    ranks = {(left, right): rank for rank, (*_, left, right) in enumerate(ranked)}
    scores = {(left, right): score for score, _, _, left, right in ranked}
    for score, group in groupby(ranked, key=lambda merge: merge[0]):
        tied = [(left, right) for *_, left, right in group]
        of_left: dict[str, list[str]] = {}
        for left, right in tied:
            of_left.setdefault(left, []).append(right)
        for left, middle in tied:
            for right in of_left.get(middle, ()):
                text = left + middle + right
                if _merge(text, ranks) != _merge(text, scores):
                    raise tokenizer_error(
                        "`tokenizer.ggml.scores` must differ where tokens overlap, got "
                        f"{-score} for {left + middle!r} and {middle + right!r}. Convert the model "
                        "again."
                    )


def _merge(text: str, order: Mapping[tuple[str, str], float]) -> list[str]:
    """Merges neighbours, by rank and then from the left."""
    parts = list(text)
    while True:
        found = [(order[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in order]
        if not found:
            return parts
        _, at = min(found)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]

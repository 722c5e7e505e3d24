"""Records llama.cpp's results for tiny GGUF files, as test data.

    python tools/gguf_witness.py FILE.gguf [FILE.gguf ...]

Run it with a Python that has llama-cpp-python, gguf and numpy. It reads the architecture's metadata
of each file, and the shape, mean and deviation of each tensor. It writes a file of the same kind
with seeded random weights, runs it with llama.cpp in float32, and stores some logits and the greedy
tokens, or some vectors of a file with pooling, in packages/npu-llm/tests/gguf/witness.json, by file
name.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
from gguf import GGUFReader
from llama_cpp import Llama

from tiny_gguf import write_tiny

TESTS = Path(__file__).parents[1] / "packages/npu-llm/tests/gguf"
NEW_TOKENS = 32
PROMPT_TOKENS = 40
KEPT_LOGITS = 24
RANK = llama_cpp.LLAMA_POOLING_TYPE_RANK


def describe(path: Path) -> dict[str, object]:
    """Returns a file's architecture, its metadata, and its tensors' shapes and distributions."""
    reader = GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    prefixes = (f"{architecture}.", "xielu.", "tokenizer.ggml.token_type_count")
    metadata = {
        name: [[one.name for one in field.types], field.contents()]
        for name, field in reader.fields.items()
        if name.startswith(prefixes)
    }
    tensors = {}
    for tensor in reader.tensors:
        values = np.asarray(tensor.data, np.float32)
        is_scale = values.min() > 0 and values.max() > 10  # factors of rotary positions
        distribution = [round(float(values.mean()), 2), round(float(values.std()), 3)]
        shape = [int(size) for size in tensor.shape[::-1]]
        tensors[tensor.name] = [shape, *([values.tolist()] if is_scale else distribution)]
    return {"architecture": architecture, "metadata": metadata, "tensors": tensors}


def answer(path: Path, vocabulary: int, context: int) -> dict[str, object]:
    """Returns llama.cpp's logits and greedy tokens for random tokens."""
    ids = np.random.default_rng(5).integers(3, vocabulary, PROMPT_TOKENS).tolist()
    model = Llama(
        str(path), n_ctx=context, n_batch=512, n_ubatch=512, logits_all=True, n_threads=1,
        n_threads_batch=1, type_k=0, type_v=0, flash_attn=False, verbose=False,
        yarn_beta_fast=-1.0, yarn_beta_slow=-1.0, yarn_attn_factor=-1.0,
    )  # fmt: skip
    model.eval(ids)
    logits = np.array(model.scores[: len(ids)])
    tokens, row = [], logits[-1]
    for _ in range(NEW_TOKENS):
        tokens.append(int(row.argmax()))
        model.eval(tokens[-1:])
        row = model.scores[model.n_tokens - 1]
    rows = [0, len(ids) // 2, len(ids) - 1]
    return {
        "ids": ids,
        "rows": rows,
        "logits": [[round(float(one), 6) for one in logits[row][:KEPT_LOGITS]] for row in rows],
        "spread": float(logits.std()),
        "tokens": tokens,
    }


def answer_vectors(path: Path, vocabulary: int) -> dict[str, object]:
    """Returns llama.cpp's vectors of random tokens, and of the whole text."""
    ids = np.random.default_rng(5).integers(3, vocabulary, PROMPT_TOKENS).tolist()
    vectors = encode(path, ids, llama_cpp.LLAMA_POOLING_TYPE_NONE)
    rows = [0, len(ids) // 2, len(ids) - 1]
    return {
        "ids": ids,
        "rows": rows,
        "vectors": [[round(float(one), 6) for one in vectors[row][:KEPT_LOGITS]] for row in rows],
        "spread": float(vectors.std()),
        "text": [round(float(one), 6) for one in encode(path, ids, None)[0][:KEPT_LOGITS]],
    }


def encode(path: Path, ids: list[int], pooling: int | None) -> np.ndarray:
    """Returns vectors of tokens without a pooling, or the text's with the file's own (None)."""
    kind = llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED if pooling is None else pooling
    model = Llama(
        str(path), n_ctx=128, n_batch=512, n_ubatch=512, embedding=True, pooling_type=kind,
        n_threads=1, n_threads_batch=1, type_k=0, type_v=0, flash_attn=False, verbose=False,
    )  # fmt: skip
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for at, token in enumerate(ids):
        batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, at, 1
        batch.seq_id[at][0], batch.logits[at] = 0, True
    has_decoder = llama_cpp.llama_model_has_decoder(model.model)
    run = llama_cpp.llama_decode if has_decoder else llama_cpp.llama_encode
    if run(model.ctx, batch):
        raise RuntimeError(f"{path}: llama.cpp cannot encode it")
    if pooling is None:
        width = 1 if llama_cpp.llama_pooling_type(model.ctx) == RANK else model.n_embd()
        return np.array([llama_cpp.llama_get_embeddings_seq(model.ctx, 0)[:width]])
    get = llama_cpp.llama_get_embeddings_ith
    return np.array([get(model.ctx, at)[: model.n_embd()] for at in range(len(ids))])


def main(paths: list[Path]) -> None:
    """Adds files to the data, or replaces them there."""
    data = TESTS / "witness.json"
    known = json.loads(data.read_text()) if data.is_file() else {}
    for path in paths:
        described = describe(path)
        with tempfile.TemporaryDirectory() as folder:
            tiny = write_tiny(Path(folder) / "tiny.gguf", described)
            vocabulary = described["tensors"]["token_embd.weight"][0][0]
            if f"{described['architecture']}.pooling_type" in described["metadata"]:
                described["answer"] = answer_vectors(tiny, vocabulary)
            else:
                described["answer"] = answer(tiny, vocabulary, 128)
        known[path.stem] = described
        print(path.stem)
    lines = [f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known)]
    data.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main([Path(one) for one in sys.argv[1:]])

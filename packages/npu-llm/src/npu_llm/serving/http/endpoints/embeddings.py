"""/v1/embeddings: vectors of texts."""

from __future__ import annotations

import base64
import time

import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from npu_llm.serving.http.bodies import EmbeddingsBody
from npu_llm.serving.http.endpoints.asking import inputs_of
from npu_llm.serving.http.gate import noted
from npu_llm.serving.http.service import service_of
from npu_llm.serving.http.several import ClientLeftError, while_there
from npu_llm.serving.models.served_encoder import ServedEncoder

__all__ = ["embeddings"]

_MOST_TEXTS = 2048  # OpenAI's


async def embeddings(request: Request) -> Response:
    """Answers with a vector for each text."""
    service = service_of(request)
    body = await service.read(request, EmbeddingsBody)
    texts = inputs_of("input", body.input, most=_MOST_TEXTS)
    started = time.perf_counter()
    async with service.shelf.use(body.model, ServedEncoder) as served:
        work = served.embed(texts, dimensions=body.dimensions)
        try:
            found = await while_there(request, work)
        except ClientLeftError:
            return Response(status_code=499)  # nobody reads it
    noted(request.scope).update(model=served.name, prompt_tokens=found.tokens)
    service.measures.note_vectors(served.name, found.tokens, time.perf_counter() - started)
    as_text = body.encoding_format == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _base64(vector) if as_text else vector.tolist(),
        }
        for index, vector in enumerate(found.values)
    ]
    usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
    content = {"object": "list", "data": data, "model": served.name, "usage": usage}
    return JSONResponse(content)


def _base64(vector: torch.Tensor) -> str:
    """Returns float32, the least byte first, as OpenAI's clients read it."""
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()

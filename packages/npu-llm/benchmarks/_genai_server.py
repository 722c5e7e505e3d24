"""An OpenAI-compatible server with openvino-genai's continuous batching, for serving.py.

    python _genai_server.py FILE PORT THREADS

It only streams /v1/chat/completions, which the comparison uses.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy
import openvino
import openvino_genai


class Engine:
    """A thread that steps the pipeline."""

    def __init__(self, file: str, properties: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.enable_prefix_caching = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            file, scheduler, "CPU", properties
        )
        self.tokenizer = self._pipeline.get_tokenizer()
        self._numbers = itertools.count()
        self._new: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, tokens: list[int], count: int) -> queue.SimpleQueue[Any]:
        """Returns the queue of generated tokens, in lists; None marks the end."""
        told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._new.put((tokens, count, told))
        return told

    def _run(self) -> None:
        running: list[tuple[Any, Any]] = []
        while True:
            while not running or not self._new.empty():
                tokens, count, told = self._new.get()
                config = openvino_genai.GenerationConfig(
                    max_new_tokens=count, do_sample=False, ignore_eos=True
                )
                ids = openvino.Tensor(numpy.array([tokens], dtype=numpy.int64))
                handle = self._pipeline.add_request(next(self._numbers), ids, config)
                running.append((handle, told))
            self._pipeline.step()
            left = []
            for handle, told in running:
                while handle.can_read():
                    for output in handle.read().values():
                        told.put(list(output.generated_ids))
                if handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
                    left.append((handle, told))
                else:
                    told.put(None)
            running = left


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    engine: Engine

    def do_GET(self) -> None:
        self._start("application/json")
        self.wfile.write(json.dumps({"data": [{"id": "model"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        tokenizer = self.engine.tokenizer
        text = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        encoded = tokenizer.encode(text, add_special_tokens=False)
        prompt = encoded.input_ids.data[0].tolist()
        self._start("text/event-stream")
        told = self.engine.ask(prompt, body["max_tokens"])
        tokens: list[int] = []
        passed = ""
        while (new := told.get()) is not None:
            tokens += new
            text = tokenizer.decode(tokens)
            if text != passed and not text.endswith("�"):
                self._event({"choices": [{"index": 0, "delta": {"content": text[len(passed) :]}}]})
                passed = text
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _start(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def _event(self, content: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    file, port, threads = sys.argv[1:]
    Handler.engine = Engine(file, {"INFERENCE_NUM_THREADS": int(threads)})
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()

"""Serves verdicts of Intel's NPU compiler on the stub's programs over a socket.

A request is a line with the paths of an IR and of its weights, and the test that compiles it; the
reply is `accepted`, or `refused` and the compiler's message, with tabs between fields.
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import openvino as ov

from npu_compiler.npu_rules.operations import check_operations, check_whole_program
from npu_compiler.openvino_core import openvino_core
from npu_compiler.target_compiler import TargetCompiler

__all__ = ["Verdicts", "serving"]

_TARGET = "4000"  # the stub's name of its device


class Verdicts:
    """The verdicts of one run, as lines of JSON; refused programs are stored next to them."""

    def __init__(self, compiler: TargetCompiler, folder: Path) -> None:
        """Begins a run.

        Args:
            compiler: compiles each program.
            folder: folder of the record, which is emptied.
        """
        self._compiler = compiler
        self._folder = folder
        self._lock = threading.Lock()
        self._lines: list[dict[str, str]] = []
        folder.mkdir(parents=True, exist_ok=True)
        for former in folder.iterdir():
            former.unlink()

    def judge(self, graph: str, weights: str, test: str) -> str:
        """Returns the reply to a request."""
        model = openvino_core().read_model(graph, *filter(None, [weights]))
        report = self._compiler.compile(model, _TARGET)
        line = {
            "test": test,
            "reason": report.reason,
            "operation": report.operation,
            "rules": _refused_by_rules(model),
        }
        with self._lock:
            if not report.is_accepted:
                line["model"] = f"refused-{len(self._lines)}.xml"
                ov.save_model(model, self._folder / line["model"], compress_to_fp16=False)
            self._lines.append(line)
            with (self._folder / "verdicts.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        return "accepted" if report.is_accepted else f"refused\t{report.reason}"

    def __str__(self) -> str:
        refused = [line for line in self._lines if line["reason"]]
        found = f"{len(self._lines)} programs, {len(refused)} refused"
        lines = [f"compiler {self._compiler.version}: {found}; {self._folder / 'verdicts.jsonl'}"]
        for title, key, other in (
            ("the rules take, the compiler refuses", "reason", "rules"),
            ("the compiler takes, the rules refuse", "rules", "reason"),
        ):
            counts = Counter(line[key] for line in self._lines if line[key] and not line[other])
            lines += [f"{count:5} {title}: {why}" for why, count in counts.most_common()]
        return "\n".join(lines)


@contextlib.contextmanager
def serving(verdicts: Verdicts, address: Path) -> Iterator[None]:
    """Serves requests at a socket while the block runs."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            graph, weights, test = self.rfile.readline().decode().rstrip("\n").split("\t")
            self.wfile.write(f"{verdicts.judge(graph, weights, test)}\n".encode())

    class Server(socketserver.ThreadingUnixStreamServer):
        request_queue_size = 64

    with Server(str(address), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _refused_by_rules(model: ov.Model) -> str:
    found = [*check_whole_program(model), *check_operations(model, generation=_TARGET)]
    refused = [f"{one.operation}, {one.rule}" for one in found if one.verdict == "refused"]
    return "; ".join(dict.fromkeys(refused))

"""The registry of passes from other wheels and scripts, with a digest of their code."""

from __future__ import annotations

import hashlib
import re
import secrets
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_compiler.errors import PassError
from npu_compiler.plugins import Plugins, failing_line

if TYPE_CHECKING:
    import openvino as ov

    from npu_compiler.passes.infra.pass_base import GraphPass

__all__ = [
    "REGISTERED",
    "Registered",
    "code_digest",
    "graph_passes",
    "load_registered",
    "model_passes",
    "pass_failure",
    "registered_code",
    "rewrite_model",
]


@dataclass(frozen=True)
class Registered:
    """A registered pass.

    Attributes:
        name: name for disabled_passes.
        made: the pass over graphs, or the class of a pass over OpenVINO models, instantiated for
            each.
        before: name of the pass that it precedes, or None.
        after: name of the pass that it follows, or None.
        place: file and line of the class, for messages.
        code: digest of its sources.
    """

    name: str
    made: Any
    before: str | None
    after: str | None
    place: str
    code: str

    @property
    def is_over_graphs(self) -> bool:
        """Whether the pass runs before the conversion to OpenVINO."""
        return not isinstance(self.made, type)


REGISTERED: dict[str, Registered] = {}

_PLUGINS = Plugins(
    "npu_compiler.passes", REGISTERED, noun="passes", instead="Graphs are compiled without them."
)


def load_registered() -> tuple[Registered, ...]:
    """Returns the registered passes; the first call imports those of other wheels."""
    _PLUGINS.load()
    return tuple(REGISTERED.values())


def registered_code() -> str:
    """Returns a digest of all registered passes for cache keys; empty without any."""
    parts = [f"{row.name} {row.before} {row.after} {row.code}" for row in load_registered()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts else ""


def code_digest(module: str) -> str:
    """Returns a digest of the Python files of a module's package, or of its file.

    A module without a file, as in a notebook, has a different digest in each process.
    """
    package = sys.modules.get(module.partition(".")[0])
    origin = getattr(package, "__file__", None)
    if origin is None:
        return secrets.token_hex()
    is_package = hasattr(package, "__path__")
    files = sorted(Path(origin).parent.rglob("*.py")) if is_package else [Path(origin)]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def graph_passes(own: Iterable[GraphPass]) -> tuple[GraphPass, ...]:
    """Returns passes over graphs in order: `own`, with the registered passes inserted.

    A pass without a neighbour is the last of its stage. Passes with the same neighbour keep the
    order of registration.
    """
    rows = {row.name: row for row in load_registered() if row.is_over_graphs}
    passes = {one.name: one for one in own} | {name: row.made for name, row in rows.items()}
    order = [name for name in passes if name not in rows]
    for row in rows.values():
        stage = [name for name in order if passes[name].stage == row.made.stage]
        _insert(order, row, stage[-1], rows)
    return tuple(passes[name] for name in order)


def model_passes() -> tuple[Registered, ...]:
    """Returns the registered passes over OpenVINO models, in order."""
    rows = {row.name: row for row in load_registered() if not row.is_over_graphs}
    order: list[str] = []
    for row in rows.values():
        _insert(order, row, order[-1] if order else "", rows)
    return tuple(rows[name] for name in order)


def _insert(order: list[str], row: Registered, last: str, rows: dict[str, Registered]) -> None:
    if row.before is not None:
        order.insert(order.index(row.before), row.name)
        return
    anchor = row.after or last
    place = order.index(anchor) + 1 if anchor else 0
    while row.after and place < len(order) and _follows(rows.get(order[place]), anchor):
        place += 1
    order.insert(place, row.name)


def _follows(row: Registered | None, anchor: str) -> bool:
    return row is not None and row.after == anchor


def rewrite_model(model: ov.Model, *, disabled: Iterable[str] = ()) -> None:
    """Runs the registered passes over an OpenVINO model, in place.

    Raises:
        PassError: [pass-failed] if a pass raised an error; [pass-broke-graph] if a pass changed the
            model's inputs or outputs.
    """
    without = set(disabled)
    for row in model_passes():
        if row.name in without:
            continue
        from openvino.passes import (
            Manager,
        )  # late: imports OpenVINO, only needed with a registered pass

        before = [*_ports(model)]
        try:
            manager = Manager()
            manager.register_pass(row.made())
            manager.run_passes(model)
            model.validate_nodes_and_infer_types()
        except Exception as failure:
            raise pass_failure(row, failure) from failure
        after = [*_ports(model)]
        if before != after:
            changed = next(
                (pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]),
                (f"{len(before)} ports", f"{len(after)} ports"),
            )
            raise PassError(
                f"pass {row.name} ({row.place}): a pass must keep a model's inputs and outputs, "
                f"got {changed[1]} for {changed[0]}. Fix the pass, or compile with "
                f"disabled_passes=({row.name!r},).",
                code="pass-broke-graph",
            )


def _ports(model: ov.Model) -> Iterator[str]:
    for one in model.inputs:
        yield f"input {one.get_any_name()}: {one.get_element_type()} {one.get_partial_shape()}"
    for index, one in enumerate(model.outputs):
        source = one.get_node().input_value(0).get_node()
        # The CPU plugin does not write a result that is an input (OpenVINO 2026.4.1).
        kind = "an input" if source.get_type_name() == "Parameter" else "a result"
        yield f"output {index}: {kind}, {one.get_element_type()} {one.get_partial_shape()}"


# OpenVINO wraps an error of a matcher's callback in its own message.
_IN_CALLBACK = re.compile(
    r"CALLBACK HAS THROWN: (.*?)\s*\n\s*At:\s*\n\s*(.+?)\((\d+)\):", re.DOTALL
)


def pass_failure(row: Registered, failure: Exception) -> PassError:
    """Returns the error of a registered pass, with the line that raised it."""
    text, line = f"{type(failure).__name__}: {failure}", failing_line(failure, row.place)
    if found := _IN_CALLBACK.search(str(failure)):
        text, line = found[1], f"{found[2]}:{found[3]}"
    return PassError(
        f"pass {row.name} fails at {line} with {text}. Fix the pass, or compile with "
        f"disabled_passes=({row.name!r},).",
        code="pass-failed",
    )

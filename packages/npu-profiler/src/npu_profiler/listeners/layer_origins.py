"""Knows of layers which torch module and which Python line they come from, as their maker told.

Whoever makes programs tells it through npu_runtime.layer_recording.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_runtime.observe import Event

__all__ = ["LayerOrigins", "is_told_of_layers"]

CATEGORY = "layer_origins"


def is_told_of_layers(event: "Event") -> bool:
    """Whether this event of the runtime says where a program's layers come from."""
    return event.category == CATEGORY


class LayerOrigins:
    """The origins of all programs, by their names."""

    def __init__(self) -> None:
        self._programs: dict[str, Mapping[str, tuple[str, str]]] = {}

    def hear(self, event: "Event") -> None:
        """Takes what was told of one program, in place of what was told before."""
        origins = event.args.get("origins")
        if isinstance(origins, Mapping):
            self._programs[event.name] = origins

    def find(self, program: str, layer: str) -> dict[str, str]:
        """Returns `module` and `line` of a layer, as far as they are known.

        Args:
            program: the name of its program.
            layer: its name, as "addmm_35/aten.addmm.default": the call's name comes first.
        """
        origin = self._programs.get(program, {}).get(layer.partition("/")[0])
        if origin is None:
            return {}
        return {key: text for key, text in zip(("module", "line"), origin, strict=True) if text}

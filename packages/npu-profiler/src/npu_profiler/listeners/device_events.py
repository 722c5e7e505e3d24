"""Listens to `npu_runtime.observe`: programs, layers, compile phases, copies, fallbacks, counters.

Buffers events until they are taken, with bounded memory.
"""

import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_runtime.observe import Event

__all__ = ["DeviceEvents", "LayerOrigins", "is_told_of_layers"]

CATEGORY = "layer_origins"


def is_told_of_layers(event: "Event") -> bool:
    """Whether this event contains the origins of a program's layers."""
    return event.category == CATEGORY


class LayerOrigins:
    """The origins of all programs, by their names."""

    def __init__(self) -> None:
        self._programs: dict[str, Mapping[str, tuple[str, str]]] = {}

    def hear(self, event: "Event") -> None:
        """Stores the origins of one program, replacing earlier ones."""
        origins = event.args.get("origins")
        if isinstance(origins, Mapping):
            self._programs[event.name] = origins

    def find(self, program: str, layer: str) -> dict[str, str]:
        """Returns the known `module` and `line` of a program's layer.

        A layer name such as "addmm_35/aten.addmm.default" starts with the call's name.
        """
        origin = self._programs.get(program, {}).get(layer.partition("/")[0])
        if origin is None:
            return {}
        return {key: text for key, text in zip(("module", "line"), origin, strict=True) if text}


# About 400 bytes each, taken every half second; at most 400,000 occur per second.
MAX_EVENTS = 1_000_000
MAX_SAMPLES = 1_000


class DeviceEvents:
    """Collects the events of the runtime. Start it after the import of npu_runtime.

    Args:
        watch: called with each event; returns whether to keep it.
        max_events: maximum number of buffered events; later ones are only counted.
        max_samples: maximum number of values of one counter per `take`. If there are more, the
            smaller of every two is dropped, so that all peaks stay.

    Attributes:
        is_listening: whether it is recording.
        dropped: number of events lost here or in the runtime.
    """

    def __init__(
        self,
        *,
        watch: "Callable[[Event], bool] | None" = None,
        max_events: int = MAX_EVENTS,
        max_samples: int = MAX_SAMPLES,
    ) -> None:
        self.dropped = 0
        self._watch = watch
        self._events: deque[Event] = deque()
        self._max_events = max_events
        self._max_samples = max_samples
        self.is_listening = False

    def start(self) -> None:
        """Starts listening."""
        from npu_runtime import observe

        observe.add_listener(self.hear, with_kernels=False)  # ops are recorded separately
        self.is_listening = True

    def stop(self) -> None:
        """Collects pending events, and stops listening."""
        if not self.is_listening:
            return
        from npu_runtime import observe

        self.is_listening = False
        observe.flush()
        observe.remove_listener(self.hear)

    def fetch(self) -> None:
        """Fetches the runtime's buffered events (at most a million)."""
        if self.is_listening:
            from npu_runtime import observe

            observe.flush()

    def take(self) -> list["Event"]:
        """Returns the events since the last call in order of arrival, then counters."""
        taken: list[Event] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._events.popleft())
        samples = [event for event in taken if event.kind == "counter"]
        return [event for event in taken if event.kind != "counter"] + self._thinned(samples)

    def hear(self, events: Sequence["Event"]) -> None:
        """Receives events from the runtime."""
        # No lock: any thread may call this, including one interrupted here by a signal.
        for event in events:
            if event.kind == "counter" and event.category == "observe":
                self.dropped += int(event.value)
            elif self._watch is None or self._watch(event):
                if len(self._events) < self._max_events:
                    self._events.append(event)
                else:
                    self.dropped += 1

    def _thinned(self, samples: Sequence["Event"]) -> list["Event"]:
        by_counter: dict[tuple[object, ...], list[Event]] = defaultdict(list)
        for sample in samples:
            key = (sample.category, sample.name, sample.args.get("device_index"))
            by_counter[key].append(sample)
        kept: list[Event] = []
        for group in by_counter.values():
            while len(group) > self._max_samples:
                group = [
                    max(group[index : index + 2], key=lambda sample: sample.value)
                    for index in range(0, len(group), 2)
                ]
            kept += group
        return sorted(kept, key=lambda sample: sample.start_ns)

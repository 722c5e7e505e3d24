"""Listens to `npu_runtime.observe`: programs, compile phases, copies, fallbacks, counters.

Holds what was heard, as it was heard, within bounds of memory. What becomes of it in the picture is
in `assemble.py`; the events themselves are defined in npu_runtime.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_runtime.observe import Event

__all__ = ["DeviceEvents"]

# About 400 bytes each: half a gigabyte at the most.
MAX_EVENTS = 1_000_000
MAX_SAMPLES = 200_000


class DeviceEvents:
    """Collects the events of the runtime. To be started after npu_runtime has been imported.

    Args:
        max_events: How many spans and marks are kept; later ones are only counted.
        max_samples: How many values of counters are kept. When there are more, of every two the
            smaller goes: a longer recording shows coarser counters with all their peaks.

    Attributes:
        dropped: How many spans and marks came when the list was full, or were lost by the runtime.
    """

    def __init__(self, *, max_events: int = MAX_EVENTS, max_samples: int = MAX_SAMPLES) -> None:
        self.dropped = 0
        self._events: list[Event] = []
        self._samples: list[Event] = []
        self._max_events = max_events
        self._max_samples = max_samples
        self._is_listening = False

    @property
    def events(self) -> list["Event"]:
        """What was heard: spans and marks in the order of arrival, then counters."""
        return self._events + self._samples

    def start(self) -> None:
        """Begins to listen."""
        from npu_runtime import observe

        observe.add_listener(self.hear)
        self._is_listening = True

    def stop(self) -> None:
        """Collects what is still on its way, and stops listening."""
        if not self._is_listening:
            return
        from npu_runtime import observe

        self._is_listening = False
        observe.flush()
        observe.remove_listener(self.hear)

    def fetch(self) -> None:
        """Takes over what the runtime has gathered; it keeps a million events and no more."""
        if self._is_listening:
            from npu_runtime import observe

            observe.flush()

    def hear(self, events: Sequence["Event"]) -> None:
        """Takes events; the listener itself."""
        # No lock: any thread may call this, also one that a signal interrupted right here.
        kept = [event for event in events if event.kind != "counter"]
        room = max(self._max_events - len(self._events), 0)
        self.dropped += max(len(kept) - room, 0)
        self._events.extend(kept[:room])
        for event in events:
            if event.kind == "counter":
                if (event.category, event.name) == ("observe", "dropped_events"):
                    self.dropped += int(event.value)
                else:
                    self._samples.append(event)
        if len(self._samples) > self._max_samples:
            self._samples = _thinned(self._samples)


def _thinned(samples: Sequence["Event"]) -> list["Event"]:
    """Keeps the larger of every two neighbours of one counter."""
    by_counter: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for sample in samples:
        by_counter[sample.category, sample.name].append(sample)
    kept = []
    for group in by_counter.values():
        kept += [
            max(group[index : index + 2], key=lambda sample: sample.value)
            for index in range(0, len(group), 2)
        ]
    return sorted(kept, key=lambda sample: sample.start_ns)

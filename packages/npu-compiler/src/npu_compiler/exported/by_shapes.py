"""An exported model on a device whose programs have one shape each: a program for each of a call.

Where the device takes sizes that vary, or the model has none, there is one program.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from npu_command.whole_files import write_text
from npu_compiler.exported.manifest import Manifest
from npu_compiler.openvino_core import openvino_core
from npu_compiler.programs.fixed_shapes import with_shapes

__all__ = ["ByShapes", "Shapes", "has_one_shape", "with_fixed_shapes"]

Shapes = tuple[tuple[int, ...], ...]
_Loaded = TypeVar("_Loaded")

# Each keeps its own weights in the form that the device needs.
_KEPT = 8


def has_one_shape(device: str) -> bool:
    """Whether programs of a device have one shape each; see docs/reference/npu-driver-rules.md."""
    return device.startswith("NPU")


class ByShapes(Generic[_Loaded]):
    """The programs of a model; threads may share them."""

    def __init__(
        self,
        load: Callable[[Shapes | None], _Loaded],
        manifest: Manifest,
        is_from_cache: Callable[[_Loaded], bool],
        *,
        one_shape: bool,
    ) -> None:
        """Loads the program, if there is one for all calls.

        Args:
            load: given the shape of each input of the IR, or None for sizes as they were exported.
            manifest: of the folder.
            is_from_cache: whether the device compiled nothing for a program.
            one_shape: whether the device's programs have one shape each.
        """
        used = [port for port in manifest.inputs if port.port is not None]
        self._varies = any(not isinstance(size, int) for port in used for size in port.shape)
        self._varies = self._varies and one_shape
        self._load, self._is_from_cache = load, is_from_cache
        self._loaded: OrderedDict[Shapes | None, _Loaded] = OrderedDict()
        self._lock = threading.Lock()
        self.from_cache = True
        if not self._varies:
            self.get(())

    def get(self, shapes: Sequence[tuple[int, ...]]) -> _Loaded:
        """Returns the program for a call with inputs of these shapes."""
        key = tuple(shapes) if self._varies else None
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = loaded = self._load(key)
                self.from_cache = self.from_cache and self._is_from_cache(loaded)
            self._loaded.move_to_end(key)
            while len(self._loaded) > _KEPT:
                self._loaded.popitem(last=False)
            return self._loaded[key]


@contextlib.contextmanager
def with_fixed_shapes(path: Path, shapes: Shapes | None, place: Path | None) -> Iterator[Path]:
    """Yields a model's path, with fixed shapes if there are some.

    Args:
        path: of the IR.
        shapes: of its inputs, in order; None for the model as it is.
        place: where the changed model is kept; None for a folder that goes afterwards.
    """
    if shapes is None:
        yield path
        return
    with contextlib.ExitStack() as stack:
        if place is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="npu-compiler-")))
        fixed = place / path.name
        weights, link = path.with_suffix(".bin"), fixed.with_suffix(".bin")
        if weights.exists() and not link.exists():
            link.unlink(missing_ok=True)  # of an equal folder that is gone
            with contextlib.suppress(FileExistsError):  # another process links the same file
                link.symlink_to(weights.absolute())
        if not fixed.is_file():
            inputs = openvino_core().read_model(str(path)).inputs
            names = [port.get_node().get_friendly_name() for port in inputs]
            text = with_shapes(path.read_text(), dict(zip(names, shapes, strict=True)))
            write_text(fixed, text)
        yield fixed

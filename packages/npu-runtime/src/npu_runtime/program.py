"""Programs: compiled OpenVINO models that run on tensors without copying."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

from npu_runtime import _C, layer_recording
from npu_runtime._C import LayerRecord, Port
from npu_runtime.errors import InputError, KindError
from npu_runtime.public_calls import public_call

__all__ = ["IndexCheck", "Program", "Session", "load_program"]

_PRECISION = "INFERENCE_PRECISION_HINT"


@dataclass(frozen=True, kw_only=True)
class IndexCheck:
    """Index inputs or outputs that Program.check_indices validates in each run.

    A valid index is from 0 (from -size if ``wraps``) to size - 1.

    Attributes:
        what: description for messages: "an index of aten.embedding.default (model.py:12)".
        port: the integer input with the indices, or the output if ``is_output``.
        is_output: whether ``port`` is an output. Outputs are checked after the run, inputs before.
        size: size of the indexed dimension, if constant.
        size_port: otherwise, the input whose dimension ``size_dim`` is the size. Without
            ``size_dim``, the size is the largest element of this input (of this output if
            ``is_size_output``).
        size_dim: dimension of ``size_port``.
        is_size_output: whether ``size_port`` is an output.
        wraps: whether negative indices count from the end.
    """

    what: str
    port: int
    is_output: bool = False
    size: int | None = None
    size_port: int = 0
    size_dim: int | None = None
    is_size_output: bool = False
    wraps: bool = False


class _Runner:
    """Common base of programs and sessions: runs on tensors."""

    def __init__(self, native: "_C.Program | _C.Session") -> None:
        self._native = native

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        *,
        outputs: Sequence[torch.Tensor | None] | None = None,
        output_device: torch.device | str | None = None,
    ) -> list[torch.Tensor]:
        """Runs once and waits.

        Args:
            inputs: one contiguous tensor per input, in the order of ``inputs``, on npu or cpu, of
                the port's dtype and shape. Inputs are not copied.
            outputs: tensors to write into, by position; None allocates a new output.
            output_device: device of new outputs; by default that of the inputs (npu if any is on
                npu).

        Returns:
            One tensor per output, in the order of ``outputs``. New outputs do not share memory.

        Raises:
            InputError: an input or a given output does not fit its port (code ``program-input``).
            ProgramError: the driver failed (code ``program-run``).
            IndexRangeError: an index is out of range (code ``index-range``); see check_indices.
        """
        given = None if outputs is None else list(outputs)
        return self._native._run(list(inputs), given, _home(inputs, output_device))

    def layers(self) -> tuple[LayerRecord, ...]:
        """Returns the times of the layers of the latest run, in the device's order.

        Returns:
            Name, type, the device's kernel and microseconds per layer; empty before the first run,
            or for a program loaded without ``profiling=True``.

        Raises:
            DriverError: the driver could not read the times (code ``driver-call``).
        """
        return tuple(self._native.layers())


class Program(_Runner):
    """A model compiled for a device, from :func:`load_program`. Threads may share it."""

    _native: _C.Program

    @property
    def name(self) -> str:
        """Name given at loading, shown in traces and errors."""
        return self._native.name

    @property
    def device(self) -> str:
        """The vendor's name of the device, for example ``NPU`` or ``CPU``."""
        return self._native.device

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Name, dtype and shape of each input; a dynamic dimension is -1."""
        return self._native.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Name, dtype and shape of each output; a dynamic dimension is -1."""
        return self._native.outputs

    @property
    def compile_time_s(self) -> float:
        """Seconds of compilation, or of the import from the cache."""
        return self._native.compile_time_s

    @property
    def loaded_from_cache(self) -> bool:
        """Whether a compiled blob was loaded instead of compiling."""
        return self._native.loaded_from_cache

    def check_indices(self, checks: Sequence[IndexCheck]) -> None:
        """Makes each later run raise for an index out of range, instead of reading other memory.

        Indices in inputs are checked before the run. Indices in outputs, and in inputs that depend
        on enqueued work, are checked after the run: the error is raised like other errors of
        enqueued runs, and the device remains usable. Call it before the first run.

        Args:
            checks: the checks, shared by threads, sessions and captured graphs.

        Raises:
            InputError: a port does not exist, or is not an integer port (code ``program-input``).
        """
        self._native.check_indices([_C.IndexCheck(*astuple(check)) for check in checks])

    @public_call
    def get_property(self, key: str) -> str:
        """Returns a property of the compiled model as the vendor prints it; empty if absent."""
        return self._native.get_property(key) if key.isascii() else ""

    def session(self) -> "Session":
        """Creates an execution context, with fresh variables (for example a KV cache)."""
        return Session(self, self._native._session())

    def __repr__(self) -> str:
        ports = f"{len(self.inputs)} in, {len(self.outputs)} out"
        return f"Program({self.name!r}, device={self.device!r}, {ports})"


class Session(_Runner):
    """An execution context with separate variables. One run at a time: a second thread waits."""

    _native: _C.Session

    def __init__(self, program: Program, native: _C.Session) -> None:
        super().__init__(native)
        self.program = program

    def reset(self) -> None:
        """Sets all variables back to their initial values."""
        self._native.reset()


@public_call
def load_program(
    model: str | os.PathLike[str] | bytes,
    weights: "bytes | bytearray | memoryview | torch.Tensor | None" = None,
    *,
    name: str,
    options: Mapping[str, str],
    device_index: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    profiling: bool = False,
) -> Program:
    """Compiles an OpenVINO model for the npu device, or imports a compiled one.

    Args:
        model: path of an IR file (``.xml`` next to its ``.bin``, which is memory-mapped), bytes of
            the xml, or path of a ``.blob`` compiled ahead of time. A blob is imported, and
            ``options``, ``cache_dir`` and ``profiling`` do not apply to it.
        weights: for xml bytes: the weights that the xml refers to. The program keeps them alive; do
            not change them.
        name: shown in traces and errors.
        options: OpenVINO properties. ``INFERENCE_PRECISION_HINT`` is required, because the default
            differs between devices and may be bf16 on the CPU plugin.
        device_index: index of the npu device; the current one by default.
        cache_dir: directory for compiled blobs; a later load of the same model with the same
            options does not compile. It is created if missing.
        profiling: whether the device records times per layer; implied during a recording of layers
            (layer_recording.py). Such a program neither reads nor writes the cache, because on some
            devices a blob compiled without profiling does not return layer times.

    Raises:
        InputError: an argument breaks a rule above (code ``program-load-input``), or has the wrong
            type (code ``argument-kind``).
        ProgramError: OpenVINO rejects the model (code ``program-load``).
        DeviceError: there is no device (code ``device-absent``).
    """
    if _PRECISION not in options:
        raise InputError(
            f"load_program({name!r}): `options` must set {_PRECISION}, got {sorted(options)}. "
            'Choose "f32", "f16" or "bf16".',
            code="program-load-input",
        )
    path, text = _source(model, name)
    settings = {str(key): str(value) for key, value in options.items()}
    if profiling or layer_recording.is_wanted():
        settings["PERF_COUNT"] = "YES"
    elif cache_dir is not None:
        settings["CACHE_DIR"] = os.fspath(cache_dir)
    index = _C.current_device() if device_index is None else device_index
    buffer = weights.numpy() if isinstance(weights, torch.Tensor) else weights
    return Program(_C.Program.load(name, index, path, text, buffer, sorted(settings.items())))


def _source(model: str | os.PathLike[str] | bytes, name: str) -> tuple[str, bytes]:
    """Returns the path and the text of a model; exactly one of them is not empty."""
    if isinstance(model, bytes):
        if not model:
            raise InputError(
                f"load_program({name!r}): `model` must be the text of an OpenVINO .xml, got none. "
                "Pass the text, or a path.",
                code="program-load-input",
            )
        return "", model
    path = Path(model)
    if not path.is_file():
        raise InputError(
            f"load_program({name!r}): `model` must be an existing file, got {path}. Pass the path "
            "of an OpenVINO .xml, or of a .blob.",
            code="program-load-input",
        )
    return os.fspath(path), b""


def _home(inputs: Sequence[torch.Tensor], output_device: torch.device | str | None) -> torch.device:
    """Returns the device of new outputs."""
    if output_device is None:
        try:
            on_cpu = bool(inputs) and all(tensor.device.type == "cpu" for tensor in inputs)
        except (AttributeError, TypeError, RuntimeError, ValueError) as error:
            raise KindError(
                f"Program.run: `inputs` must be a sequence of tensors, got "
                f"{type(inputs).__name__}: {error}. Pass one tensor per input.",
                code="argument-kind",
            ) from error
        return _CPU if on_cpu else _NPU
    try:
        device = torch.device(output_device)
    except RuntimeError:  # not the name of a device
        device = None
    if device is None or device.type not in ("cpu", "npu"):
        raise InputError(
            f"Program.run: `output_device` must be npu or cpu, got "
            f"{ascii(str(output_device))[:80]}. Move the result afterwards.",
            code="program-input",
        )
    return device


_CPU = torch.device("cpu")
_NPU = torch.device("npu")

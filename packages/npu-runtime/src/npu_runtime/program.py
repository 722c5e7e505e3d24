"""Programs: compiled OpenVINO models that run on tensors without copying them."""

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
    """Indices that a program looks at in each run, see Program.check_indices.

    An index is from 0, or from -size where ``wraps`` is set, to size - 1.

    Attributes:
        what: whose indices, for messages: "an index of aten.embedding.default (model.py:12)".
        port: the input that holds them, an integer tensor; or with ``is_output`` the output.
        is_output: see above. Such indices are looked at after the run, others before it.
        size: of what is indexed, when it is a number.
        size_port: without a number: the input whose dimension ``size_dim`` it is. Without
            ``size_dim`` its greatest element, or, with ``is_size_output``, that of the output.
        size_dim: see above.
        is_size_output: see above.
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
    """What a program and a session share: running on tensors."""

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
                the port's dtype and shape. They are not copied.
            outputs: tensors to write into, by position; None for those to be allocated.
            output_device: where new outputs live; by default where the inputs do (npu when any is).

        Returns:
            One tensor per output, in the order of ``outputs``. New ones share memory with nothing.

        Raises:
            InputError: an input or a given output does not fit its port (code ``program-input``).
            ProgramError: the vendor's software failed (code ``program-run``).
            IndexRangeError: an index is out of range (code ``index-range``); see check_indices.
        """
        given = None if outputs is None else list(outputs)
        return self._native._run(list(inputs), given, _home(inputs, output_device))

    def layers(self) -> tuple[LayerRecord, ...]:
        """What each layer of the latest run took, in the device's order.

        Returns:
            Name, kind, the device's kernel and microseconds per layer; nothing before the first
            run, or for a program that was loaded without ``profiling=True``.

        Raises:
            DriverError: the driver failed to read them (code ``driver-call``).
        """
        return tuple(self._native.layers())


class Program(_Runner):
    """A model compiled for a device, from :func:`load_program`. Threads may share it."""

    _native: _C.Program

    @property
    def name(self) -> str:
        """The name it was loaded under, which traces and errors show."""
        return self._native.name

    @property
    def device(self) -> str:
        """The vendor's name of the device that runs it, for example ``NPU`` or ``CPU``."""
        return self._native.device

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Name, dtype and shape of each input; -1 stands for a dynamic dimension."""
        return self._native.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Name, dtype and shape of each output; -1 stands for a dynamic dimension."""
        return self._native.outputs

    @property
    def compile_time_s(self) -> float:
        """Seconds that compiling, or importing from the cache, took."""
        return self._native.compile_time_s

    @property
    def loaded_from_cache(self) -> bool:
        """Whether a compiled blob served, so that nothing was compiled."""
        return self._native.loaded_from_cache

    def check_indices(self, checks: Sequence[IndexCheck]) -> None:
        """From now on each run raises for an index out of range, in place of reading anything.

        Indices in inputs are looked at before the run. Where that would have to wait for work that
        a stream has taken over, and for indices in outputs, the run's end tells: its error comes as
        those of enqueued runs do, and the device stays as it is. Call it before the first run.

        Args:
            checks: what to look at. Threads, sessions and captured graphs share them.

        Raises:
            InputError: a port is not there, or holds no integers (code ``program-input``).
        """
        self._native.check_indices([_C.IndexCheck(*astuple(check)) for check in checks])

    @public_call
    def get_property(self, key: str) -> str:
        """A property of the compiled model as the vendor prints it; empty when it has none."""
        return self._native.get_property(key) if key.isascii() else ""

    def session(self) -> "Session":
        """A new execution context: its variables (a KV cache, say) start fresh, and persist."""
        return Session(self, self._native._session())

    def __repr__(self) -> str:
        ports = f"{len(self.inputs)} in, {len(self.outputs)} out"
        return f"Program({self.name!r}, device={self.device!r}, {ports})"


class Session(_Runner):
    """An execution context with variables of its own. One run at a time: a second thread waits."""

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
        model: path of an IR file (``.xml``, its ``.bin`` beside it, mapped into memory), or the
            bytes of the xml; or path of a ``.blob`` that the device's compiler made ahead of time.
            It is imported, and ``options``, ``cache_dir`` and ``profiling`` do not apply to it.
        weights: with bytes: the weights that the xml refers to. Kept alive by the program, and not
            to be changed.
        name: shown in traces and errors.
        options: OpenVINO's properties. ``INFERENCE_PRECISION_HINT`` must be among them: devices
            differ in their default, and the CPU plugin's may be bf16.
        device_index: index of the npu device; the current one by default.
        cache_dir: directory for compiled blobs; a later load of the same model with the same
            options compiles nothing. It is created when it is missing.
        profiling: whether the device records times per layer; it does also while somebody records
            layers (layer_recording.py). Such a program uses no blob and leaves none: a blob that
            was compiled without does not tell layers on every device.

    Raises:
        InputError: an argument breaks a rule above (code ``program-load-input``), or is of another
            kind (code ``argument-kind``).
        ProgramError: OpenVINO refuses the model (code ``program-load``).
        DeviceError: no device serves (code ``device-absent``).
    """
    if _PRECISION not in options:
        raise InputError(
            f"load_program({name!r}): options must set {_PRECISION}, got {sorted(options)}. "
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
    """The path or the text of a model; exactly one of the two is not empty."""
    if isinstance(model, bytes):
        if not model:
            raise InputError(
                f"load_program({name!r}): the model's text is empty.", code="program-load-input"
            )
        return "", model
    path = Path(model)
    if not path.is_file():
        raise InputError(
            f"load_program({name!r}): there is no file {path}. Pass the path of an OpenVINO .xml, "
            "or of a .blob.",
            code="program-load-input",
        )
    return os.fspath(path), b""


def _home(inputs: Sequence[torch.Tensor], output_device: torch.device | str | None) -> torch.device:
    """Where new outputs live."""
    if output_device is None:
        try:
            on_cpu = bool(inputs) and all(tensor.device.type == "cpu" for tensor in inputs)
        except (AttributeError, TypeError, RuntimeError, ValueError) as error:
            raise KindError(
                f"Program.run: inputs must be a sequence of tensors, got {type(inputs).__name__}: "
                f"{error}. Pass one tensor per input.",
                code="argument-kind",
            ) from error
        return _CPU if on_cpu else _NPU
    try:
        device = torch.device(output_device)
    except RuntimeError:  # it is no device's name
        device = None
    if device is None or device.type not in ("cpu", "npu"):
        raise InputError(
            f"Program.run: output_device must be npu or cpu, got {ascii(str(output_device))[:80]}. "
            "Move the result afterwards.",
            code="program-input",
        )
    return device


_CPU = torch.device("cpu")
_NPU = torch.device("npu")

"""Records n steps of a running job, triggered by a file.

    from npu_profiler import dynamic_profile

    dynamic_profile.init("profiling")  # writes profiling/profiler_config.json
    for batch in loader:
        train(batch)
        dynamic_profile.step()

Each time the file is saved, the job records the number of steps in it. The interface is that of
torch_npu's `dynamic_profile`.
"""

import atexit
import contextlib
import dataclasses
import json
import os
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_profiler.errors import TraceError
from npu_profiler.output_file import unwritable
from npu_profiler.recording.recorder import Recording, TraceOptions
from npu_runtime.public_calls import public_call

__all__ = ["CONFIG_NAME", "ProfilerConfig", "init", "read_config", "start", "step"]

CONFIG_NAME = "profiler_config.json"
# An editor may write a file in pieces; a file still incomplete after this is an error.
_WRITING_S = 1.0


@dataclass(frozen=True, slots=True)
class ProfilerConfig:
    """The content of profiler_config.json, under torch_npu's names."""

    active: int = 1  # number of recorded steps
    start_step: int = 0  # number of calls of `step` before the start; the next one if it has passed
    prof_dir: str = ""  # directory of the traces; the file's directory if empty
    with_stack: bool = False  # record Python calls
    with_modules: bool = False  # record calls of torch modules
    profile_memory: bool = False  # record the memory of the process
    layers: bool = False  # record layers of programs loaded during the recording

    def __post_init__(self) -> None:
        """Raises [dynamic-profile] for a value of the wrong type."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not field.type:
                kind = getattr(field.type, "__name__", field.type)
                raise _refused(f"`{field.name}` must be of type {kind}, got {value!r}")
        for name, least in (("active", 1), ("start_step", 0)):
            if getattr(self, name) < least:
                raise _refused(f"`{name}` must be at least {least}, got {getattr(self, name)}")


@public_call
def init(path: str | os.PathLike[str]) -> None:
    """Watches profiler_config.json in a directory from now on.

    Creates the directory and the file if missing. An existing file counts when it is saved again.

    Args:
        path: the directory.

    Raises:
        TraceError: [output-unwritable] for a path that is not a writable directory,
            [dynamic-profile] for a second directory.
    """
    global _watch
    folder = Path(path).absolute()
    if _watch is not None:
        if _watch.folder != folder:
            raise TraceError(
                f"`dynamic_profile.init` must be called with one directory, got {folder} after "
                f"{_watch.folder}. Call it once.",
                code="dynamic-profile",
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_template(folder)
    except OSError as error:
        raise unwritable(folder, "dynamic_profile.init", error) from None
    _watch = _Watch(folder)
    atexit.register(_watch.finish)


def step() -> None:
    """Ends a step of the job, and starts or ends a recording as the file requests.

    Problems with the file or the trace are warnings, and the job continues. Without a change, a
    call takes a few microseconds.

    Raises:
        TraceError: [dynamic-profile] before `init`.
    """
    _watched("step").step()


@public_call
def start(config_path: str | os.PathLike[str] | None = None) -> None:
    """Starts a recording now, with the steps of a file; has no effect during a recording.

    Args:
        config_path: a file like profiler_config.json; by default that of `init`.

    Raises:
        TraceError: [dynamic-profile] before `init`, or for a file that cannot be used.
    """
    watch = _watched("start")
    config = read_config(watch.path if config_path is None else Path(config_path))
    watch.begin(config)


@public_call
def read_config(path: Path) -> ProfilerConfig:
    """Reads a configuration; raises [dynamic-profile] if it is missing or invalid."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _refused(f"{path} must contain JSON, got: {error}") from None
    if not isinstance(content, dict):
        raise _refused(f"{path} must hold an object, got {type(content).__name__}")
    known = [field.name for field in dataclasses.fields(ProfilerConfig)]
    if other := sorted(content.keys() - set(known)):
        raise _refused(f"keys of {path} must be among {', '.join(known)}, got {', '.join(other)}")
    return ProfilerConfig(**content)


class _Watch:
    """Watches the file of a directory for this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / CONFIG_NAME
        self._seen = self._stamp()
        self._steps = 0
        self._waiting: ProfilerConfig | None = None
        self._recording: Recording | None = None
        self._left = 0
        self._span: Any = None

    def step(self) -> None:
        self._steps += 1
        if self._recording is not None:
            self._left -= 1
            if self._left:
                self._end_span()
                self._begin_span()
            else:
                self.finish()
        self._look()
        if self._waiting is not None and self._steps >= self._waiting.start_step:
            config, self._waiting = self._waiting, None
            try:
                self.begin(config)
            except TraceError as error:
                _warn(str(error))
            except OSError as error:
                _warn(f"dynamic_profile: nothing is recorded: {error}.")

    def begin(self, config: ProfilerConfig) -> None:
        if self._recording is not None:
            return
        folder = self.folder / config.prof_dir
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # ValueError: an invalid directory name
            raise _refused(
                f"`prof_dir` must be a writable directory, got {str(folder)!r} ({error})"
            ) from None
        options = TraceOptions(
            stacks=config.with_stack,
            modules=config.with_modules,
            memory=config.profile_memory,
            layers=config.layers,
        )
        name = f"process-{os.getpid()}-step-{self._steps}.json.gz"
        recording = Recording(folder / name, options)
        recording.start()
        self._recording, self._left = recording, config.active
        self._begin_span()

    def finish(self) -> None:
        """Writes an unfinished recording, also at exit."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        self._end_span()
        try:
            recording.finish()
        except OSError as error:
            _warn(f"{recording.path} was not written: {error}.")

    def _look(self) -> None:
        """Reads the file if it was saved since the last check."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return
        try:
            self._waiting = read_config(self.path)
        except TraceError as error:
            if time.time() - stamp[0] / 1e9 < _WRITING_S:
                return
            _warn(str(error))
        self._seen = stamp

    def _stamp(self) -> tuple[int, int, int] | None:
        with contextlib.suppress(OSError):
            status = self.path.stat()
            return status.st_mtime_ns, status.st_size, status.st_ino
        return None

    def _begin_span(self) -> None:
        from torch.profiler import record_function  # late: only a recording needs torch

        # The step names of torch's profiler, which `npu-profiler summary` counts.
        self._span = record_function(f"ProfilerStep#{self._steps}")
        self._span.__enter__()

    def _end_span(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(None, None, None)


_watch: _Watch | None = None


def _watched(name: str) -> _Watch:
    if _watch is None:
        raise TraceError(
            f"`dynamic_profile.{name}` must be called after init, got no directory. Call "
            "dynamic_profile.init(directory) first.",
            code="dynamic-profile",
        )
    return _watch


def _write_template(folder: Path) -> None:
    """Writes the file atomically if it is missing, from one of several ranks."""
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".") as draft:
        draft.write(json.dumps(dataclasses.asdict(ProfilerConfig()), indent=2) + "\n")
        draft.flush()
        with contextlib.suppress(FileExistsError):
            (folder / CONFIG_NAME).hardlink_to(draft.name)


def _refused(reason: str) -> TraceError:
    return TraceError(
        f"dynamic_profile: {reason}. Correct the file and save it again.", code="dynamic-profile"
    )


def _warn(message: str) -> None:
    warnings.warn(f"{message} The job goes on.", RuntimeWarning, stacklevel=4)

"""Python processes forked from one with torch imported, instead of fresh interpreters.

Tests start hundreds of processes, each of which would spend a second or more on importing torch.
`run` and `start` take the arguments of `subprocess.run` and `subprocess.Popen` that tests use. A
command that begins with this environment's interpreter, or with one of its Python scripts, runs in
a child forked from a server. The server has imported torch without any backend, opened no device
and started no thread; the child takes over environment, directory and files, loads the backends as
`import torch` would have, and runs the command as `__main__`.

A new process is started if the difference could matter: for another program, for interpreter
options other than -c, -m and -u, and if a variable differs that is read when an interpreter or a
library is loaded. PYTHONPATH may name more folders, if their modules do not exist elsewhere. Tests
of imports use `subprocess`.

A child ends like an interpreter, with the destructors of all libraries that it has loaded.
Destructors of the server's libraries, such as torch, are skipped: they take 0.15 s.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import multiprocessing.process
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

__all__ = ["run", "start"]

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
# Prefixes of variables that are read when an interpreter or a library is loaded.
_READ_AT_START = (
    *("PYTHON", "LD_", "LANG", "LC_", "TZ", "MALLOC_", "GLIBC_", "ASAN_", "LSAN_", "UBSAN_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "PYTORCH_", "ATEN_"),
)
_READ_BY_PRELOADED = ("TORCHDYNAMO_", "TORCHINDUCTOR_", "HF_", "TRANSFORMERS_")
_READ_WHEN_USED = {_AUTOLOAD, "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR"}
# Environment of a server, whatever a test has changed before it needs one.
_ENVIRONMENT = dict(os.environ)
_PATH = "PYTHONPATH"


# ------------------------------------------------------------------------------------ the client


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    input: str | None = None,  # noqa: A002
    stdin: int | IO[str] | None = None,
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = True,
    text: bool = True,
    preload: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end and returns its output as text.

    Args:
        command: the program and its arguments.
        env: its environment; by default this process's.
        cwd: its working directory.
        input: text to read from its standard input, which is empty by default.
        stdin: a file to read instead.
        timeout: in seconds.
        check: raise an error if it fails.
        capture_output: True, for compatibility with `subprocess.run`.
        text: True, likewise.
        preload: modules that the server imports in addition to torch. Each combination has a
            server.

    Raises:
        subprocess.TimeoutExpired: it did not end within `timeout` seconds, and was killed.
        subprocess.CalledProcessError: it failed, and `check` is set.
    """
    assert capture_output
    assert text
    arguments = list(map(str, command))
    environment = dict(os.environ if env is None else env)
    if not _can_fork(arguments, environment, cwd, preload):
        return subprocess.run(
            arguments, env=environment, cwd=cwd, input=input, timeout=timeout, check=check,
            stdin=stdin if input is None else None, capture_output=True, text=True,
        )  # fmt: skip
    with contextlib.ExitStack() as files:
        if stdin in (None, subprocess.DEVNULL) or input is not None:
            given = files.enter_context(tempfile.TemporaryFile("w+"))
            given.write(input or "")
            given.seek(0)
        else:
            given = files.enter_context(_duplicate(stdin, "r"))
        outputs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
        process = _Forked(arguments, environment, cwd, [given, *outputs], preload=preload)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired as expired:
            process.kill()
            process.wait()
            expired.stdout, expired.stderr = map(_read_whole, outputs)
            raise
        out, err = map(_read_whole, outputs)
    done = subprocess.CompletedProcess(arguments, process.wait(), out, err)
    if check:
        done.check_returncode()
    return done


def start(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stdin: int | IO[str] | None = None,
    stdout: int | IO[str] | None = None,
    stderr: int | IO[str] | None = None,
    start_new_session: bool = False,
    preload: Sequence[str] = (),
) -> _Forked | subprocess.Popen[str]:
    """Starts a command; returns an object with the members of `subprocess.Popen` in text mode."""
    arguments = list(map(str, command))
    environment = dict(os.environ if env is None else env)
    if not _can_fork(arguments, environment, cwd, preload):
        return subprocess.Popen(
            arguments, env=environment, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr,
            start_new_session=start_new_session, text=True,
        )  # fmt: skip
    ours: list[IO[str] | None] = []
    theirs: list[IO[str]] = []
    for number, wanted in enumerate((stdin, stdout, stderr)):
        mode = "r" if number == 0 else "w"
        if wanted == subprocess.PIPE:
            ends = os.pipe()
            theirs.append(os.fdopen(ends[0 if number == 0 else 1], mode))
            ours.append(os.fdopen(ends[1 if number == 0 else 0], "w" if number == 0 else "r"))
            continue
        ours.append(None)
        if wanted == subprocess.STDOUT:
            theirs.append(_duplicate(theirs[1], mode))
        elif wanted == subprocess.DEVNULL:
            theirs.append(Path(os.devnull).open(mode))  # noqa: SIM115
        else:
            theirs.append(_duplicate(number if wanted is None else wanted, mode))
    try:
        return _Forked(
            arguments, environment, cwd, theirs, ours, start_new_session, preload=preload
        )
    finally:
        for file in theirs:
            file.close()


def _duplicate(source: int | IO[str], mode: str) -> IO[str]:
    return os.fdopen(os.dup(source if isinstance(source, int) else source.fileno()), mode)


def _read_whole(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


class _Forked:
    """A forked process: the part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        cwd: str | os.PathLike[str] | None,
        files: Sequence[IO[str]],
        ours: Sequence[IO[str] | None] = (None, None, None),
        start_new_session: bool = False,
        preload: Sequence[str] = (),
    ) -> None:
        self.args = arguments
        self.stdin, self.stdout, self.stderr = ours
        self.returncode: int | None = None
        self._texts: dict[int, str] = {}
        self._threads: list[threading.Thread] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(_server_address(tuple(preload)))
        request = {
            "arguments": arguments,
            "environment": dict(environment),
            "directory": str(cwd or Path.cwd()),
            "start_new_session": start_new_session,
        }
        text = json.dumps(request).encode()
        rights = array.array("i", [file.fileno() for file in files])
        header = len(text).to_bytes(8, "little")
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        self._socket.sendmsg([header], ancillary)
        self._socket.sendall(text)
        self._answers = self._socket.makefile("r")
        self.pid = self._read_number()

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code, negative for a signal."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._socket, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._read_number()
            self._answers.close()
            self._socket.close()
        return self.returncode

    def poll(self) -> int | None:
        """Returns the exit code if the process has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(
        self,
        input: str | None = None,  # noqa: A002
        timeout: float | None = None,
    ) -> tuple[str | None, str | None]:
        """Writes the input, reads all output, and waits for the end.

        After a timeout it can be called again without losing output.
        """
        if self._threads is None:
            self._threads = [
                threading.Thread(target=self._read, args=(index, file), daemon=True)
                for index, file in enumerate((self.stdout, self.stderr))
                if file is not None and not file.closed
            ]
            if self.stdin is not None and not self.stdin.closed:
                write = threading.Thread(target=self._write, args=(input or "",), daemon=True)
                self._threads.append(write)
            for thread in self._threads:
                thread.start()
        end_s = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if end_s is None else max(0, end_s - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if end_s is None else max(0, end_s - time.monotonic()))
        return self._texts.get(0), self._texts.get(1)

    def _read_number(self) -> int:
        line = self._answers.readline()
        if not line:
            raise RuntimeError("the server of forked processes has ended")
        return int(line)

    def _read(self, index: int, file: IO[str]) -> None:
        with file:
            self._texts[index] = file.read()

    def _write(self, text: str) -> None:
        assert self.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.stdin.write(text)
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()

    def send_signal(self, number: int) -> None:
        """Sends a signal if the process has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> _Forked:
        return self

    def __exit__(self, *error: object) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()
        self.wait()


def _can_fork(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
    preload: Sequence[str],
) -> bool:
    program, *rest = arguments
    if program == sys.executable:
        rest = rest[1:] if rest[:1] == ["-u"] else rest
        first = rest[0] if rest else "-"
        known = ("-c", "-m") if len(rest) > 1 else ()
        is_file = not first.startswith("-") and Path(cwd or "", first).is_file()
        is_known = first in known or is_file
    else:
        is_known = _is_script(program)
    read = _READ_AT_START + (_READ_BY_PRELOADED if preload else ())
    names = {name for name in {*environment, *_ENVIRONMENT} if name.startswith(read)}
    changed = {
        name for name in names - _READ_WHEN_USED if environment.get(name) != _ENVIRONMENT.get(name)
    }
    return is_known and (
        not changed or (changed == {_PATH} and not _is_shadowed(environment.get(_PATH, "")))
    )


def _is_shadowed(path: str) -> bool:
    """Whether a new folder of PYTHONPATH has a module that Python also finds elsewhere."""
    former = _folders(_ENVIRONMENT.get(_PATH, ""))
    new = [Path(folder) for folder in _folders(path) if folder not in former]
    names = {file.name.partition(".")[0] for folder in new for file in folder.glob("*")}
    at_start = {"sitecustomize", "usercustomize"} & names
    return bool(at_start) or any(
        name.isidentifier() and importlib.util.find_spec(name) is not None for name in names
    )


def _folders(path: str) -> list[str]:
    return [folder for folder in path.split(os.pathsep) if folder]


def _is_script(program: str) -> bool:
    """Whether a program is a Python script of this environment."""
    if Path(program).parent != Path(sys.executable).parent or not Path(program).is_file():
        return False
    with Path(program).open("rb") as file:
        return file.readline().strip() == b"#!" + sys.executable.encode()


_servers: dict[tuple[int, tuple[str, ...]], str] = {}


def _server_address(preload: tuple[str, ...]) -> str:
    """Returns the address of this process's server for these modules; starts it once."""
    key = os.getpid(), preload
    if key not in _servers:
        address = f"{tempfile.mkdtemp(prefix='forked-python-')}/socket"
        control, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, __file__, address, str(theirs.fileno()), *preload],
            pass_fds=[theirs.fileno()],
            env=_ENVIRONMENT | {_AUTOLOAD: "0"},
        )
        theirs.close()
        if control.recv(1) != b"!":
            raise RuntimeError(f"the server of forked processes ended with {process.wait()}")
        _servers[key] = address
        atexit.register(_stop, control, process, os.getpid(), Path(address))
    return _servers[key]


def _stop(
    control: socket.socket, process: subprocess.Popen[bytes], owner: int, address: Path
) -> None:
    if os.getpid() == owner:
        control.close()
        process.wait()
        shutil.rmtree(address.parent, ignore_errors=True)


# ------------------------------------------------------------------------------------ the server


def _serve(address: str, control: socket.socket, modules: list[str]) -> dict[str, Any] | None:
    """Forks per request; returns None in the server at its end, and the request in each child."""
    for module in ("numpy", "torch", *modules):
        importlib.import_module(module)
    _leave_out_destructors()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(64)
    gc.collect()
    gc.freeze()  # keeps the children's collections from copying pages
    control.sendall(b"!")
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(control, selectors.EVENT_READ)
        ends: dict[int, tuple[int, socket.socket]] = {}
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    return None
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    request, files = _receive(connection)
                    pid = os.fork()
                    if pid == 0:
                        for inherited in (listener, control, connection):
                            inherited.close()
                        for end, (_, other) in ends.items():
                            os.close(end)
                            other.close()
                        return request | {"files": files}
                    for file in files:
                        os.close(file)
                    end = os.pidfd_open(pid)
                    ends[end] = pid, connection
                    selector.register(end, selectors.EVENT_READ)
                    with contextlib.suppress(OSError):  # the client may be gone
                        connection.sendall(f"{pid}\n".encode())
                    continue
                end = key.fd
                selector.unregister(end)
                pid, connection = ends.pop(end)
                os.close(end)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):
                    connection.sendall(f"{code}\n".encode())
                connection.close()


def _leave_out_destructors() -> None:
    """Ends a process when its exit reaches the handlers registered before this call.

    C runs exit handlers in reverse order. C's buffered output is still written.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
    libc["__cxa_atexit"](ctypes.cast(libc.fflush, ctypes.c_void_p), None, None)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    header, files, _, _ = socket.recv_fds(connection, 8, 3)
    left = int.from_bytes(header, "little")
    parts = []
    while left:
        parts.append(connection.recv(left))
        left -= len(parts[-1])
    return json.loads(b"".join(parts)), list(files)


def _become(request: dict[str, Any]) -> list[str]:
    """Takes over a request's files, environment and directory; returns the remaining command."""
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # the server's till now
    if request["start_new_session"]:
        os.setsid()
    for number, file in enumerate(request["files"]):
        os.dup2(file, number)
        os.close(file)
    former = _folders(os.environ.get(_PATH, ""))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    # The server may have been started in the background, where a shell ignores ctrl-c.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kept = [folder for folder in sys.path[1:] if folder not in former]
    sys.path[1:] = [*_folders(os.environ.get(_PATH, "")), *kept]
    arguments = request["arguments"]
    if arguments[0] == sys.executable:
        arguments = arguments[1:]
    is_unbuffered = arguments[0] == "-u" or bool(os.environ.get("PYTHONUNBUFFERED"))
    if arguments[0] == "-u":
        arguments = arguments[1:]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        file = open(  # noqa: SIM115
            number, old.mode, encoding=old.encoding, errors=old.errors, closefd=False
        )
        if number:
            is_immediate = is_unbuffered or number == 2 or file.isatty()
            file.reconfigure(line_buffering=is_immediate, write_through=is_unbuffered)
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    tempfile.tempdir = None  # searched again in TMPDIR
    multiprocessing.process.ORIGINAL_DIR = str(Path.cwd())
    multiprocessing.process._children.clear()  # type: ignore[attr-defined]  # the server's
    multiprocessing.process.current_process().authkey = os.urandom(32)
    import numpy
    import torch

    numpy.random.seed()
    if os.environ.get(_AUTOLOAD, "1") == "1":
        torch._import_device_backends()
    return arguments


def _run(arguments: list[str]) -> None:
    """Runs a command line after the interpreter's name."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        source: str | bytes = arguments[1]
        name = "<string>"
    elif arguments[0] == "-m":
        sys.argv = ["-m", *arguments[2:]]
        sys.path[0] = str(Path.cwd())
        runpy._run_module_as_main(arguments[1])  # called by `python -m`
        return
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        main.__file__ = name = str(Path.cwd() / arguments[0])
        source = Path(name).read_bytes()
    exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)


def _main() -> None:
    request = _serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
    if request is None:
        return
    arguments = _become(request)
    try:
        _run(arguments)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (
            __file__,
            "<frozen runpy>",
        ):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise SystemExit(1) from None


if __name__ == "__main__":
    _main()

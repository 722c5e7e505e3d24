"""Python processes forked from one that has imported torch, in place of fresh interpreters.

Tests start hundreds of processes, of which each would spend a second or more on importing torch.
`run` and `start` take the arguments of `subprocess.run` and `subprocess.Popen` that tests use. A
command that begins with this environment's interpreter, or with one of its Python scripts, runs in
a child forked from a server. The server has imported torch without any backend, opened no device
and started no thread; the child takes over environment, directory and files, loads the backends as
`import torch` would have, and runs the command as `__main__`.

A real process is started where the difference could show: for another program, for interpreter
options apart from -c, -m and -u, and where a variable differs that is read when an interpreter or
a library is loaded. What tests about importing itself need is `subprocess`.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
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

# Read when an interpreter or a library is loaded: a server has the values of its own start.
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "GLIBC_", "ASAN_")
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


# ------------------------------------------------------------------------------------ the client


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    input: str | None = None,
    stdin: int | None = None,
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = True,
    text: bool = True,
    preload: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end and returns its output as text.

    Args:
        command, env, cwd, input, stdin, timeout, check: as `subprocess.run` takes them.
        capture_output, text: True, so that a call reads as one of `subprocess.run`.
        preload: modules that the server imports besides torch. Each choice has a server.

    Raises:
        subprocess.TimeoutExpired: it did not end within `timeout` seconds; it was killed.
        subprocess.CalledProcessError: it failed, and `check` is set.
    """
    assert capture_output and text
    arguments = list(map(str, command))
    environment = dict(os.environ if env is None else env)
    if not _can_fork(arguments, environment):
        return subprocess.run(
            arguments, env=environment, cwd=cwd, input=input, timeout=timeout, check=check,
            stdin=stdin if input is None else None, capture_output=True, text=True,
        )  # fmt: skip
    with contextlib.ExitStack() as files:
        given = files.enter_context(tempfile.TemporaryFile("w+"))
        given.write(input or "")
        given.seek(0)
        outputs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
        process = _Forked(arguments, environment, cwd, [given, *outputs], preload=preload)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        for output in outputs:
            output.seek(0)
        out, err = (output.read() for output in outputs)
    done = subprocess.CompletedProcess(arguments, process.returncode or 0, out, err)
    if check:
        done.check_returncode()
    return done


def start(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stdin: int | None = None,
    stdout: int | IO[str] | None = None,
    stderr: int | IO[str] | None = None,
    start_new_session: bool = False,
    preload: Sequence[str] = (),
) -> _Forked | subprocess.Popen[str]:
    """Starts a command; returns an object with the members of `subprocess.Popen` in text mode."""
    arguments = list(map(str, command))
    environment = dict(os.environ if env is None else env)
    if not _can_fork(arguments, environment):
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
            theirs.append(os.fdopen(os.dup(theirs[1].fileno()), mode))
        elif wanted == subprocess.DEVNULL:
            theirs.append(open(os.devnull, mode))
        elif wanted is None:
            theirs.append(os.fdopen(os.dup(number), mode))
        else:
            source = wanted if isinstance(wanted, int) else wanted.fileno()
            theirs.append(os.fdopen(os.dup(source), mode))
    try:
        return _Forked(
            arguments, environment, cwd, theirs, ours, start_new_session, preload=preload
        )
    finally:
        for file in theirs:
            file.close()


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
        self.pid = int(self._answers.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code, that of a signal negative."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._socket, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._socket.close()
        return self.returncode

    def poll(self) -> int | None:
        """Returns the exit code if the process has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(
        self, input: str | None = None, timeout: float | None = None
    ) -> tuple[str | None, str | None]:
        """Writes the input, reads all output, and waits for the end."""
        texts: dict[int, str] = {}

        def read(index: int, file: IO[str]) -> None:
            with file:
                texts[index] = file.read()

        given = enumerate((self.stdout, self.stderr))
        readers = [
            threading.Thread(target=read, args=(index, file), daemon=True)
            for index, file in given
            if file is not None and not file.closed
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(input or "")
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        end_s = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.join(None if end_s is None else max(0, end_s - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if end_s is None else max(0, end_s - time.monotonic()))
        return texts.get(0), texts.get(1)

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


def _can_fork(arguments: list[str], environment: Mapping[str, str]) -> bool:
    program, first = arguments[0], arguments[1] if len(arguments) > 1 else ""
    if program == sys.executable:
        is_known = first in ("-c", "-m", "-u") or (first != "" and not first.startswith("-"))
    else:
        is_known = _is_script(program)
    names = {name for name in {*environment, *os.environ} if name.startswith(_READ_AT_START)}
    return is_known and all(environment.get(name) == os.environ.get(name) for name in names)


def _is_script(program: str) -> bool:
    """Whether a program is a Python script of this environment."""
    if Path(program).parent != Path(sys.executable).parent or not Path(program).is_file():
        return False
    with Path(program).open("rb") as file:
        return file.readline().strip() == b"#!" + sys.executable.encode()


_servers: dict[tuple[int, tuple[str, ...]], str] = {}


def _server_address(preload: tuple[str, ...]) -> str:
    """Returns the address of this process's server for these modules, which is started once."""
    key = os.getpid(), preload
    if key not in _servers:
        address = f"{tempfile.mkdtemp(prefix='forked-python-')}/socket"
        control, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, __file__, address, str(theirs.fileno()), *preload],
            pass_fds=[theirs.fileno()],
            env=os.environ | {_AUTOLOAD: "0"},
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
    """Forks for each request; returns None to the server at its end, and to each child its own."""
    for module in ("numpy", "torch", *modules):
        importlib.import_module(module)

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
                        for end, other in ends.values():
                            os.close(end)
                            other.close()
                        return request | {"files": files}
                    for file in files:
                        os.close(file)
                    end = os.pidfd_open(pid)
                    ends[end] = pid, connection
                    selector.register(end, selectors.EVENT_READ)
                    connection.sendall(f"{pid}\n".encode())
                    continue
                end = key.fd
                selector.unregister(end)
                pid, connection = ends.pop(end)
                os.close(end)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):  # the client may have gone
                    connection.sendall(f"{code}\n".encode())
                connection.close()


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    header, files, _, _ = socket.recv_fds(connection, 8, 3)
    left = int.from_bytes(header, "little")
    parts = []
    while left:
        parts.append(connection.recv(left))
        left -= len(parts[-1])
    return json.loads(b"".join(parts)), list(files)


def _become(request: dict[str, Any]) -> list[str]:
    """Takes over a request's files, environment and directory; returns what is left to run."""
    if request["start_new_session"]:
        os.setsid()
    for number, file in enumerate(request["files"]):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    # The server may have been started in the background, where a shell has ctrl-c ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = request["arguments"]
    if arguments[0] == sys.executable:
        arguments = arguments[1:]
    is_unbuffered = arguments[0] == "-u" or bool(os.environ.get("PYTHONUNBUFFERED"))
    if arguments[0] == "-u":
        arguments = arguments[1:]
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        file = open(number, "w", errors=errors, closefd=False)
        is_immediate = is_unbuffered or number == 2
        file.reconfigure(line_buffering=is_immediate or file.isatty(), write_through=is_unbuffered)
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    if os.environ.get(_AUTOLOAD, "1") == "1":
        import torch

        torch._import_device_backends()
    return arguments


def _run(arguments: list[str]) -> None:
    """Runs what stands after the interpreter's name on a command line."""
    if arguments[0] == "-c":
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        main = types.ModuleType("__main__")
        main.__file__ = arguments[0]
        sys.modules["__main__"] = main
        exec(compile(Path(arguments[0]).read_bytes(), arguments[0], "exec"), main.__dict__)


def _main() -> None:
    request = _serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
    if request is None:
        return
    arguments = _become(request)
    try:
        _run(arguments)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise SystemExit(1) from None


if __name__ == "__main__":
    _main()

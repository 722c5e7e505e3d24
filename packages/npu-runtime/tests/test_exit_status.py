"""Errors that come from outside of the platform, as a command's sentence and exit code."""

from __future__ import annotations

import errno
import os

import pytest

from npu_command import exit_status
from npu_command.exit_status import report_error


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        caused(RuntimeError("a model was not loaded"), MemoryError()),
    ],
    ids=str,
)
def test_memory_that_is_not_there_is_one_sentence(error, capsys):
    assert report_error("tool part", error) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("tool part: memory must be available")
    assert shown.endswith("[memory-exhausted]\n")
    assert shown.count("\n") == 1


def test_a_library_that_lost_a_part_to_a_bound_of_memory_is_one_sentence(capsys, monkeypatch):
    half = ImportError("cannot import name 'PART' from 'library.utils'")
    monkeypatch.setattr(exit_status, "address_space_bytes", lambda: None)
    with pytest.raises(ImportError):
        report_error("tool", half)
    monkeypatch.setattr(exit_status, "address_space_bytes", lambda: 1_200_000_000)
    assert report_error("tool", half) == 2
    shown = capsys.readouterr().err
    assert "ulimit -v allows 1.2 GB" in shown
    assert shown.endswith("[memory-exhausted]\n")
    with pytest.raises(ModuleNotFoundError):
        report_error("tool", ModuleNotFoundError("x"))


def test_a_library_that_does_not_fit_is_named_where_another_hides_it(capsys):
    first = RuntimeError("operator torchvision::nms does not exist")
    hidden = caused(ModuleNotFoundError("Could not import module"), caused(ImportError("x"), first))
    assert report_error("tool", hidden) == 2
    shown = capsys.readouterr().err
    assert "got: operator torchvision::nms does not exist. " in shown
    assert shown.endswith("[library-import]\n")


def test_a_file_that_the_system_refuses_is_named(capsys):
    assert report_error("tool", PermissionError(errno.EACCES, "Permission denied", "/a/file")) == 2
    assert capsys.readouterr().err == (
        "tool: `/a/file` must be accessible, got: Permission denied. Check its permissions and the "
        "free space, or choose another. [file-access]\n"
    )


class Explained(RuntimeError):
    code = "a-code"


def test_an_error_that_explains_itself_is_shown_as_it_is(capsys):
    assert report_error("tool", Explained("subject: a rule. [a-code]")) == 2
    assert capsys.readouterr().err == "tool: subject: a rule. [a-code]\n"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a defect"),
        ModuleNotFoundError("x"),
        caused(ImportError("y"), ModuleNotFoundError("x")),
        OSError(),
    ],
    ids=str,
)
def test_a_defect_stays_a_traceback(error):
    with pytest.raises(type(error)) as caught:
        report_error("tool", error)
    assert caught.value is error

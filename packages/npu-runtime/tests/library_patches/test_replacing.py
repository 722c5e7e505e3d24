"""Replaced functions of another library, their copies, and answers that followed from them."""

import sys
import types

import pytest

from npu_runtime.library_patches.replacing import forget_answers, replace, replace_copies, wrap

SOURCE = """
import functools

@functools.lru_cache
def is_there():
    return False

@functools.lru_cache
def can_compute():
    return is_there()

@functools.lru_cache
def can_compute_fast():
    return can_compute()

@functools.lru_cache
def something_else():
    return object()
"""


@pytest.fixture
def library(monkeypatch):
    def module(name, source):
        made = types.ModuleType(name)
        exec(source, vars(made))
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return module


def test_what_is_missing_is_said_and_left_alone(library, caplog):
    module = library("some_library.parts", "kept = 1")
    assert not replace(module, "is_there", lambda: True)
    assert not hasattr(module, "is_there")
    assert caplog.messages == [
        "npu: some_library.parts has no is_there in this release, and is not patched for npu there"
    ]


def test_a_missing_method_is_left_alone_too(library, caplog):
    module = library("some_library.parts", "class Trainer: pass")
    wrap(module.Trainer, "move", lambda moved, *arguments: None)
    assert not hasattr(module.Trainer, "move")
    assert "Trainer has no move" in caplog.text


def test_copies_in_the_library_and_in_the_program_are_replaced_and_no_others(library, monkeypatch):
    module = library("some_library.parts", SOURCE)
    copy = library("some_library", "")
    other = library("another_library", "")
    copy.asked = other.asked = module.is_there
    program = sys.modules["__main__"]
    monkeypatch.setattr(program, "is_there_in_the_program", module.is_there, raising=False)
    before, old = dict(vars(module)), module.is_there
    replace(module, "is_there", str)
    replace_copies(module, before)
    assert copy.asked is program.is_there_in_the_program is module.is_there is str
    assert other.asked is old
    assert copy.__name__ == "some_library"


def test_answers_that_follow_from_a_question_are_asked_for_each_time(library):
    module = library("some_library.parts", SOURCE)
    assert not module.can_compute_fast()
    replace(module, "is_there", lambda: True)
    forget_answers(module, {"is_there"})
    assert module.can_compute_fast()
    module.can_compute_fast.cache_clear()
    assert module.something_else() is module.something_else()


def test_a_wrapped_function_keeps_its_name_and_gets_its_arguments(library):
    module = library("some_library.parts", "def total(a, b=1):\n    return a + b")
    wrap(module, "total", lambda total, *arguments, **named: 10 * total(*arguments, **named))
    assert module.total(1, b=2) == 30
    assert module.total.__name__ == "total"

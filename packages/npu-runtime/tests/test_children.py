"""Children that answer, die, hang and are replaced."""

import os
import signal
import threading

import pytest

from npu_command.children import Child, run_each

WORKER = """
import json, os, sys, time
from npu_command.children import serve

def reply(task, say):
    print("a library prints this")
    os.system("echo and so does a program")
    if task == "die":
        os.kill(os.getpid(), 11)
    if task == "leave":
        print("why it leaves", file=sys.stderr)
        sys.exit(3)
    if task == "hang":
        time.sleep(60)
    if task == "half":
        os.write(answers, b'{"cut')
        os.kill(os.getpid(), 9)
    say([task, os.getpid(), sys.argv[1:], os.environ.get("GIVEN")])

answers = os.dup(1)
serve(reply)
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    (tmp_path / "a_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    made = []

    def make_child(*arguments, timeout_s=60.0, **options):
        made.append(Child("a_worker", *arguments, timeout_s=timeout_s, **options))
        return made[-1]

    yield make_child
    for child in made:
        child.stop()


def ask(child, task):
    child.give(task)
    return child.answer()


def test_one_process_answers_task_after_task_and_prints_are_no_answers(make):
    child = make("a", "b", environment={"GIVEN": "yes"})
    first, second = ask(child, 1), ask(child, {"two": 2})
    assert (first[0], second[0]) == (1, {"two": 2})
    assert first[1] == second[1] != os.getpid()
    assert first[2:] == [["a", "b"], "yes"]


@pytest.mark.parametrize(
    "task, end, said",
    [
        ("die", "the process ended with SIGSEGV", None),
        ("half", "the process ended with SIGKILL", None),
        ("leave", "the process ended with status 3", "why it leaves"),
    ],
)
def test_a_process_that_ends_is_no_answer_and_the_next_takes_over(make, task, end, said):
    child = make()
    before = ask(child, 1)
    assert ask(child, task) is None
    assert (child.end, child.is_late) == (end, False)
    assert said in (None, child.said)
    after = ask(child, 2)
    assert after[0] == 2
    assert after[1] != before[1]


def test_a_process_that_hangs_is_killed_when_its_time_is_over(make):
    child = make(timeout_s=1.0, start_s=60.0)
    assert ask(child, 1)[0] == 1
    assert ask(child, "hang") is None
    assert (child.is_late, child.signal_name) == (True, "SIGKILL")
    assert ask(child, 2)[0] == 2


def test_a_process_may_take_longer_to_start(make):
    assert ask(make(timeout_s=0.0, start_s=60.0), 1)[0] == 1


def test_every_task_is_done_once_whatever_becomes_of_a_child(make):
    answers = []

    def work(child, task):
        child.give(task)
        found = child.answer()
        answers.append((task, child.end if found is None else found[0]))

    run_each([1, "die", 2, 3, "leave", 4], work, jobs=2, make_child=make)
    assert sorted(answers, key=str) == sorted(
        [
            *((number, number) for number in (1, 2, 3, 4)),
            ("die", "the process ended with SIGSEGV"),
            ("leave", "the process ended with status 3"),
        ],
        key=str,
    )


def test_an_exception_is_raised_and_tasks_that_wait_are_not_begun(make):
    begun = []

    def work(child, task):
        begun.append(task)
        raise ValueError(task)

    with pytest.raises(ValueError, match="0"):
        run_each(range(100), work, jobs=1, make_child=make)
    assert begun == [0]


def test_an_exception_of_what_gives_tasks_is_raised(make):
    def tasks():
        yield 1
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        run_each(tasks(), lambda child, task: None, jobs=2, make_child=make)


def test_an_interrupt_ends_the_children_and_is_raised(make):
    ended = []

    def work(child, task):
        ask(child, 1)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        ended.append(ask(child, "hang"))

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_each([1], work, jobs=1, make_child=make)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert ended == []  # that the child was killed is no answer

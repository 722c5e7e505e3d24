"""The number of decoding threads, by the times of steps with each count."""

import pytest
import torch

from npu_command.processors import Processors
from npu_ops.kernel_programs import threads


@pytest.fixture
def count(monkeypatch):
    """Returns a ThreadCount of a machine, and a list that holds its processors."""
    machine = [Processors(usable=8, cores=6, fast=2)]
    monkeypatch.setattr(threads, "read_processors", lambda: machine[0])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    return threads.ThreadCount(), machine


def decode(count, seconds, steps):
    """Decodes; returns the counts used."""
    used = []
    for _ in range(steps):
        used.append(count.of_step())
        count.note(used[-1], seconds[used[-1]])
    return used


def test_the_count_that_decodes_fastest_is_kept(count):
    count, _ = count
    used = decode(count, {8: 3.0, 6: 1.0, 2: 2.0}, 100)
    assert set(used[:24]) == {8, 6, 2}
    assert set(used[24:]) == {6}
    assert count.of_prompt() == 8


def test_more_threads_that_gain_next_to_nothing_are_left_to_others(count):
    count, _ = count
    assert decode(count, {8: 0.99, 6: 1.0, 2: 1.0}, 30)[-1] == 2


def test_counts_are_timed_again_after_a_while(count):
    count, _ = count
    assert decode(count, {8: 1.0, 6: 2.0, 2: 3.0}, 24 + 512)[-1] == 8
    assert decode(count, {8: 3.0, 6: 2.0, 2: 1.0}, 30)[-1] == 2


def test_other_processors_are_noticed(count, monkeypatch):
    count, machine = count
    decode(count, {8: 1.0, 6: 2.0, 2: 3.0}, 30)
    machine[0] = Processors(usable=1, cores=1, fast=1)
    now = threads.time.monotonic()
    monkeypatch.setattr(threads.time, "monotonic", lambda: now + 10)
    assert (count.of_step(), count.of_prompt()) == (1, 1)


def test_torch_bounds_them(count, monkeypatch):
    count, _ = count
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert decode(count, {2: 1.0}, 3) == [2, 2, 2]


def test_processors_of_one_kind_are_no_choice(monkeypatch):
    monkeypatch.setattr(threads, "read_processors", lambda: Processors(4, 4, 4))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert decode(threads.ThreadCount(), {4: 1.0}, 40) == [4] * 40

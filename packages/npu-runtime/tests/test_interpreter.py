"""Interpreter settings that hold while graphs are compiled."""

from __future__ import annotations

import gc
import os
import sys

from npu_command.interpreter import collector_paused, switching_often


def test_settings_are_restored_when_the_last_block_ends():
    interval = sys.getswitchinterval()
    with collector_paused(), switching_often():
        with collector_paused(), switching_often():
            pass
        assert not gc.isenabled()
        assert sys.getswitchinterval() < interval
    assert gc.isenabled()
    assert sys.getswitchinterval() == interval


def test_a_disabled_collector_stays_disabled():
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_child_forked_in_a_block_has_the_former_settings():
    with collector_paused():
        child = os.fork()
        if not child:
            os._exit(not gc.isenabled())
    assert os.waitpid(child, 0)[1] == 0

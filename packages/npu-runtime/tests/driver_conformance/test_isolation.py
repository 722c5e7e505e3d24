"""Every way in which children end."""

import json

SETUP = """
import json, os, signal, sys, time
from npu_runtime.driver_conformance.isolation import run_isolated

def ended(function, timeout_s=20):
    end = run_isolated(function, timeout_s=timeout_s)
    print(json.dumps([end.value, end.problem, end.last_call]))

def noted(function):
    def body(last_call):
        last_call.set("stream_query")
        return function()
    return body
"""


# Calls, and their reports.
ENDS = {
    "ended(noted(lambda: [1, 'a']))": [[1, "a"], "", "stream_query"],
    "ended(noted(lambda: os.kill(os.getpid(), signal.SIGSEGV)))": [
        None,
        "ended by signal 11 (SIGSEGV) in stream_query",
        "stream_query",
    ],
    "ended(noted(lambda: (os.write(2, b'first\\nterminate called\\n'), os.abort())))": [
        None,
        "ended by signal 6 (SIGABRT) in stream_query; it printed: terminate called",
        "stream_query",
    ],
    "ended(noted(lambda: time.sleep(60)), timeout_s=0.5)": [
        None,
        "did not return within 0.5 s in stream_query",
        "stream_query",
    ],
    "ended(noted(lambda: os._exit(3)))": [
        None,
        "ended with exit code 3 in stream_query",
        "stream_query",
    ],
    "ended(lambda last_call: 1 / 0)": [None, "ended with exit code 1", ""],
}


def test_the_end_of_a_child_is_told(run_python):
    done = run_python(SETUP + "\n".join(ENDS))  # a process that forks while it is small
    assert done.returncode == 0, done.stderr
    told = map(json.loads, done.stdout.splitlines())
    assert dict(zip(ENDS, told, strict=True)) == ENDS

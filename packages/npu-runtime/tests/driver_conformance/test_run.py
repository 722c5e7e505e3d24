import pytest

from npu_runtime.driver_conformance.run import Result, as_json, as_table, exit_code

GOOD = Result("open", "opens_a_device", "pass", "")
LEFT_OUT = Result("host_access_begin", "nests", "unsupported", "NULL")
BAD = Result("open", "refuses_an_absent_device", "fail", "gave NPU_OK")
NOT_REACHED = Result("event_query", "says_done", "blocked", "event_create gave NPU_ERROR")


@pytest.mark.parametrize(
    "results, code",
    [([GOOD, LEFT_OUT], 0), ([GOOD, BAD], 1), ([GOOD, NOT_REACHED], 1)],
)
def test_only_failed_and_blocked_checks_fail_the_run(results, code):
    assert exit_code(results) == code
    assert as_json("toy", results)["passed"] is (code == 0)


def test_the_table_names_a_function_once_and_ends_with_the_counts():
    lines = as_table("toy", [GOOD, BAD, LEFT_OUT]).splitlines()
    assert [line.split("  ")[0] for line in lines[:3]] == ["open", "", "host_access_begin"]
    assert lines[1].endswith("fail: gave NPU_OK")
    assert lines[-1] == (
        "driver toy: 3 checks of 2 fields of npu_driver: 1 pass, 1 fail, 1 unsupported"
    )

import pytest

from npu_runtime.driver_conformance.checks import ALL_CHECKS
from npu_runtime.driver_conformance.driver_table import FIELDS
from npu_runtime.driver_conformance.registry import check


def test_every_field_of_the_table_has_a_check():
    assert {item.field for item in ALL_CHECKS} == set(FIELDS)


def test_checks_come_in_the_tables_order():
    order = [FIELDS.index(item.field) for item in ALL_CHECKS]
    assert order == sorted(order)


def test_every_check_says_what_it_checks():
    assert [item.label for item in ALL_CHECKS if not item.body.__doc__] == []


def test_a_second_check_of_one_name_names_both_places():
    taken = ALL_CHECKS[0]

    def body(bench):
        """Never runs."""

    body.__name__ = taken.name
    with pytest.raises(ValueError, match=r"registered twice: .*opening\.py:\d+ and .*test_reg"):
        check(taken.field)(body)


def test_a_check_of_a_field_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no field stream_fly"):
        check("stream_fly")(lambda bench: None)

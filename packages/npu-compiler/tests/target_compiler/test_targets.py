"""Names of NPU generations."""

import pytest

from npu_compiler.errors import OptionError
from npu_compiler.target_compiler import TARGETS, find_target


@pytest.mark.parametrize(
    "name, number",
    [
        ("lunar-lake", "4000"),
        ("Lunar Lake", "4000"),
        ("4000", "4000"),
        ("NPU4000", "4000"),
        ("npu-3720", "3720"),
        ("arrow_lake", "3720"),
    ],
)
def test_a_target_has_a_name_a_number_and_forms_of_them(name, number):
    assert find_target(name).number == number


def test_each_target_is_found_by_both():
    for target in TARGETS:
        assert find_target(target.name) is find_target(target.number) is target


def test_unknown_target_lists_the_known_and_the_nearest():
    with pytest.raises(OptionError, match=r"meteor-lake .*Did you mean 'panther-lake'") as error:
        find_target("pantherlake")
    assert error.value.code == "unknown-target"

"""Names of targets, and the vendors that compile for them."""

from importlib.metadata import EntryPoint

import pytest

from npu_compiler.errors import OptionError
from npu_compiler.target_compiler import TARGETS, find_target, targets, vendor_of


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


def test_a_wheel_adds_a_vendor(fake_vendor):
    assert vendor_of(find_target("Fake 1", graphs=None)) is fake_vendor
    assert find_target("4000", graphs=None).name == "lunar-lake"


def test_a_target_is_refused_where_its_compiler_takes_the_other_form(fake_vendor):
    for name, graphs in (("fake-1", False), ("4000", True)):
        with pytest.raises(OptionError) as error:
            find_target(name, graphs=graphs)
        assert error.value.code == "target-form"


def test_a_wheel_that_cannot_be_imported_leaves_the_others(monkeypatch):
    broken = EntryPoint("broken", "there.is.none:Vendor", targets.GROUP)
    monkeypatch.setattr(targets, "entry_points", lambda *, group: [broken])
    targets.vendors.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match=r"broken .*\[target-compiler\]"):
            assert find_target("4000").chip == "Lunar Lake"
    finally:
        targets.vendors.cache_clear()

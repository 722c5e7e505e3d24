"""Facts from the driver's sources."""

import re

import pytest

from npu_runtime.doctor.machine import known_chips, log_faults, release_of, releases


@pytest.mark.parametrize(
    "number, product, oldest",
    [("0x7d1d", "Meteor Lake", ""), ("0x643e", "Lunar Lake", "1.5.0"),
     ("0xb03e", "Panther Lake", "1.28.0"), ("0xfd3e", "Wildcat Lake", "1.32.0")],
)  # fmt: skip
def test_chips_are_known_by_their_pci_id(number, product, oldest):
    chip = known_chips()[number]
    assert (chip.product, chip.oldest_driver) == (product, oldest)


@pytest.mark.parametrize(
    "version, release",
    [("1.0.0", None), ("1.1.0", "1.1.0"), ("1.23.0", "1.22.0"), ("1.32.1", "1.32.1"),
     ("2.0.0", "1.38.0")],
)  # fmt: skip
def test_a_version_belongs_to_the_newest_release_that_is_not_newer(version, release):
    found = release_of(version)
    assert (found.version if found else None) == release


def test_releases_go_from_old_to_new():
    dates = [one.date for one in releases()]
    assert dates == sorted(dates)


def test_each_fact_says_where_it_was_read():
    facts = [*known_chips().values(), *releases(), *log_faults()]
    assert all(re.search(r"https://|/|Linux", fact.source) for fact in facts)

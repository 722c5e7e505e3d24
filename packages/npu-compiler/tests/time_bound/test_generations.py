"""The published figures."""

import pytest

from npu_compiler.npu_rules.source_rules import GENERATIONS
from npu_compiler.time_bound.generations import Figure, generation_figures


@pytest.mark.parametrize("name, tops", [("3720", 11.5), ("4000", 48.0)])
def test_the_array_has_the_operations_a_second_that_its_maker_names(name, tops):
    assert 2 * generation_figures(name).narrow_macs_per_s / 1e12 == pytest.approx(tops, rel=0.005)


@pytest.mark.parametrize("name", GENERATIONS)
def test_each_figure_says_where_and_when_it_was_published(name):
    figures = [value for value in vars(generation_figures(name)).values() if type(value) is Figure]
    assert len(figures) == 5
    assert all(figure.value > 0 and figure.source and figure.date for figure in figures)


def test_a_generation_without_published_figures_has_none():
    assert generation_figures("5010") is None

"""The first page's figures are those of the tables it names, and each table has its command."""

import math
import re

import pytest

SPEED = "docs/guides/choosing-a-precision.md"
ATTENTION = "docs/guides/sparse-attention.md"


@pytest.fixture(scope="module")
def landing(root):
    return (root / "docs" / "index.md").read_text()


def rows(text, begins):
    """Numbers of the rows of a text's tables whose first cell begins so."""
    found = re.findall(rf"^\| {re.escape(begins)}[^|]*\|(.*)\|$", text, re.MULTILINE)
    return [[float(cell.replace(",", "")) for cell in row.split("|")] for row in found]


def section(root, page, title):
    return (root / page).read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def floor(ratio):
    return math.floor(ratio * 10) / 10


@pytest.mark.parametrize("column, peer", [(2, "llama.cpp"), (1, "openvino-genai")])
def test_a_peers_figure_is_that_of_the_two_newest_tables(root, landing, column, peer):
    told = re.search(rf"\*\*([\d.]+) to ([\d.]+) ×\*\* the speed of {re.escape(peer)}", landing)
    measured = rows(section(root, SPEED, "How fast it is"), "int4, tokens/s after")[:4]
    ratios = [row[0] / row[column] for row in measured]
    assert [float(one) for one in told.groups()] == [floor(min(ratios)), floor(max(ratios))]


def test_the_figure_of_sparse_attention_is_that_of_its_table(root, landing):
    told = re.search(r"\*\*(\d+) ×\*\* .* over ([\d,]+) positions", landing)
    ((*_, ratio),) = rows(section(root, ATTENTION, "What it costs"), told[2])
    assert int(told[1]) == math.floor(ratio)


def test_tables_with_figures_name_benchmarks_that_are_there(root):
    speed = section(root, SPEED, "How fast it is").split("SmolLM2-135M on two cores of an EPYC")[0]
    attention = section(root, ATTENTION, "What it costs")
    for text, tables in ((speed, 2), (attention, 1)):
        commands = re.findall(r"python (packages/\S+/benchmarks/\w+\.py)", text)
        assert len(commands) == len(re.findall(r"^\|---", text, re.MULTILINE)) == tables
        assert all((root / command).is_file() for command in commands)

import pytest

from npu_profiler.reports.tables import (
    Column,
    Table,
    bin_highest,
    format_bytes,
    format_ms,
    format_table,
    sparkline,
)

TABLE = Table(
    "ops",
    [
        Column("op", "op"),
        Column("calls", "calls", "count"),
        Column("self_ns", "self ms", "ns"),
        Column("share", "share", "share"),
        Column("bytes", "bytes", "bytes"),
        Column("change", "change", "change"),
    ],
    [
        ("aten::mm", 12_345, 1_234_567_890, 0.5, 3 << 19, 0.25),
        ("aten::add", 1, 1_234, None, 12, -0.5),
    ],
)


def test_columns_stand_under_each_other_with_their_units():
    assert format_table(TABLE) == [
        "ops",
        "  op          calls  self ms   share    bytes   change",
        "  aten::mm   12,345  1,234.6  50.0 %  1.5 MiB  +25.0 %",
        "  aten::add       1    0.001       -     12 B  -50.0 %",
    ]


def test_rows_past_the_limit_are_counted():
    lines = format_table(TABLE, limit=1)
    assert len(lines) == 4
    assert "and 1 more" in lines[-1]


def test_long_names_keep_their_begin_and_end_in_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    name = "layers.0.self_attn.q_proj.linear_default_17/aten.linear.default"
    (line,) = format_table(Table("", [Column("op", "op"), Column("n", "n", "count")], [(name, 1)]))[
        1:
    ]
    assert len(line) <= 60
    assert line.split()[0].startswith("layers.0.self_attn")
    assert line.split()[0].endswith("linear.default")


def test_records_have_the_raw_values():
    assert TABLE.records()[1] == {
        "op": "aten::add",
        "calls": 1,
        "self_ns": 1_234,
        "share": None,
        "bytes": 12,
        "change": -0.5,
    }


@pytest.mark.parametrize(
    "ns, text", [(0, "0.000 ms"), (12_345_678, "12.35 ms"), (1_234_567_890, "1,234.6 ms")]
)
def test_times_have_the_digits_that_matter(ns, text):
    assert format_ms(ns) == text


@pytest.mark.parametrize("size, text", [(5, "5 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_sizes_have_a_unit(size, text):
    assert format_bytes(size) == text


def test_curve_keeps_its_value_until_the_next_sample():
    heights = bin_highest([10, 35, 39], [4.0, 8.0, 2.0], start_ns=0, end_ns=50, bins=5)
    assert heights == [0, 4, 4, 8, 2]
    assert sparkline(heights) == "▁▅▅█▃"


def test_flat_curve_of_zeros_is_a_line_at_the_bottom():
    assert sparkline([0.0, 0.0]) == "▁▁"


def test_more_than_the_roof_is_marked():
    table = Table("layers", [Column("roof_share", "of roof", "roof")], [(0.612,), (1.63,)])
    assert format_table(table)[2:] == ["     61.2 %", "  * 163.0 %"]

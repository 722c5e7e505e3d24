from npu_command.text_table import aligned


def test_columns_stand_below_each_other_without_blanks_at_the_end():
    assert aligned([("a", "1", ""), ("long", "22", "x")]) == ["a     1", "long  22  x"]


def test_lines_are_indented():
    assert aligned([("a", "b")], indent=2) == ["  a  b"]

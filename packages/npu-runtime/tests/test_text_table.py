from npu_command.text_table import aligned


def test_columns_stand_below_each_other_without_blanks_at_the_end():
    assert aligned([("a", "1", ""), ("long", "22", "x")]) == ["a     1", "long  22  x"]


def test_lines_are_indented():
    assert aligned([("a", "b")], indent=2) == ["  a  b"]


def test_the_last_column_goes_on_between_words():
    text = "a path/that/is/longer/than/the/width/of/it stays whole"
    assert aligned([("name", text), ("n", "x")], width=40) == [
        "name  a",
        "      path/that/is/longer/than/the/width/of/it",
        "      stays whole",
        "n     x",
    ]


def test_a_terminal_too_narrow_for_columns_wraps_them_itself():
    assert aligned([("name", "one two three")], width=20) == ["name  one two three"]

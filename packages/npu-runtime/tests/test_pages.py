import jinja2
import pytest

from npu_command.pages import render_page


def test_what_is_put_in_is_escaped(tmp_path):
    template = tmp_path / "page.html"
    template.write_text("<p>{{ text }}</p>\n")
    assert render_page(template, text="<script>'&") == "<p>&lt;script&gt;&#39;&amp;</p>\n"


def test_lines_of_statements_leave_nothing_on_the_page(tmp_path):
    template = tmp_path / "page.html"
    template.write_text("<ul>\n  {% for one in many %}\n<li>{{ one }}\n  {% endfor %}\n</ul>\n")
    assert render_page(template, many=[1, 2]) == "<ul>\n<li>1\n<li>2\n</ul>\n"


def test_a_value_that_is_not_given_is_an_error(tmp_path):
    template = tmp_path / "page.html"
    template.write_text("{{ absent }}")
    with pytest.raises(jinja2.UndefinedError, match="absent"):
        render_page(template)

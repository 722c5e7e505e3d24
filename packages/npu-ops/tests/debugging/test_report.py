from npu_ops.debugging.report import Report


def test_the_page_escapes_what_is_in_it_and_marks_rows(tmp_path):
    rows = ((1, "<script>"), (None, 2.5))
    report = Report("a <b>", ("n", "x & y"), rows, "found <1>", marked=frozenset({1}))
    report.write_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>a &lt;b&gt;</h1>" in page
    assert "<p>found &lt;1&gt;</p>" in page
    assert "<th>x &amp; y</th>" in page
    assert '<tr><td class="number">1</td><td>&lt;script&gt;</td></tr>' in page
    assert '<tr class="marked"><td></td><td class="number">2.5</td></tr>' in page

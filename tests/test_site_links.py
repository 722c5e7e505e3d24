"""The check of the built pages finds planted faults, and none on correct pages."""

import pytest

from pages.links import check_site, main

WHOLE = """<link rel="canonical" href="https://host.example/docs/index.html">
<a href="guide.html#start">guide</a> <a href="https://host.example/">elsewhere</a>
<a href="/docs/guide.html">guide</a> <script>{"base": "/docs/"}</script>
<img src="a.png" alt="a picture">"""
GUIDE = '<h1 id="start">Guide</h1> <a href="index.html">back</a> <a href="#start">up</a>'


@pytest.fixture
def site(tmp_path):
    (tmp_path / "index.html").write_text(WHOLE)
    (tmp_path / "guide.html").write_text(GUIDE)
    (tmp_path / "a.png").write_bytes(b"")
    return tmp_path


def test_whole_pages_have_no_faults(site):
    found = check_site(site)
    assert (found.pages, found.links, found.broken) == (2, 5, [])


def test_addresses_of_other_hosts_are_listed_and_not_asked(site, capsys):
    assert main([str(site), "--external"]) == 0
    assert "https://host.example/\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "planted, told",
    [
        ('<a href="gone.html">x</a>', "'gone.html' leads to no file"),
        ('<a href="guide.html#end">x</a>', "'guide.html#end' leads to no place on that page"),
        ('<a href="#end">x</a>', "'#end' leads to no place on that page"),
        ('<a href="/guide.html">x</a>', "'/guide.html' leads to no file"),
        ('<script src="gone.js"></script>', "'gone.js' leads to no file"),
        ('<img src="a.png">', "the picture 'a.png' has no alt text"),
        ('<p id="x"></p><p id="x"></p>', "two elements have the id 'x'"),
        ('{"base": "/docs/0.1"}', "no slash ends its scripts' base '/docs/0.1'"),
    ],
)
def test_a_planted_fault_is_noticed(site, capsys, planted, told):
    (site / "planted.html").write_text(planted)
    assert main([str(site)]) == 1
    assert capsys.readouterr().err == f"planted.html: {told}\n"


def test_no_pages_is_a_fault(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    assert "nox -s docs" in capsys.readouterr().err

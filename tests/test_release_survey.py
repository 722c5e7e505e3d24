"""The survey of transformers' releases: the definition of a change, and the page."""

import pytest

from release_survey import NAMES, Release, cache_classes, changes, main, page

BEFORE = '''
class Cache:
    """Keeps keys."""

    def update(self):
        """Adds."""
        return 1

class Old: ...
class _Hidden: ...
def make(): ...
'''


def test_only_code_of_public_classes_counts():
    before = cache_classes(BEFORE)
    assert before.keys() == {"Cache", "Old"}
    other_words = BEFORE.replace("Keeps keys.", "Keeps values.").replace("Adds.", "Joins.")
    assert not changes(before, cache_classes(other_words.replace("_Hidden", "_Other")))
    assert changes(before, cache_classes(BEFORE.replace("return 1", "return 2"))) == ("Cache",)
    assert changes(before, cache_classes(BEFORE.replace("Old", "New"))) == ("New", "Old")


def test_the_page_says_what_a_release_lacks():
    text = page([Release("4.0", (), {"llama": "equal"}), Release("4.1", ("Cache",), {})])
    rows = [line for line in text.splitlines() if line.startswith("| 4.")]
    assert rows[0].startswith("| 4.0 | equal | absent |")
    assert rows[1].endswith("| `Cache` |")
    assert len(rows[0].split("|")) == len(NAMES) + 4


def test_a_folder_to_install_into_is_asked_for(capsys):
    with pytest.raises(SystemExit):
        main(["4.57.6"])
    assert "--work" in capsys.readouterr().err

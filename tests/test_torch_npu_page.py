"""The page of torch_npu's names matches its script's output."""

from pages.torch_npu import PAGE, page


def test_the_page_is_made_from_the_modules():
    """`python tools/pages/torch_npu.py` writes it."""
    assert PAGE.read_text() == page()

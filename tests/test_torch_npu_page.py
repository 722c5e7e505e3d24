"""The page of torch_npu's names is what its script makes of the modules."""

from pages.torch_npu import PAGE, page


def test_the_page_is_made_from_the_modules():
    """`python tools/pages/torch_npu.py` writes it."""
    assert PAGE.read_text() == page()

from npu_ops.op_conformance.cell import Cell, Outcome
from npu_ops.op_conformance.report import REPORTS, Run

RUN = Run("--op '<x>'", "npu", "torch 2.13.0", 12.3)
CELLS = [
    Cell("fft_fft", "float32", "forward", Outcome.PASSED, 3_000),
    Cell("fft_ifft", "float32", "forward", Outcome.FAILED, 3, 1, "too far < off"),
]


def test_the_page_has_the_failures_with_their_commands_and_escapes_them(tmp_path):
    REPORTS["html"](CELLS, RUN, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<code>npu-ops conformance --op &#39;&lt;x&gt;&#39;</code>" in page
    assert "3,003 checks in 12 s, 1 failed." in page
    assert "<td>forward, failed</td><td>too far &lt; off</td>" in page
    assert "--suite torch --op fft_ifft --dtype float32" in page
    assert '<td class="n low">0.00%</td>' in page
    assert '<td class="n">100.00%</td>' in page
    assert page.count("<p>None.</p>") == 1  # networks
    assert "http" not in page


def test_the_page_of_a_run_without_cells_says_none(tmp_path):
    REPORTS["html"]([], RUN, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count("<p>None.</p>") == 3

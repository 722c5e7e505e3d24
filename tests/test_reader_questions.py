"""Forty questions of four kinds of readers: how many clicks each answer is from the first page.

Only links in the text count, not the navigation or the search, so a reader has at least these.
"""

import re
import statistics

import pytest

QUESTIONS = {
    "runs a model": [
        ("How do I get an answer at once?", "first-answer.md", "First answer"),
        ("How do I chat, and undo a question?", "guides/sessions.md", "In the terminal"),
        ("How do I keep a conversation?", "guides/sessions.md", "Saving"),
        ("Which precision should I take?", "guides/choosing-a-precision.md", "How to decide"),
        ("How fast is it beside others?", "guides/choosing-a-precision.md", "How fast it is"),
        ("Where is llama.cpp better?", "comparison.md", "llama.cpp"),
        ("Does my model run?", "reference/decoders.md", None),
        ("How do I serve it over HTTP?", "guides/serving.md", "What it answers"),
        ("Who may ask my server?", "guides/serving.md", "Who may ask"),
        ("How do I use an adapter?", "guides/adapters.md", None),
        ("How do I ask about a picture?", "guides/pictures.md", "In Python"),
        ("How do I write down what is said?", "guides/transcription.md", None),
        ("How do I read a long text?", "guides/long-context.md", "Memory"),
        ("How do I remove models that I no longer use?", "faq.md", None),
    ],
    "brings a PyTorch model": [
        ("How do I install it?", "install.md", "From a clone"),
        ("Which torch does it need?", "compatibility.md", None),
        ("How do I move code from CUDA?", "guides/moving-from-cuda.md", "Write npu"),
        ("How do I compile a model?", "guides/compile.md", "torch.compile"),
        ("What if my sizes vary?", "guides/dynamic-shapes.md", "When padding is right"),
        ("Are the results right?", "guides/trusting-results.md", "What counts as equal"),
        ("Which op is wrong?", "guides/debugging-accuracy.md", "Which op is wrong"),
        ("How do I ship it without my class?", "guides/export.md", "Without torch"),
        ("Can I train in bfloat16?", "guides/mixed-precision.md", None),
        ("Does Trainer work?", "guides/hugging-face.md", "Training"),
        ("How do I train in several processes?", "guides/distributed.md", None),
    ],
    "asks where time goes": [
        ("How do I record a trace?", "tutorials/first-trace.md", None),
        ("What do the rows of the timeline mean?", "guides/reading-a-timeline.md", None),
        ("Which layer is slow?", "guides/finding-a-slow-layer.md", "Where does the time go?"),
        ("What holds the memory?", "guides/reading-a-timeline.md", "What holds the memory?"),
        ("Why am I out of memory?", "guides/memory.md", "Out of memory"),
        ("Which ops ran on the host?", "guides/where-ops-run.md", "What ran on the host"),
        ("Can tuning help?", "guides/tuning.md", "What is measured"),
    ],
    "owns a device or an op": [
        ("Which device serves?", "guides/device.md", "Which hardware serves"),
        ("Why is my NPU not found?", "guides/troubleshooting.md", "What is checked"),
        ("How do I set it up on Linux?", "guides/npu-on-linux.md", "6. The group"),
        ("How do I use it in a container?", "guides/npu-on-linux.md", "In a container"),
        ("What does this error mean?", "reference/errors.md", None),
        ("How do I add an op?", "guides/adding-an-op.md", "The kernel"),
        ("How do I add another chip?", "guides/writing-a-driver.md", "The wheel"),
        ("What was never tried on an NPU?", "verification.md", "Open, until it runs on an NPU"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def clicks(root):
    """Page -> clicks from the first page."""
    docs = root / "docs"
    found, fresh = {"index.md": 0}, ["index.md"]
    while fresh:
        following = []
        for page in fresh:
            for target in re.findall(r"\]\(([^)#\s]+\.md)", (docs / page).read_text()):
                path = ((docs / page).parent / target).resolve()
                name = path.relative_to(docs.resolve()).as_posix()
                if name not in found:
                    found[name] = found[page] + 1
                    following.append(name)
        fresh = following
    return found


def test_forty_answers_are_at_most_three_clicks_away_and_half_of_them_two(clicks):
    asked = [(reader, *row) for reader, rows in QUESTIONS.items() for row in rows]
    assert len(asked) == 40
    far = {question: clicks[page] for _, question, page, _ in asked}
    assert max(far.values()) <= 3, far
    assert statistics.median(far.values()) <= 2, far


def test_the_table_of_clicks_is_on_its_page(root, clicks):
    rows = [
        f"| {reader} | {question} | `{page}` | {clicks[page]} |"
        for reader, asked in QUESTIONS.items()
        for question, page, _ in asked
    ]
    page = (root / "docs" / "reader-questions.md").read_text()
    assert re.findall(r"^\| .* \| `.*` \| \d \|$", page, re.MULTILINE) == rows
    median = statistics.median(clicks[name] for asked in QUESTIONS.values() for _, name, _ in asked)
    assert f"Median {median:g}," in page


def test_each_answer_has_the_heading_that_is_named(root):
    for rows in QUESTIONS.values():
        for question, page, heading in rows:
            if heading is not None:
                headings = re.findall(
                    r"^#+ (.*)$", (root / "docs" / page).read_text(), re.MULTILINE
                )
                plain = [text.replace("`", "") for text in headings]
                assert heading in plain, (question, page)

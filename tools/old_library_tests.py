"""Runs the tests and examples of intel-npu-acceleration-library through npu_llm.compat.

    python tools/old_library_tests.py CHECKOUT --examples

CHECKOUT is a folder with that library's `test/python` and `examples`. They run unchanged but for
the names of models on the hub, which become local folders. Each test file runs in a separate
process; tests that fail or are left out must be in EXCLUDED with a reason.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from junit_report import Case, read_cases

__all__ = [
    "EXCLUDED",
    "Outcome",
    "local_models",
    "run_example",
    "run_file",
    "table",
    "with_local_models",
]

# Tests that are left out or fail, by file and name, and the reasons.
EXCLUDED = {
    "test_bindings.py::*": "ctypes bindings",
    "test_module.py::test_resnet": "downloads a model by torch.hub",
    "test_device.py::test_device": "torch.device('npu') is the CPU there, and the device here",
}
_LEFT_OUT = ("test_bindings.py",)  # cannot be imported
# A sample of long lists of parameters; the first of short ones.
_SAMPLE = """

def pytest_collection_modifyitems(items):
    items[:] = items[::{every}]
"""
# Input for interactive examples; the last line ends a chat.
_TYPED = "Name three rivers.\nexit\n"
_EXAMPLES = {
    "compile_model.py": None,
    "llama.py": None,
    "llama3.py": None,
    "matmul.py": None,
    "phi-3.py": None,
    "qwen2_math_7b.py": None,
    "t5.py": None,
    "tiny_llama_chat.py": None,
    "Audio-Spectrogram-Transformer.py": "a data set and a model of the hub",
    "llava.py": "a picture of the internet",
    "phi-2.py": "langchain.llms, which langchain no longer has",
    "train_mnist.py": "downloads a data set",
}


@dataclass
class Outcome:
    """The result of a file.

    Attributes:
        name: name of the file.
        counts: number of "passed", "skipped", "excluded" and "failed".
        reasons: why tests were excluded.
        failures: unexpectedly failing tests, with the error's first line.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    reasons: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)


def local_models(folder: Path) -> dict[str, Path]:
    """Writes stand-ins for models of the hub into a folder; returns them by hub name."""
    import torch
    import transformers

    from npu_llm.checkpoint.source import find_installed_weights

    source = find_installed_weights()
    given = {"gguf_file": source.path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.path.parent, **given)
    made = {name: folder / name for name in ("llama", "phi", "phi3", "t5")}
    stored = transformers.AutoModelForCausalLM.from_pretrained(source.path.parent, **given)
    config = transformers.AutoConfig.from_pretrained(source.path.parent, **given)
    llama = transformers.LlamaForCausalLM(config)  # as stored, it counts as quantized
    llama.load_state_dict(stored.state_dict())
    llama.generation_config = stored.generation_config
    llama.save_pretrained(made["llama"])
    torch.manual_seed(0)
    small = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    transformers.T5ForConditionalGeneration(small).save_pretrained(made["t5"])
    transformers.PhiConfig().save_pretrained(made["phi"])
    transformers.Phi3Config(pad_token_id=0).save_pretrained(made["phi3"])
    for name in ("llama", "t5"):
        tokenizer.save_pretrained(made[name])
    return {
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0": made["llama"],
        "meta-llama/Meta-Llama-3-8B-Instruct": made["llama"],
        "Qwen/Qwen2-Math-7B-Instruct": made["llama"],
        "google/flan-t5-small": made["t5"],
        "microsoft/phi-2": made["phi"],
    }


def with_local_models(source: Path, target: Path, models: dict[str, Path]) -> None:
    """Copies a program, with folders in place of hub names."""
    text = source.read_text()
    for name, folder in models.items():
        text = text.replace(name, str(folder))
    target.write_text(text)


def run_file(file: Path, *, select: str | None = None, timeout_s: float = 3600) -> Outcome:
    """Runs one test file in a separate process."""
    outcome = Outcome(file.name)
    if file.name in _LEFT_OUT:
        outcome.reasons.add(EXCLUDED[f"{file.name}::*"])
        outcome.counts["excluded"] = file.read_text().count("\ndef test_")
        return outcome
    report = file.with_suffix(".xml")
    chosen = [] if select is None else ["-k", select]
    words = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "npu_llm.compat", "-m", "pytest", file.name, *words, *chosen],
            cwd=file.parent, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        outcome.failures.append(f"{file.name}: not done after {timeout_s:.0f} s")
        return outcome
    if not report.is_file():
        outcome.failures.append(
            f"{file.name}: ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"
        )
        return outcome
    for case in read_cases(report):
        _count(outcome, case)
    return outcome


def _count(outcome: Outcome, case: Case) -> None:
    name = f"{outcome.name}::{case.name}"
    if case.result != "failed":
        outcome.counts[case.result] += 1
        return
    reason = next((why for pattern, why in EXCLUDED.items() if fnmatch(name, pattern)), None)
    if reason is not None:
        outcome.counts["excluded"] += 1
        outcome.reasons.add(reason)
        return
    outcome.counts["failed"] += 1
    first = case.message.partition("\n")[0]
    outcome.failures.append(f"{name}: {first[:200]}".replace("|", "\\|"))


def run_example(file: Path, timeout_s: float = 900) -> str:
    """Runs one example; returns "runs", or the end of its error."""
    done = subprocess.run(
        [sys.executable, "-m", "npu_llm.compat", file.name],
        cwd=file.parent, input=_TYPED, capture_output=True, text=True, timeout=timeout_s,
        check=False,
    )  # fmt: skip
    return "runs" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def table(outcomes: list[Outcome]) -> str:
    """Returns the results as a Markdown table."""
    rows = ["| File | Passed | Skipped | Left out or failed | Why |", "|---|---|---|---|---|"]
    for outcome in outcomes:
        counts = outcome.counts
        out = counts["excluded"] + counts["failed"]
        why = "; ".join(sorted(outcome.reasons) + outcome.failures)
        row = f"| `{outcome.name}` | {counts['passed']:,} | {counts['skipped']:,} | {out} | {why} |"
        rows.append(row)
    total = sum((outcome.counts for outcome in outcomes), Counter())
    out = total["excluded"] + total["failed"]
    rows.append(f"| all | {total['passed']:,} | {total['skipped']:,} | {out} | |")
    return "\n".join(rows)


def main() -> int:
    """Runs the given files; returns 1 if a test failed unexpectedly."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--files", nargs="*", help="of tests; all by default")
    parser.add_argument("--examples", action="store_true", help="the examples too")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one test of N")
    parser.add_argument("-k", dest="select", help="of the tests, as for pytest")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        return _run(options, Path(name))


def _run(options: argparse.Namespace, folder: Path) -> int:
    os.environ.setdefault("NPU_LLM_CACHE_DIR", str(folder / "cache"))
    models = local_models(folder / "models")
    phi3 = {"microsoft/Phi-3-mini-4k-instruct": folder / "models" / "phi3"}
    tests = options.checkout / "test" / "python"
    names = sorted(file.name for file in tests.glob("test_*.py"))
    outcomes = []
    for file in [tests / "conftest.py", *(tests / n for n in options.files or names)]:
        with_local_models(file, folder / file.name, models | phi3)
    with (folder / "conftest.py").open("a") as conftest:
        conftest.write(_SAMPLE.format(every=options.every))
    for name in names if options.files is None else options.files:
        outcomes.append(run_file(folder / name, select=options.select))
        print(table(outcomes[-1:]).splitlines()[2], flush=True)
    results = {}
    for name, reason in _EXAMPLES.items() if options.examples else ():
        chat = {"microsoft/Phi-3-mini-4k-instruct": folder / "models" / "llama"}
        with_local_models(options.checkout / "examples" / name, folder / name, models | chat)
        results[name] = f"not run: {reason}" if reason else run_example(folder / name)
        print(f"| `examples/{name}` | {results[name]} |", flush=True)
    print(f"\n{datetime.date.today()}\n\n{table(outcomes)}")
    is_good = all(not outcome.failures for outcome in outcomes)
    return 0 if is_good and all(r == "runs" or r.startswith("not") for r in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

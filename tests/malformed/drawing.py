"""Draws malformed calls: Python expressions for arguments, words for commands, bad variables.

A value is drawn as the text of an expression, so that a finding can be read and typed again. Valid
ones stand beside the malformed, so that a call gets past its first check: `valid.<kind>()` is made
in malformed.valid.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from malformed.entry_points import Command, Entry, Parameter

__all__ = ["Batch", "Call", "draw_calls", "draw_commands"]

_NUMBERS = [
    "0", "-1", "2**31", "2**63", "-(2**63)", "2**64", "10**30", "float('nan')", "float('inf')",
    "-float('inf')", "-0.0", "1e308", "0.5", "1e-320", "True", "numpy.int64(-3)",
]  # fmt: skip
_TEXTS = [
    "''", "' '", "'\\0'", "'\\ud800'", "'x' * 100_000", "'ünï→'", "'%s%n{0}{}'", "'['", "'*'",
    "'(' * 3_000", "'\\n'", "'-1'", "'nan'", "'npu:99'", "'npu:-1'", "'cuda'", "'cpu'", "'meta'",
    "'float8'", "'aten.none'", "'[[1,'", "'a=b'", "'9' * 5_000",
]  # fmt: skip
_PATHS = [
    "'missing'", "'missing/deep/file'", "'folder'", "'empty.bin'", "'garbage.bin'", "'text.txt'",
    "'text.txt/below'", "'truncated.json'", "'truncated.safetensors'", "'truncated.xml'",
    "'/proc/self/nowhere/x'", "'/dev/full'", "'n' * 300", "'n/' * 3_000", "'a\\0b'", "'\\ud800'",
    "''", "pathlib.Path('garbage.bin')", "pathlib.Path('folder')", "'dangling'", "'loop'",
    "'model'", "'exported'", "'capture'", "'trace.json'", "'damaged'", "b'text.txt'", "'fifo'",
]  # fmt: skip
_TENSORS = [
    "torch.zeros(())", "torch.zeros(0)", "torch.zeros(2, 0, 3)", "torch.zeros(2, 3)",
    "torch.zeros(5, 7)", "torch.zeros(1, 2, 3, 4, 5)", "torch.full((4, 4), float('nan'))",
    "torch.full((4, 4), float('inf'))", "torch.zeros(4, 4, dtype=torch.float64)",
    "torch.zeros(4, 4, dtype=torch.bfloat16)", "torch.zeros(4, 4, dtype=torch.int64)",
    "torch.zeros(4, 4, dtype=torch.bool)", "torch.zeros(4, 4, dtype=torch.complex64)",
    "torch.full((1, 4), -1)", "torch.full((1, 4), 2**40)", "torch.zeros(4, 4, device='meta')",
    "torch.zeros(4, 4, device='npu')", "torch.zeros(4, 4).to_sparse()",
    "torch.zeros(4).expand(4, 4)", "torch.zeros(8, 8)[::2, ::2].t()",
    "torch.zeros(4, 4, requires_grad=True) * 2", "torch.zeros(4, 4, dtype=torch.float8_e4m3fn)",
    "torch.quantize_per_tensor(torch.zeros(4, 4), 0.1, 0, torch.qint8)",
    "torch.zeros(0, 4, device='npu')", "torch.zeros(1).expand(2**40)", "torch.zeros([1] * 30)",
]  # fmt: skip
_ARRAYS = [
    "numpy.zeros(())", "numpy.zeros((0, 4), 'f4')", "numpy.zeros((4, 4), 'c8')",
    "numpy.zeros((4, 4), object)", "numpy.array(['a', 'b'])", "numpy.zeros((4, 4), '>f4')",
    "numpy.full((4, 4), numpy.nan, 'f4')", "numpy.zeros((8, 8), 'f4')[::2, ::-2]",
    "numpy.zeros((2, 3, 4, 5), 'f2')", "numpy.zeros((4, 4), 'i8')",
]  # fmt: skip
_COLLECTIONS = [
    "[]", "()", "{}", "[1, 'a', None]", "{'a': object()}", "{1: 2}", "[[[]]]", "{'\\0': 1}",
    "valid.recursive()", "iter([1, 2])", "range(3)", "[None]", "(-1,)", "[2**63]", "{'': {}}",
    "['a', 'a']", "[float('nan')]", "[torch.zeros(2)]", "{None: None}", "set()",
]  # fmt: skip
_CALLABLES = ["int", "valid.raises", "(lambda: None)", "(lambda *a, **k: None)", "len", "dict"]
_OTHERS = [
    "None", "object()", "True", "1j", "b'\\xff\\0'", "bytearray(3)", "int", "torch", "Ellipsis",
    "torch.float32", "torch.int4", "torch.device('cpu')", "torch.device('npu', 7)", "slice(1)",
    "valid.closed_file()", "valid.module()", "torch.nn.Identity()", "NotImplemented",
    "valid.number_that_raises()", "torch.Size([2])",
]  # fmt: skip
_POOLS: dict[str, list[str]] = {
    "number": _NUMBERS,
    "text": _TEXTS,
    "path": [*_PATHS, *_TEXTS[:3]],
    "tensor": _TENSORS,
    "array": _ARRAYS,
    "collection": _COLLECTIONS,
    "callable": _CALLABLES,
}
_ANYTHING = [value for pool in _POOLS.values() for value in pool] + 3 * _OTHERS
# The first that an annotation, or a name without one, has in it. `any` takes all.
_KINDS = (
    (r"PathLike|\bPath\b", "path"),
    (r"Callable|Module|model", "callable"),
    (r"Sequence|Mapping|tuple|list|dict|Iterable|\[\]|set\[", "collection"),
    (r"Tensor|torch\.Tensor", "tensor"),
    (r"\bArray\b|ndarray", "array"),
    (r"\bstr\b|string", "text"),
    (r"\bint\b|\bfloat\b|\bbool\b|number|SymInt", "number"),
)
# These set the amount of work: with an unbounded number a call does that much.
_AMOUNTS = re.compile(
    r"times|repeats|warm|new_tokens|length|budget|seconds|interval|count|size$|sizes|most_us|"
    r"least_us|limit|n$|max_|steps|samples|rows|stride|window|poll"
)
_UNBOUNDED = {"2**31", "2**63", "2**64", "10**30", "float('inf')", "1e308", "[2**63]"}


@dataclass(frozen=True)
class Call:
    """A call of an entry point, or of a command.

    Attributes:
        subject: the entry point or command, as text.
        arguments: expressions, by position.
        named: expressions, by name.
        words: of a command. stdin: input of a command: "null", "closed" or "garbage". stdout:
            output of a command: "file", "full" or "closed".
        is_kind_wrong: whether an argument is of another kind than its annotation.
    """

    subject: str
    package: str
    arguments: tuple[str, ...] = ()
    named: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()
    stdin: str = "null"
    stdout: str = "file"
    is_kind_wrong: bool = False
    entry: Entry | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if self.entry is None:
            streams = f" <{self.stdin}" * (self.stdin != "null")
            streams += f" >{self.stdout}" * (self.stdout != "file")
            return " ".join([self.subject, *map(ascii, self.words)]) + streams
        shown = [*self.arguments, *(f"{name}={value}" for name, value in self.named)]
        return f"{self.subject}({', '.join(shown)})"


@dataclass(frozen=True)
class Batch:
    """Calls that one process makes, one after the other, under one environment."""

    calls: tuple[Call, ...]
    environment: tuple[tuple[str, str], ...] = ()


def kind_of(parameter: Parameter) -> str:
    for pattern, kind in _KINDS:
        if re.search(pattern, parameter.annotation or parameter.name):
            return kind
    return "any"


@st.composite
def _calls(draw: Any, entry: Entry) -> Call:
    plain = [one for one in entry.parameters if not one.many]
    odds = draw(st.sampled_from([0.2, 0.5, 1.0]))
    target = draw(st.sampled_from(plain)).name if plain else ""
    arguments: list[str] = []
    named: list[tuple[str, str]] = []
    is_wrong = entry.is_native
    for one in plain:
        is_malformed = one.name == target or draw(st.floats(0, 1)) < odds / 2
        if not is_malformed and not one.is_required and draw(st.booleans()):
            continue
        value = f"valid.argument({one.annotation!r}, {one.name!r}, {str(entry)!r})"
        if is_malformed:
            value, is_other = draw(_malformed(one))
            is_wrong |= is_other
        if one.is_keyword or len(arguments) < plain.index(one):
            named.append((one.name, value))
        else:
            arguments.append(value)
    slip = draw(st.integers(0, 19))
    takes_more = any(one.many == "*" for one in entry.parameters)
    if slip == 0 or (takes_more and slip < 15):
        arguments += draw(st.lists(st.sampled_from(_ANYTHING), min_size=1, max_size=3))
        is_wrong = True
    elif slip == 1 or (any(one.many == "**" for one in entry.parameters) and slip > 15):
        named.append(("bogus", draw(st.sampled_from(_ANYTHING))))
        is_wrong = True
    elif slip == 2 and arguments:
        arguments.pop()
        is_wrong = True
    return Call(
        str(entry), entry.package, tuple(arguments), tuple(named), is_kind_wrong=is_wrong,
        entry=entry,
    )  # fmt: skip


@st.composite
def _malformed(draw: Any, parameter: Parameter) -> tuple[str, bool]:
    kind = kind_of(parameter)
    is_other = kind == "any" or draw(st.integers(0, 9)) < 4
    pool = _ANYTHING if is_other else _POOLS[kind]
    if _AMOUNTS.search(parameter.name):
        pool = [value for value in pool if value not in _UNBOUNDED]
    value = draw(st.sampled_from(pool))
    own = _POOLS.get(kind, ())
    # What is in a list is its kind too, and of numbers there are several.
    return value, value not in own or kind in ("collection", "callable", "number")


# Words that make a command do little, and get it past its first check.
_VALID_WORDS: dict[str, tuple[str, ...]] = {
    "npu-compiler check": ("exported",),
    "npu-compiler explain": ("script.py",),
    "npu-compiler show": ("dump",),
    "npu-compiler target": ("list",),
    "npu-compiler tune": ("script.py",),
    "npu-llm bench": (
        *["--model", "model", "--prompt", "4", "--new", "2", "--repeats", "1", "--warm-up", "0"],
    ),
    "npu-llm chat": ("--model", "model"),
    "npu-llm eval": ("--model", "model", "--text", "text.txt"),
    "npu-llm export": ("model", "-o", "made"),
    "npu-llm generate": ("--model", "model", "--max-new-tokens", "2", "Hello"),
    "npu-llm info": ("model",),
    "npu-llm quantize": ("model", "-o", "made"),
    "npu-ops conformance": ("--list", "--op", "relu", "--dtype", "float32", "--jobs", "1"),
    "npu-ops explain": ("aten.mm", "4x4xf32"),
    "npu-ops monitor": ("-o", "monitor.csv", "--", "true"),
    "npu-ops new": ("my_op",),
    "npu-ops replay": ("capture",),
    "npu-ops run": ("--time", "script.py"),
    "npu-ops tune": ("aten.mm", "4x4xf32"),
    "npu-profiler attach": ("4194304", "--seconds", "0.1"),
    "npu-profiler compare": ("trace.json", "trace.json"),
    "npu-profiler llm": ("--model", "model", "--sizes", "4", "--new", "2", "--repeats", "1"),
    "npu-profiler matmul": (
        *["--sizes", "4", "--seconds", "0.01", "--no-peaks", "--dtypes", "float32"],
    ),
    "npu-profiler memory": ("trace.json",),
    "npu-profiler mlp": (
        *["--sizes", "4x4x4", "--seconds", "0.01", "--no-peaks", "--dtypes", "float32"],
    ),
    "npu-profiler roofline": ("trace.json", "--bandwidth", "10", "--peak", "100"),
    "npu-profiler stats": ("trace.json", "-o", "stats"),
    "npu-profiler summary": ("trace.json",),
    "npu-profiler trace": ("-o", "made.json", "script.py"),
    "npu-profiler view": ("trace.json", "-o", "page.html"),
}
_NUMBER_WORDS = ["0", "-1", "1.5", "nan", "inf", "-inf", "9" * 30, "1e400", "", "x", "١", "0x10"]
_FILE_WORDS = [
    "missing", "missing/deep/file", "folder", "empty.bin", "garbage.bin", "text.txt", "script.py",
    "text.txt/below", "truncated.json", "truncated.safetensors", "/proc/self/nowhere/x",
    "/dev/full", "n" * 300, "", "\udcff", "dangling", "loop", "model", "damaged", "trace.json",
    "capture", "exported", "picture.png", "picture.svg", "raises.py", "syntax.py", "-",
]  # fmt: skip
_TEXT_WORDS = ["", " ", "x" * 100_000, "\udcff", "ünï→", "%s{0}", "[", "*", "a,b", ",", "-x", "npu"]
_TEXT_WORDS += ["npu:99", "float8", "4x4xf32", "0x0xf32", "a=b", "stride=[1,", "[" * 3_000, "\n"]
_IS_NUMBER = ("int", "float", "count", "N", "S", "MS", "MB", "GB")
_VALUES = ["", "banana", "-1", "2", "9" * 30, "text.txt", "text.txt/below", "\udcff", "x" * 50_000]


@st.composite
def _commands(draw: Any, command: Command) -> Call:
    words = list(_VALID_WORDS.get(str(command), ()))
    options = [one for one in command.actions if one.option_strings and one.dest != "help"]
    if not draw(st.integers(0, 9)):
        words = []
    for _ in range(draw(st.integers(0 if words else 1, 3)) if options else 0):
        words = [*_option(draw, draw(st.sampled_from(options))), *words]
    slip = draw(st.integers(0, 5))
    if slip < 3 and words:
        place = draw(st.integers(0, len(words) - 1))
        words[place] = draw(st.sampled_from(_FILE_WORDS + _TEXT_WORDS + _NUMBER_WORDS))
    elif slip == 3:
        words.append(draw(st.sampled_from(_TEXT_WORDS + _FILE_WORDS)))
    stdin = draw(st.sampled_from(["null", "null", "garbage", "closed"]))
    stdout = draw(st.sampled_from(["file"] * 8 + ["full", "closed"]))
    return Call(str(command), command.package, words=tuple(words), stdin=stdin, stdout=stdout)


def _option(draw: Callable[..., Any], action: argparse.Action) -> list[str]:
    flag = draw(st.sampled_from(list(action.option_strings)))
    if action.nargs == 0:
        return [flag]
    if action.nargs == argparse.REMAINDER:
        return []  # it takes all that follows: another command's words
    kind = getattr(action.type, "__name__", "")
    if action.choices is not None and draw(st.booleans()):
        return [flag, str(draw(st.sampled_from([str(one) for one in action.choices])))]
    if kind in _IS_NUMBER or str(action.metavar) in _IS_NUMBER:
        pool = _NUMBER_WORDS
    elif kind == "Path" or re.search("FILE|DIR|PATH|PICTURE|TRACE|PAGE", str(action.metavar)):
        pool = _FILE_WORDS
    else:
        pool = _TEXT_WORDS + _FILE_WORDS[:6] + _NUMBER_WORDS
    return [flag, draw(st.sampled_from(pool))]


def draw_calls(
    entries: Sequence[Entry], variables: Sequence[str], *, count: int, size: int, first_seed: int
) -> list[Batch]:
    """Calls in batches of one package's entry points, a sixth of them under a bad variable."""
    calls = _shared_out(_calls, entries, count, first_seed)
    environments = _drawn(_environments(variables, 6), len(calls) // size + 9, first_seed)
    batches = []
    for package in sorted({call.package for call in calls}):
        of_package = [call for call in calls if call.package == package]
        for start in range(0, len(of_package), size):
            chunk = tuple(of_package[start : start + size])
            batches.append(Batch(chunk, environments[len(batches) % len(environments)]))
    return batches


def draw_commands(
    table: Sequence[Command], variables: Sequence[str], *, count: int, first_seed: int
) -> list[Batch]:
    """Commands, each in a separate process, a quarter of them with a bad variable."""
    calls = _shared_out(_commands, table, count, first_seed)
    environments = _drawn(_environments(variables, 4), count, first_seed)
    return [Batch((call,), environments[index]) for index, call in enumerate(calls)]


@st.composite
def _environments(draw: Any, names: Sequence[str], rarity: int) -> tuple[tuple[str, str], ...]:
    if draw(st.integers(1, rarity)) > 1:
        return ()
    return ((draw(st.sampled_from(names)), draw(st.sampled_from(_VALUES))),)


def _shared_out(
    strategy: Callable[[Any], Any], subjects: Sequence[Any], count: int, first_seed: int
) -> list[Any]:
    """As many draws for each subject; one more for some, or one for some where there are fewer."""
    order = list(subjects)
    random.Random(first_seed).shuffle(order)
    share, rest = divmod(count, len(order))
    found = []
    for index, subject in enumerate(order):
        of_subject = share + (index < rest)
        if of_subject:
            found += _drawn(strategy(subject), of_subject, first_seed + index)
    return found


def _drawn(strategy: Any, count: int, first_seed: int) -> list[Any]:
    found: list[Any] = []

    @seed(first_seed)
    @settings(
        max_examples=count + 1,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(one: Any) -> None:
        found.append(one)

    collect()
    # The first is always the simplest that there is. A space that is soon drawn through repeats.
    found = found[1:] or found
    return [found[index % len(found)] for index in range(count)]

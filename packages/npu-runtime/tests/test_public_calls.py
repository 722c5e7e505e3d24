"""A public call's arguments against its signature."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pytest
import torch

from npu_runtime.errors import FileAccessError, InputError, KindError
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from fractions import Fraction

T = TypeVar("T")


class Box(Generic[T]):
    size = 1


@public_call
def measured(
    tensor: torch.Tensor,
    count: int = 1,
    *,
    share: float | None = None,
    path: str | os.PathLike[str] = "here",
    sizes: Sequence[int] = (),
    pair: tuple[int, str] = (1, "a"),
    names: Mapping[str, int] | None = None,
    call: Callable[..., Any] | None = None,
    is_strict: bool = False,
) -> int:
    return count


FITTING = [
    {"count": np.int64(3)},
    {"count": torch.tensor(3)},
    {"share": 1},
    {"share": np.float32(0.5)},
    {"path": Path("x")},
    {"sizes": torch.Size([2])},
    {"sizes": iter([2])},
    {"sizes": np.array([2, 3])},
    {"sizes": torch.zeros(1).expand(2**40)},
    {"pair": [2, "b"]},
    {"names": {"a": 1}},
    {"names": None},
    {"call": print},
    {"is_strict": np.bool_(True)},
]


@pytest.mark.parametrize(
    "given",
    FITTING,
    ids=lambda given: "-".join(f"{name}={type(value).__name__}" for name, value in given.items()),
)
def test_arguments_that_fit(given):
    assert measured(torch.ones(2), **given) == given.get("count", 1)


OTHERS = [
    ("count", 1.5),
    ("count", "1"),
    ("count", torch.ones(2)),
    ("share", "0.5"),
    ("share", 1j),
    ("path", 3),
    ("path", "a\0b"),
    ("path", "\ud800"),
    ("sizes", "12"),
    ("sizes", [1, "a"]),
    ("sizes", None),
    ("sizes", np.ones(2)),
    ("sizes", np.ones((2, 2), int)),
    ("sizes", np.array(3)),
    ("pair", (1,)),
    ("pair", (1, 2)),
    ("names", [1]),
    ("call", 1),
    ("is_strict", "no"),
]


@pytest.mark.parametrize("name, value", OTHERS, ids=repr)
def test_arguments_of_another_kind(name, value):
    with pytest.raises(KindError, match=rf"measured: `{name}` must be ") as caught:
        measured(torch.ones(2), **{name: value})
    assert caught.value.code == "argument-kind"
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, InputError)


def test_a_tensor_is_no_sequence_of_other_things():
    @public_call
    def joined(texts: Sequence[str]) -> str:
        return "".join(texts)

    with pytest.raises(KindError, match=r"`texts` must be Sequence\[str\], got a tensor of \(2,\)"):
        joined(torch.ones(2))


def test_a_text_for_a_tensor_is_quoted():
    with pytest.raises(KindError, match=r"`tensor` must be torch\.Tensor, got 'x'"):
        measured("x")


def test_a_number_too_long_to_write_out_is_told_by_its_bits():
    for name in ("tensor", "count", "share"):
        with pytest.raises(
            KindError, match=f"`{name}` must be .*, got int of 16610 bits"
        ) as caught:
            measured(**{"tensor": torch.ones(2), name: 10**5000})
        assert caught.value.code == "argument-kind"


def test_number_of_arguments_is_pythons_own():
    with pytest.raises(TypeError, match="missing a required argument"):
        measured()


def test_file_that_the_system_refuses(tmp_path):
    @public_call
    def write(path: str | os.PathLike[str]) -> None:
        Path(path).write_text("x")

    with pytest.raises(FileAccessError, match="Is a directory") as caught:
        write(tmp_path)
    assert caught.value.code == "file-access"
    assert isinstance(caught.value.__cause__, IsADirectoryError)


def test_a_path_alone_takes_no_text():
    @public_call
    def parent(path: Path, below: Path | None = None, given: str | Path = "here") -> Path:
        return path.parent

    assert parent(Path("a/b"), None, "c") == Path("a")
    for arguments in (("a/b",), (Path("a"), "b"), (Path("a"), None, "a\0b")):
        with pytest.raises(KindError):
            parent(*arguments)


def test_imports_for_type_checkers_are_known():
    @public_call
    def denominator(ratio: Fraction) -> int:
        return ratio.denominator

    from fractions import Fraction as Real

    assert denominator(Real(1, 3)) == 3
    with pytest.raises(KindError, match=r"`ratio` must be Fraction, got 3"):
        denominator(3)


def test_annotations_that_are_not_known_take_anything():
    @public_call
    def take(thing: NotThere) -> Any:  # noqa: F821
        return thing

    assert take(3) == 3


def test_signature_stays():
    assert list(measured.__annotations__)[:2] == ["tensor", "count"]


def test_a_generic_class_is_held_to_its_class():
    @public_call
    def size(box: Box[int]) -> int:
        return box.size

    assert size(Box()) == 1
    with pytest.raises(KindError):
        size("x")


@pytest.mark.parametrize("given", [{"a": 1}, {"a"}, frozenset("a"), range(2)], ids=repr)
def test_what_a_collection_holds_is_looked_at(given):
    @public_call
    def pair(sizes: Sequence[int | None], names: Sequence[str]) -> None: ...

    with pytest.raises(KindError):
        pair(*([1], given) if isinstance(given, range) else (given, []))

"""Body: a JSON object whose fields are checked; those that are unknown are collected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "Body",
    "FormBody",
    "OtherFields",
    "Texts",
    "Token",
    "TokenLists",
    "Tokens",
    "other_fields",
]

Token = Annotated[int, Field(ge=0, lt=1 << 31)]
# Alternatives of a field. An error for each element of a long list would hold up other requests.
Texts = Annotated[list[str], Field(fail_fast=True)]
Tokens = Annotated[list[Token], Field(fail_fast=True)]
TokenLists = Annotated[list[Tokens], Field(fail_fast=True)]


class Body(BaseModel):
    """A JSON object.

    Attributes:
        without_effect: fields that may be given with a value that changes nothing; None for any
            value. They are dropped. Another value is refused.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())

    without_effect: ClassVar[dict[str, tuple[Any, ...] | None]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        left = {name: value for name, value in given.items() if value is not None}
        for name, values in cls.without_effect.items():
            if name in left and (values is None or left[name] in values):
                del left[name]
        return left


class FormBody(Body):
    """The fields of a form, which are text, beside its file."""


@dataclass(frozen=True)
class OtherFields:
    """Fields of a request that have no place in its schema, by their paths.

    Attributes:
        unknown: those that nothing is known of.
        unsupported: those that ask for what the server does not do.
    """

    unknown: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)


def other_fields(body: Body) -> OtherFields:
    """Returns the fields of a body and of the objects in it that are not in their schemas."""
    found = OtherFields()
    for path, owner in _bodies(body, ""):
        for name in owner.model_extra or ():
            some = found.unsupported if name in owner.without_effect else found.unknown
            some.append(f"{path}{name}")
    return found


def _bodies(value: Any, path: str) -> Iterator[tuple[str, Body]]:
    """Yields the bodies in a value, each with the beginning of its fields' paths."""
    if isinstance(value, Body):
        yield path, value
        for name, one in value.__dict__.items():
            yield from _bodies(one, f"{path}{name}.")
    elif isinstance(value, list) and value and not isinstance(value[0], (int, float, str)):
        for index, one in enumerate(value):
            yield from _bodies(one, f"{path}{index}.")

"""Body: a JSON object with checked fields; unknown ones are collected."""

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
# Alternatives of a field. Reporting an error for each element of a long list would delay other
# requests.
Texts = Annotated[list[str], Field(fail_fast=True)]
Tokens = Annotated[list[Token], Field(fail_fast=True)]
TokenLists = Annotated[list[Tokens], Field(fail_fast=True)]


class Body(BaseModel):
    """A JSON object.

    Attributes:
        without_effect: accepted fields with values without effect, which are dropped; None for any
            value. Other values are rejected.
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
    """The text fields of a form with a file."""


@dataclass(frozen=True)
class OtherFields:
    """Fields of a request that are not in its schema, by path.

    Attributes:
        unknown: unknown fields.
        unsupported: known fields that the server does not support.
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
    """Yields the bodies in a value, each with its path."""
    if isinstance(value, Body):
        yield path, value
        for name, one in value.__dict__.items():
            yield from _bodies(one, f"{path}{name}.")
    elif isinstance(value, list) and value and not isinstance(value[0], (int, float, str)):
        for index, one in enumerate(value):
            yield from _bodies(one, f"{path}{index}.")

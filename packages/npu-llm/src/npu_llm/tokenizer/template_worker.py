"""Worker process that renders chat templates with limits on memory and processor time.

npu_llm.tokenizer.chat_template runs this file by path, so that only jinja2 is imported. Requests
and replies are JSON, one per line. The environment is that of transformers' apply_chat_template.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = ["environment", "main"]


class _Generation(jinja2.ext.Extension):
    """{% generation %}: marks an assistant's text; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> Any:
        return caller()


class _PlainNames(Namespace):
    """A namespace without names that begin with an underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(
                f"`namespace` must not have names with a leading underscore, got {name!r}"
            )
        super().__setitem__(name, value)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


@cache
def environment() -> ImmutableSandboxedEnvironment:
    """Returns the environment of templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["namespace"] = _PlainNames
    return environment


@cache
def _compiled(template: str) -> jinja2.Template:
    return environment().from_string(template)


def _answer(request: dict[str, Any]) -> dict[str, str]:
    try:
        text = _compiled(request["template"]).render(**request["variables"])
        if len(text) > request["most_characters"]:
            return {"limit": f"{len(text):,} characters"}
        return {"text": text}
    except (MemoryError, OverflowError) as failure:
        return {"limit": type(failure).__name__}
    except jinja2.TemplateError as failure:
        return {"refusal": str(failure)}
    except Exception as failure:  # noqa: BLE001  # whatever a template raises, the caller is told
        return {"refusal": f"{type(failure).__name__}: {failure}"}


def main() -> None:
    """Handles requests until standard input ends."""
    memory, seconds = int(sys.argv[1]), float(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        # If the parent dies, this process must end as well.
        bound = math.ceil(time.process_time() + seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (bound, resource.RLIM_INFINITY))
        print(json.dumps(_answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

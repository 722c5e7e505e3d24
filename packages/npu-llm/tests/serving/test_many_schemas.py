"""Answers to many schemas, drawn by chance: each is JSON that the schema allows."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

COUNT = 60
WORDS = ("name", "kind", "size", "place", "when", 'é"\\')
PATTERNS = ("^[a-c]{1,4}$", "^\\d{3}-\\d{2}$", "^(on|off)?$", "^[A-Z][a-z]{0,5}$")


def schema_of(numbers, depth=0):
    """A schema with finite answers only."""
    kinds = ["string", "pattern", "integer", "boolean", "null", "enum", "const"]
    kinds += ["object", "array", "any", "reference"] if depth < 3 else []
    kind = numbers.choice(kinds) if depth else "object"
    if kind == "string":
        least = numbers.randint(0, 3)
        return {"type": "string", "minLength": least, "maxLength": least + numbers.randint(0, 9)}
    if kind == "pattern":
        return {"type": "string", "pattern": numbers.choice(PATTERNS)}
    if kind == "integer":
        least = numbers.randint(-1000, 1000)
        return {"type": "integer", "minimum": least, "maximum": least + numbers.randint(0, 5000)}
    if kind in ("boolean", "null"):
        return {"type": kind}
    if kind == "enum":
        return {"enum": numbers.sample([1, -7, "a", "b c", None, True, "ü", 2.5], 3)}
    if kind == "const":
        return {"const": numbers.choice(["x", 5, False, [1, 2]])}
    if kind == "array":
        least = numbers.randint(0, 2)
        return {"type": "array", "items": schema_of(numbers, depth + 1), "minItems": least,
                "maxItems": least + numbers.randint(0, 2)}  # fmt: skip
    if kind == "any":
        return {"anyOf": [schema_of(numbers, depth + 1) for _ in range(numbers.randint(2, 3))]}
    if kind == "reference":
        return {"$ref": "#/$defs/shared"}
    names = numbers.sample(WORDS, numbers.randint(1, 4))
    found = {
        "type": "object",
        "properties": {name: schema_of(numbers, depth + 1) for name in names},
        "required": numbers.sample(names, numbers.randint(0, len(names))),
        "additionalProperties": False,
    }
    return found if depth else {**found, "$defs": {"shared": schema_of(numbers, 4)}}


@pytest.fixture(scope="module")
def talker(serve):
    with serve("long") as running:
        yield running.client()


def test_answers_to_many_schemas_parse_and_validate(talker):
    numbers = random.Random(20)
    schemas = [schema_of(numbers) for _ in range(COUNT)]
    assert len({json.dumps(schema) for schema in schemas}) > 0.9 * COUNT

    def answer(index):
        form = {"name": "x", "schema": schemas[index]}
        return talker.chat.completions.create(
            model="long", messages=[{"role": "user", "content": f"the {index}"}], max_tokens=3000,
            temperature=(0.0, 1.0, 2.0)[index % 3], seed=index,
            response_format={"type": "json_schema", "json_schema": form},
        ).choices[0]  # fmt: skip

    with ThreadPoolExecutor(8) as threads:
        for schema, choice in zip(schemas, threads.map(answer, range(COUNT)), strict=True):
            assert choice.finish_reason == "stop", schema
            jsonschema.validate(json.loads(choice.message.content), schema)

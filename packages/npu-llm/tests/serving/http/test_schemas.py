import httpx
import jsonschema

from npu_llm.serving.http.app import PATHS
from npu_llm.serving.http.schemas.openapi import description


def test_each_path_is_described_and_no_other(server):
    told = httpx.get(f"{server.url}/openapi.json", timeout=60).json()
    assert told == description()
    assert told["openapi"].startswith("3.1")
    methods = {path: {one.upper() for one in told["paths"][path]} for path in told["paths"]}
    assert methods == {path.replace(":path}", "}"): {kind} for path, kind in PATHS.items()}


def test_schemas_are_valid_and_hold_what_is_checked():
    schemas = description()["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    chat = schemas["ChatBody"]
    assert chat["required"] == ["messages"]
    assert chat["additionalProperties"] is True
    assert chat["properties"]["n"]["maximum"] == 32
    form = description()["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]
    assert {"file", "timestamp_granularities[]"} <= set(
        form["multipart/form-data"]["schema"]["properties"]
    )


def test_it_needs_the_key_but_not_where_none_is_asked_for():
    paths = description()["paths"]
    assert "security" not in paths["/health"]["get"]
    assert {"key": []} in paths["/v1/models"]["get"]["security"]

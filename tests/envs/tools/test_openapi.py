import json

import pytest

from turngym.envs.tools.openapi import tools_of_functions, tools_of_openapi
from turngym.errors import ToolError, ToolServerError

DOCUMENT = {
    "openapi": "3.1.0",
    "paths": {
        "/items/{item id}": {
            "parameters": [{"name": "item id", "in": "path", "schema": {"type": "string", "title": "Id"}}],
            "get": {
                "operationId": "get item",
                "summary": "Get it.",
                "description": "With all that belongs to it.",
                "parameters": [
                    {"$ref": "#/components/parameters/limit"},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    {"name": "X-Key", "in": "header", "required": True, "schema": {"type": "string"}},
                    {"name": "flavour", "in": "cookie", "schema": {"type": "string"}},
                ],
            },
            "put": {
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Item"}}},
                }
            },
            "post": {"requestBody": {"content": {"multipart/form-data": {}}}},
        },
        "/all": {
            "post": {
                "operationId": "replace",
                "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "array"}}}},
            }
        },
    },
    "components": {
        "parameters": {
            "limit": {"name": "limit", "in": "query", "description": "How many", "schema": {"type": "integer"}}
        },
        "schemas": {
            "Item": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "parent": {"$ref": "#/components/schemas/Item"}},
            }
        },
    },
}


def tools(document=DOCUMENT, url="http://host/base/", headers=()):
    return {tool.schema["function"]["name"]: tool for tool in tools_of_openapi(document, url, dict(headers))}


def test_operations_are_tools():
    found = tools(headers=[("x-key", "k")])
    assert sorted(found) == ["get_item", "put_items_item_id", "replace"]  # forms are left out
    function = found["get_item"].schema["function"]
    assert function["description"] == "Get it.\n\nWith all that belongs to it."
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "item id": {"type": "string"},
            "limit": {"type": "integer", "description": "How many"},
            "X-Trace": {"type": "string"},
        },
        "required": ["item id"],
    }
    put = found["put_items_item_id"].schema["function"]["parameters"]
    assert put["required"] == ["item id", "name"]
    assert put["properties"]["parent"]["properties"]["name"] == {
        "type": "string"
    }  # a reference to itself ends somewhere
    assert "X-Key" in tools()["get_item"].schema["function"]["parameters"]["required"]


def test_arguments_go_where_they_belong():
    found = tools(headers=[("X-Key", "k")])
    request = found["get_item"].request({"item id": "a/b?", "limit": 3, "X-Trace": "t"}, {"X-Key": "k"})
    assert (request.method, request.url) == ("GET", "http://host/base/items/a%2Fb%3F")
    assert (request.params, request.headers, request.body) == ({"limit": 3}, {"X-Trace": "t", "X-Key": "k"}, None)
    put = found["put_items_item_id"].request({"item id": 7, "name": "n", "unknown": [1]}, {})
    assert (put.method, put.url) == ("PUT", "http://host/base/items/7")
    assert json.loads(put.body or b"") == {"name": "n", "unknown": [1]}  # the server is to judge
    assert found["replace"].request({"body": [1, 2]}, {}).body == b"[1, 2]"


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("get_item", {}, "item id is missing"),
        ("get_item", {"item id": ".."}, "cannot be '..'"),
        ("get_item", {"item id": ""}, "cannot be ''"),
        ("get_item", {"item id": {"a": 1}}, "wanted a text or a number"),
        ("get_item", {"item id": "1", "lmit": 1}, "takes no argument 'lmit'. Did you mean 'limit'"),
        ("get_item", {"item id": "1", "X-Trace": "a\r\nX-Admin: 1"}, "one line of ASCII"),
        ("replace", {}, "body is missing"),
    ],
)
def test_arguments_that_cannot_be_sent_go_back(name, arguments, told):
    with pytest.raises(ToolError) as raised:
        tools(headers=[("X-Key", "k")])[name].request(arguments, {})
    assert told in str(raised.value)


def test_a_document_may_give_a_path_and_never_another_host():
    for server, base in (
        ("/api/v3", "http://host/api/v3"),
        ("https://elsewhere.example/v1", "http://host/v1"),
        ("/", "http://host/base"),
    ):
        found = tools({**DOCUMENT, "servers": [{"url": server}]})
        assert found["replace"].url == f"{base}/all"


def test_function_schemas_are_tools():
    schemas = [{"type": "function", "function": {"name": "a b"}}, {"name": "plain", "parameters": {"required": ["x"]}}]
    first, second = tools_of_functions(schemas, "http://host/", "/call/{name}")
    assert first.url == "http://host/call/a%20b"
    assert second.request({"x": 1}, {}).body == b'{"x": 1}'
    with pytest.raises(ToolError, match="x is missing"):
        second.request({}, {})
    with pytest.raises(ToolServerError, match="describes a tool as 7"):
        tools_of_functions([7], "http://host", "/{name}")

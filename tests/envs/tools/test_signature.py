from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from turngym.envs.tools.signature import Signature
from turngym.errors import ConfigError, ToolError


class Point(BaseModel):
    x: int
    title: str = ""


def search(query: str, top: int = 3, kind: Literal["web", "news"] | None = None) -> list[str]:
    """Search the web.

    Slowly.

    Args:
        query: What to look for.
        top: How many results.
    """
    return []


def test_the_schema_comes_from_signature_hints_and_docstring():
    assert Signature(search, "search").schema == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the web.\n\nSlowly.",
            "parameters": {
                "type": "object",
                "required": ["query"],
                "properties": {
                    "query": {"type": "string", "description": "What to look for."},
                    "top": {"type": "integer", "description": "How many results.", "default": 3},
                    "kind": {"anyOf": [{"type": "string", "enum": ["web", "news"]}, {"type": "null"}], "default": None},
                },
            },
        },
    }


def test_other_styles_of_docstrings_and_annotations_are_read():
    def lookup(key: Annotated[str, Field(max_length=3)], also=None):
        """Look up.

        :param key: The key.
        """

    properties = Signature(lookup, "lookup").schema["function"]["parameters"]["properties"]
    assert properties == {
        "key": {"type": "string", "maxLength": 3, "description": "The key."},
        "also": {"default": None},
    }


def test_nested_models_keep_their_own_titles():
    def draw(points: list[Point]):
        return points

    signature = Signature(draw, "draw")
    parameters = signature.schema["function"]["parameters"]
    assert parameters["properties"] == {"points": {"type": "array", "items": {"$ref": "#/$defs/Point"}}}
    assert set(parameters["$defs"]["Point"]["properties"]) == {"x", "title"}
    assert signature.bind({"points": [{"x": 1}]}) == {"points": [Point(x=1)]}


def test_arguments_are_bound_and_defaults_left_to_the_function():
    assert Signature(search, "search").bind({"query": "a", "top": "5"}) == {"query": "a", "top": 5}


@pytest.mark.parametrize("name", ["json", "model_config", "_x", "schema", "copy"])
def test_names_that_pydantic_takes_for_itself_are_names_of_arguments(name):
    scope: dict = {}
    exec(f"def f({name}: int): return {name}", scope)
    signature = Signature(scope["f"], "f")
    assert list(signature.schema["function"]["parameters"]["properties"]) == [name]
    assert signature.bind({name: 1}) == {name: 1}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "search was not called: query is missing"),
        ({"query": "a", "limit": 1}, "it takes no argument limit"),
        ({"query": "a", "top": "many"}, "top: Input should be a valid integer"),
        ({"query": ["a"]}, "query: Input should be a valid string, got ['a']"),
        ({"query": "a", "kind": "x"}, "kind: Input should be 'web' or 'news', got 'x'"),
        ({"query": "a", **{f"x{i}": 1 for i in range(9)}}, "and 4 more"),
    ],
)
def test_wrong_arguments_are_told_to_the_model(arguments, told):
    with pytest.raises(ToolError) as raised:
        Signature(search, "search").bind(arguments)
    assert told in str(raised.value)


def test_what_no_model_could_call_is_refused():
    def many(*args: int):
        return args

    def opaque(thing: "Signature"):
        return thing

    def unknown(thing: "Nowhere"):  # type: ignore[name-defined]  # noqa: F821
        return thing

    for function, told in ((many, "name each parameter"), (opaque, "no JSON schema"), (unknown, "cannot be read")):
        with pytest.raises(ConfigError, match=told):
            Signature(function, "f")

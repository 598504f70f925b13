"""Tools of an OpenAPI document: each operation is one, its parameters and its JSON body are the arguments."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from ...errors import ToolError, ToolServerError
from ...registry import nearest
from .calls import Schema, schema_name
from .http_calls import HttpRequest

Json = Any  # a document is JSON of its own making

_METHODS = ("get", "put", "post", "delete", "patch")
_MOST_NESTED = 12  # references inside of references; what lies deeper may be anything


@dataclass(frozen=True)
class HttpTool:
    """One operation of a server.

    Attributes:
        places: Argument to where it goes; those without a place are fields of the body.
        takes_body: Arguments without a place form a JSON object.
        whole_body: The argument that is the body by itself, where the body is no object.
    """

    schema: Schema
    method: str
    url: str
    places: Mapping[str, Literal["path", "query", "header"]] = field(default_factory=dict)
    takes_body: bool = True
    whole_body: str | None = None

    def request(self, arguments: Mapping[str, Any], headers: Mapping[str, str]) -> HttpRequest:
        """Return the request of a call.

        Raises:
            ToolError: An argument is missing, or cannot be put where it belongs.
        """
        parameters = self.schema["function"].get("parameters", {})
        if missing := [name for name in parameters.get("required", ()) if name not in arguments]:
            raise ToolError(f"{schema_name(self.schema)} was not called: {', '.join(missing)} is missing")
        url, query, extra, body = self.url, dict[str, Any](), dict[str, str](), dict[str, Any]()
        whole: Any = None
        for name, value in arguments.items():
            place = self.places.get(name)
            if place == "path":
                url = url.replace(f"{{{name}}}", _path_segment(name, value))
            elif place == "query" and value is not None:
                query[name] = value if isinstance(value, list) else _plain(value)
            elif place == "header" and value is not None:
                extra[name] = _header(name, value)
            elif name == self.whole_body:
                whole = value
            elif place is None and self.takes_body:
                body[name] = value
            elif place is None:
                raise ToolError(f"{schema_name(self.schema)} takes no argument {name!r}.{nearest(name, self.places)}")
        sent = json.dumps(whole if self.whole_body else body).encode() if self.takes_body else None
        return HttpRequest(self.method, url, query, {**extra, **headers}, sent)


def tools_of_functions(schemas: list[Json], url: str, call_path: str) -> list[HttpTool]:
    """Return the tools that a list of OpenAI function schemas describes: POST of the arguments to `call_path`."""
    tools = []
    for schema in schemas:
        if isinstance(schema, dict) and isinstance(schema.get("name"), str):
            schema = {"type": "function", "function": schema}
        if not isinstance(schema, dict) or not isinstance((schema.get("function") or {}).get("name"), str):
            raise ToolServerError(f'{url} describes a tool as {schema!r:.200}; wanted {{"function": {{"name": ...}}}}')
        path = call_path.replace("{name}", quote(schema["function"]["name"], safe=""))
        tools.append(HttpTool(schema, "POST", url.rstrip("/") + path))
    return tools


def tools_of_openapi(document: Json, url: str, given_headers: Mapping[str, str]) -> list[HttpTool]:
    """Return the tools of a document (OpenAPI 3).

    Operations that take anything but JSON are left out. Headers that are given for all calls are no arguments.
    """
    base = _base_of(document, url)
    given = {name.lower() for name in given_headers}
    tools: dict[str, HttpTool] = {}
    for path, item in (document.get("paths") or {}).items():
        for method in _METHODS:
            operation = item.get(method) if isinstance(item, dict) else None
            tool = _tool(document, base, path, method, item, operation, given) if operation is not None else None
            if tool is not None:
                tools[schema_name(tool.schema)] = tool
    return list(tools.values())


def _tool(
    document: Json, base: str, path: str, method: str, item: Json, operation: Json, given: set[str]
) -> HttpTool | None:
    properties: dict[str, Json] = {}
    required: list[str] = []
    places: dict[str, Literal["path", "query", "header"]] = {}
    for parameter in _parameters(document, item, operation):
        name, place = parameter["name"], parameter["in"]
        if place not in ("path", "query", "header") or (place == "header" and name.lower() in given):
            continue
        schema = _resolved(document, parameter.get("schema") or {})
        told = parameter.get("description")
        properties[name] = {**schema, "description": told} if told else schema
        places[name] = place
        if parameter.get("required") or place == "path":
            required.append(name)
    body = _resolved(document, operation.get("requestBody") or {})
    content = (body.get("content") or {}).get("application/json")
    if body and content is None:
        return None
    whole_body = None
    if content is not None:
        schema = content.get("schema") or {}
        fields = schema.get("properties")
        if isinstance(fields, dict) and not set(fields) & set(properties):
            properties |= fields
            required += [name for name in schema.get("required", ()) if name in fields]
        else:
            whole_body = next(name for name in ("body", "request_body", "json_body") if name not in properties)
            properties[whole_body] = schema
            required += [whole_body] if body.get("required") else []
    name = _name(operation.get("operationId") or f"{method}{path}")
    told = "\n\n".join(filter(None, [operation.get("summary"), operation.get("description")]))
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": name, "description": told, "parameters": parameters}
    return HttpTool(
        {"type": "function", "function": function}, method.upper(), base + path, places, content is not None, whole_body
    )


def _parameters(document: Json, item: Json, operation: Json) -> Iterator[Json]:
    """Yield the parameters of an operation; its own stand for those of the whole path."""
    found = {}
    for parameter in [*(item.get("parameters") or ()), *(operation.get("parameters") or ())]:
        parameter = _resolved(document, parameter)
        found[parameter.get("name"), parameter.get("in")] = parameter
    yield from (parameter for (name, place), parameter in found.items() if name and place)


def _resolved(document: Json, value: Json, depth: int = 0) -> Json:
    """Put what references name in their place."""
    if isinstance(value, list):
        return [_resolved(document, each, depth) for each in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref")
    if not isinstance(reference, str):
        return {key: _resolved(document, each, depth) for key, each in value.items() if key != "title"}
    if depth == _MOST_NESTED or not reference.startswith("#/"):
        return {}
    found = document
    for part in reference[2:].split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, dict) else {}
    return _resolved(document, found, depth + 1)


def _base_of(document: Json, url: str) -> str:
    """Return where paths begin: at the server that the user named, below the path that the document gives."""
    servers = document.get("servers") or []
    path = urlsplit(str(servers[0].get("url", ""))).path if servers else ""
    if not path.strip("/"):
        return url.rstrip("/")
    scheme, host, _, _, _ = urlsplit(url)
    return f"{scheme}://{host}{path.rstrip('/')}"


def _name(name: str) -> str:
    return re.sub(r"[^\w-]+", "_", name).strip("_")[:64]


def _path_segment(name: str, value: Any) -> str:
    text = _plain(value)
    if text in ("", ".", ".."):
        raise ToolError(f"{name} cannot be {text!r}")
    return quote(str(text), safe="")


def _header(name: str, value: Any) -> str:
    text = str(_plain(value))
    if not text.isascii() or not text.isprintable():
        raise ToolError(f"{name} goes into a header, which takes one line of ASCII")
    return text


def _plain(value: Any) -> str | int | float | bool:
    if isinstance(value, str | int | float | bool):
        return str(value).lower() if isinstance(value, bool) else value
    raise ToolError(f"wanted a text or a number, got {value!r:.80}")

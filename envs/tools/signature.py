"""A function as a tool: its JSON schema from signature, type hints and docstring, and arguments checked against it."""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from ...errors import ConfigError, ToolError
from .calls import Schema

_MOST_PROBLEMS = 5  # of one call's arguments, named to the model


class Signature:
    """What a function takes.

    Args:
        function: A plain function or a coroutine function.
        name: What the model calls it.
        skips_first: Its first parameter is `self`, and not the model's to give.

    Raises:
        ConfigError: A model could not call it.
    """

    def __init__(self, function: Callable[..., Any], name: str, *, skips_first: bool = False) -> None:
        self.name = name
        documented = docstring_parser.parse(inspect.getdoc(function) or "")
        told = {parameter.arg_name.lstrip("*"): parameter.description or "" for parameter in documented.params}
        try:
            parameters = list(inspect.signature(function).parameters.values())[1 if skips_first else 0 :]
        except (TypeError, ValueError) as error:  # of some functions that are written in C
            raise ConfigError(f"tool {name!r} does not say what it takes: {error}") from error
        hints = _hints(function, name)
        # Any: what pydantic takes is a type and a field.
        self._names = {f"argument_{index}": parameter.name for index, parameter in enumerate(parameters)}
        fields: dict[str, Any] = {}
        for field, parameter in zip(self._names, parameters, strict=True):
            fields[field] = _field(parameter, hints.get(parameter.name, Any), told.get(parameter.name), name)
        try:
            self._model: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
            parameters_schema = _without_titles(self._model.model_json_schema())
        except PydanticUserError as error:
            raise ConfigError(f"tool {name!r} takes what has no JSON schema: {str(error).splitlines()[0]}") from error
        parameters_schema.setdefault("properties", {})
        parameters_schema.pop("additionalProperties")  # known without saying, and `bind` holds it
        description = "\n\n".join(filter(None, [documented.short_description, documented.long_description]))
        self.schema: Schema = {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters_schema},
        }

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them; those left out are its own defaults.

        Raises:
            ToolError: They are not what it takes.
        """
        try:
            model = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            raise ToolError(f"{self.name} was not called: {_told(error)}") from error
        except RecursionError as error:
            raise ToolError(f"{self.name} was not called: its arguments are nested too deeply") from error
        return {self._names[field]: getattr(model, field) for field in model.model_fields_set}


def _field(parameter: inspect.Parameter, hint: Any, told: str | None, name: str) -> Any:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ConfigError(f"tool {name!r} takes {parameter}, which cannot be given by name; name each parameter")
    default = ... if parameter.default is parameter.empty else parameter.default
    # Under names of our own: pydantic refuses some that are good names for parameters (`json`, `_x`, `model_id`).
    return (hint, Field(default, alias=parameter.name, description=told or None))


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"the annotations of tool {name!r} cannot be read: {error}") from error


def _without_titles(schema: Any) -> Any:
    """Drop the titles that pydantic adds; a property of that name stays."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(each) for name, each in value.items()}
        if key in ("properties", "$defs")
        else value
        if key in ("default", "enum", "const", "examples")
        else _without_titles(value)
        for key, value in schema.items()
        if key != "title"
    }


def _told(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False)
    lines = []
    for problem in problems[:_MOST_PROBLEMS]:
        place = ".".join(map(str, problem["loc"]))
        if problem["type"] == "missing":
            lines.append(f"{place} is missing")
        elif problem["type"] == "extra_forbidden":
            lines.append(f"it takes no argument {place}")
        else:
            lines.append(f"{place}: {problem['msg']}, got {problem['input']!r:.80}")
    more = len(problems) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "")

"""Checks keyword arguments against a signature before anything is built with them."""

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from ..errors import ConfigError

_SIMPLE = (bool, int, float, str, list, tuple, dict, set)


def check_arguments(
    owner: str,
    function: Callable[..., object],
    kwargs: Mapping[str, Any],
    *,
    hidden: Sequence[str] = (),
    also: Sequence[str] = (),
) -> None:
    """Check `kwargs` against what `function` (often a class) takes.

    Args:
        owner: Named in error messages.
        function: Its signature and annotations are read; it is not called.
        kwargs: Name to value.
        hidden: Parameters that are filled in elsewhere and not the user's to give.
        also: Parameters taken elsewhere, only named in messages.

    Raises:
        ConfigError: A keyword is unknown, missing, or has a value of another simple type.
    """
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in hidden and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    annotations = _annotations(function)
    for name, value in kwargs.items():
        if name in parameters:
            wanted = annotations.get(name, Any)
            if not _fits(value, wanted):
                raise ConfigError(f"{owner}: {name} wants {_spell(wanted)}, got {value!r}{_hint(value, wanted)}")
        elif not takes_any:
            raise ConfigError(f"{owner} takes no argument {name!r}.{_what_it_takes(name, [*parameters, *also])}")
    missing = [n for n, p in parameters.items() if p.default is p.empty and n not in kwargs]
    if missing:
        raise ConfigError(f"{owner} needs {', '.join(missing)}; give it as --agent_args.{missing[0]} VALUE")


def _what_it_takes(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    suggestion = f" Did you mean {close[0]!r}?" if close else ""
    return f"{suggestion} It takes: {', '.join(known) or 'none'}."


def _annotations(function: Callable[..., object]) -> dict[str, Any]:
    source = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        return typing.get_type_hints(source)
    except (NameError, TypeError):
        return {}  # annotations that only a type checker can read: the values go unchecked


def _fits(value: object, wanted: Any) -> bool:
    """Say whether `value` is of a simple wanted type; what is not simple passes."""
    origin = typing.get_origin(wanted)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(wanted))
    if origin is Literal:
        return value in typing.get_args(wanted)
    kind = origin or wanted
    if kind is type(None):
        return value is None
    if kind in (tuple, list, Sequence):
        return isinstance(value, list | tuple)
    if kind is Mapping:
        return isinstance(value, Mapping)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(kind, type) or kind not in _SIMPLE or isinstance(value, kind)


def _spell(wanted: Any) -> str:
    if typing.get_origin(wanted) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(wanted)))
    return wanted.__name__ if isinstance(wanted, type) and not typing.get_args(wanted) else str(wanted)


def _hint(value: object, wanted: Any) -> str:
    if not isinstance(value, str) and _fits("", wanted):
        return f" ({type(value).__name__}); quote it to keep it text: '\"{value}\"'"
    return f" ({type(value).__name__})"

"""Runs inside sandboxes: what becomes of arguments and exceptions that crossed from one to the other."""

import builtins
from typing import Any  # of plain data whose form the program chose


def write_back(old: list[Any], new: list[Any]) -> None:
    """Give arguments the contents that the program left in its copies."""
    for before, after in zip(old, new, strict=True):
        if type(before) is type(after):
            _write_into(before, after)


def _write_into(before: Any, after: Any) -> None:
    if isinstance(before, list):
        for index, (left, right) in enumerate(zip(before, after, strict=False)):
            if isinstance(left, list | dict | set) and type(left) is type(right):
                _write_into(left, right)
                after[index] = left  # the same object as before: a test may hold it
        before[:] = after
    elif isinstance(before, dict):
        for key, left in before.items():
            if key in after and isinstance(left, list | dict | set) and type(left) is type(after[key]):
                _write_into(left, after[key])
                after[key] = left
        before.clear()
        before.update(after)
    elif isinstance(before, set):
        before.clear()
        before.update(after)


def rebuild(names: list[str], text: str) -> Exception:
    """Return an exception of the first of these built-in types that can be made from a text."""
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(text)
            except TypeError:
                continue  # UnicodeDecodeError and its like want more
    return RuntimeError(text)


def rebuild_own(kinds: list[type[Exception]], names: list[str], text: str) -> Exception:
    """Return an exception that is of all these types, and of a built-in one as `rebuild` makes it."""
    error = rebuild(names, text)
    if not kinds:
        return error
    try:
        made = type(kinds[0].__name__, (*kinds, type(error)), {})(text)
    except TypeError:  # types that cannot be joined
        made = kinds[0](text)
    return made  # type: ignore[no-any-return]

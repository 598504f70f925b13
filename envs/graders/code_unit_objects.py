"""Runs inside a sandbox beside tests: what stands there for objects, classes and functions of the program.

The program decides what an object of its own does when it is asked. Whatever would pass a test that wanted plain data
is decided here instead: an object equals no plain data, is in no order with it, is no number, holds what iterating over
it gives, and swallows no exception. Whether two objects are equal is for the program to say only if they are of one
class.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol  # Any: of what the program gives

_BINARY = (
    *("lt", "le", "gt", "ge"),
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor"),
)


class Ask(Protocol):
    """Has the program do something with a target and arguments, and returns what came of it."""

    def __call__(self, operation: str, target: "Handle", /, *args: Any, **kwargs: Any) -> Any:
        """Do it; `code_unit_solution` knows the operations."""
        ...


class Handle:
    """An object of the program; what is done with it is done there.

    Args:
        reference: What stands for it: a number and the name of its class.
        ask: Reaches the program.
    """

    __slots__ = ("_turngym_ask", "_turngym_reference")

    def __init__(self, reference: str, ask: Ask) -> None:
        object.__setattr__(self, "_turngym_reference", reference)
        object.__setattr__(self, "_turngym_ask", ask)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{name!r} of a program's object is not to be had in tests")
        return self._turngym_ask("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._turngym_ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._turngym_ask("delattr", self, name)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call it, there."""
        return self._turngym_ask("call", self, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return are_alike(self, other) and self._turngym_ask("equal", self, other) is True

    def __hash__(self) -> int:
        return self._turngym_ask("hash", self)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return self._turngym_ask("bool", self)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return self._turngym_ask("str", self)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return self._turngym_ask("repr", self)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return self._turngym_ask("len", self)  # type: ignore[no-any-return]

    def __iter__(self) -> Any:
        return self._turngym_ask("iter", self)

    def __next__(self) -> Any:
        return self._turngym_ask("next", self)

    def __contains__(self, item: object) -> bool:
        return any(found is item or found == item for found in self)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self._turngym_ask("slice", self, key.start, key.stop, key.step)
        return self._turngym_ask("getitem", self, key)

    def __setitem__(self, key: Any, value: object) -> None:
        self._turngym_ask("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        self._turngym_ask("delitem", self, key)

    def __enter__(self) -> Any:
        return self._turngym_ask("enter", self)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        # The kind only, and of a failed assertion not even that: its words tell what was expected.
        if kind is None or issubclass(kind, AssertionError):
            self._turngym_ask("exit", self, [])
        else:
            self._turngym_ask("exit", self, [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"])

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("a program's object cannot be copied in tests")


def _binary(name: str) -> Callable[[Handle, object], Any]:
    def operate(self: Handle, other: object) -> Any:
        return self._turngym_ask(name, self, other) if are_alike(self, other) else NotImplemented

    return operate


for _name in _BINARY:
    setattr(Handle, f"__{_name.strip('_')}__", _binary(_name))


class Named(Handle):
    """A function or class that the tests name."""

    __slots__ = ()

    @property
    def __name__(self) -> str:
        """The name."""
        return self._turngym_reference  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other.__name__ == self.__name__

    def __hash__(self) -> int:
        return hash(self.__name__)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{self.__name__} of the program>"

    __str__ = __repr__

    def __instancecheck__(self, thing: object) -> bool:
        return isinstance(thing, Handle) and self._turngym_ask("isinstance", thing, self) is True

    def __subclasscheck__(self, kind: object) -> bool:
        return isinstance(kind, Handle) and self._turngym_ask("issubclass", kind, self) is True


for _kind in (Handle, Named):
    # Else every object had the docstrings above.
    _kind.__doc__ = property(lambda self: self._turngym_ask("getattr", self, "__doc__"))  # type: ignore[assignment]


def reference_of(thing: object) -> str | None:
    """Return what stands for an object of the program; None for everything else."""
    return thing._turngym_reference if isinstance(thing, Handle) else None


def are_alike(left: object, right: object) -> bool:
    """Say whether both are objects of one class of the program."""
    return (
        type(left) is type(right) is Handle
        and left._turngym_reference.partition(" ")[2] == right._turngym_reference.partition(" ")[2]
    )


def is_class_name(name: str) -> bool:
    """Say whether the tests mean a class by this name: it begins with a capital letter."""
    return name.lstrip("_")[:1].isupper()


def is_exception_name(name: str) -> bool:
    """Say whether the tests mean a class of exceptions by this name."""
    return is_class_name(name) and name.endswith(("Error", "Exception"))

"""Plain data as bytes: what crosses the border of a sandbox, in both directions.

It also runs inside sandboxes, so it imports next to nothing. `decode` takes bytes that a hostile program may have
forged: they become None, bool, int, float, str, bytes, list, tuple, set, frozenset and dict of exactly these types, or
a ValueError. Objects cross only where both sides agree on references to them: texts that stand in their place.
"""

from collections.abc import Callable

MAX_DEPTH = 64
_MAX_SAME_HASH = 64  # keys of one hash in one table: more would make it slow on purpose
_CONTAINERS = {list: b"l", tuple: b"t", set: b"e", frozenset: b"z", dict: b"d"}
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, *_CONTAINERS})
_CONSTANTS = {b"N": None, b"T": True, b"F": False}
_ESCAPES = "surrogatepass"


def encode(value: object, refer: Callable[[object], str | None] | None = None) -> bytes:
    """Return plain data as bytes; subclasses count as what they extend, numpy's numbers and arrays as Python's.

    Args:
        value: The data.
        refer: Gives the text that stands for an object, or None for what is to be written as plain data; it is not
            asked about values of the plain types themselves.

    Raises:
        TypeError: It is, or holds, something else.
        ValueError: It is nested more than `MAX_DEPTH` deep.
    """
    parts: list[bytes] = []
    _write(value, parts, MAX_DEPTH, refer)
    return b"".join(parts)


def decode(data: bytes, max_values: int = 1_000_000, resolve: Callable[[str], object] | None = None) -> object:
    """Return what `encode` was given.

    Args:
        data: The bytes.
        max_values: Most values that they may hold.
        resolve: Gives the object that a text stands for; without it, nothing may stand for an object.

    Raises:
        ValueError: The bytes are not of that form, hold more values, or are nested too deeply.
    """
    reader = _Reader(data, max_values, resolve)
    value = reader.read(MAX_DEPTH)
    if reader.position != len(data):
        raise ValueError(f"{len(data) - reader.position} bytes too many")
    return value


def decode_all(data: bytes, max_values: int = 1_000_000) -> tuple[list[object], bool]:
    """Return the values that stand one after another, up to the first malformed one, and whether there is none."""
    reader = _Reader(data, max_values)
    values: list[object] = []
    try:
        while reader.position < len(data):
            values.append(reader.read(MAX_DEPTH))
    except ValueError:
        return values, False
    return values, True


def _write(value: object, parts: list[bytes], depth: int, refer: Callable[[object], str | None] | None = None) -> None:
    kind = type(value)
    if refer is not None and kind not in _PLAIN and (reference := refer(value)) is not None:
        text = reference.encode("utf-8", _ESCAPES)
        parts.append(b"o%d:%s" % (len(text), text))
    elif value is None or kind is bool:
        parts.append(b"N" if value is None else b"T" if value else b"F")
    elif issubclass(kind, int):
        parts.append(b"i%s;" % int.__format__(value, "x").encode())  # type: ignore[arg-type]
    elif issubclass(kind, float):
        parts.append(b"f%s;" % float.hex(value).encode())  # type: ignore[arg-type]
    elif issubclass(kind, str):
        text = str.encode(value, "utf-8", _ESCAPES)  # type: ignore[arg-type]
        parts.append(b"s%d:%s" % (len(text), text))
    elif issubclass(kind, bytes):
        parts.append(b"b%d:%s" % (bytes.__len__(value), value))  # type: ignore[arg-type]
    elif kind.__module__ == "numpy" and hasattr(kind, "tolist"):
        _write(value.tolist(), parts, depth - 1, refer)  # type: ignore[attr-defined]
    else:
        _write_container(value, kind, parts, depth, refer)


def _write_container(
    value: object, kind: type, parts: list[bytes], depth: int, refer: Callable[[object], str | None] | None
) -> None:
    if depth <= 0:
        raise ValueError(f"something nested more than {MAX_DEPTH} deep")
    for container, tag in _CONTAINERS.items():
        if issubclass(kind, container):
            parts.append(b"%s%d:" % (tag, container.__len__(value)))
            for item in container.__iter__(value):
                _write(item, parts, depth - 1, refer)
                if container is dict:
                    _write(dict.__getitem__(value, item), parts, depth - 1, refer)
            return
    raise TypeError(f"an object of type {kind.__name__}")


class _Reader:
    """Reads values off bytes, each at `position`."""

    def __init__(self, data: bytes, max_values: int, resolve: Callable[[str], object] | None = None) -> None:
        self._data = data
        self._resolve = resolve
        self._values_left = max_values
        self.position = 0

    def read(self, depth: int) -> object:
        """Read one value."""
        self._values_left -= 1
        if depth < 0 or self._values_left < 0:
            raise ValueError("too many values, or nested too deeply")
        tag = self._take(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == b"i":
            return int(self._until(b";", len(self._data)), 16)
        if tag == b"f":
            try:
                return float.fromhex(self._until(b";", 40).decode("ascii"))
            except OverflowError as error:
                raise ValueError(str(error)) from None
        size = int(self._until(b":", 20))
        if tag == b"s":
            return self._take(size).decode("utf-8", _ESCAPES)
        if tag == b"b":
            return self._take(size)
        if tag == b"o" and self._resolve is not None:
            return self._resolve(self._take(size).decode("utf-8", _ESCAPES))
        return self._read_container(tag, size, depth)

    def _read_container(self, tag: bytes, size: int, depth: int) -> object:
        if tag not in _CONTAINERS.values() or size < 0:
            raise ValueError(f"no value begins with {tag!r}")
        items = [self.read(depth - 1) for _ in range(2 * size if tag == b"d" else size)]
        if tag == b"l":
            return items
        if tag == b"t":
            return tuple(items)
        keys = items[::2] if tag == b"d" else items
        _check_keys(keys)
        if tag == b"d":
            return dict(zip(keys, items[1::2], strict=True))
        return set(keys) if tag == b"e" else frozenset(keys)

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self.position:
            raise ValueError("the data ends too early")
        self.position += size
        return self._data[self.position - size : self.position]

    def _until(self, end: bytes, max_bytes: int) -> bytes:
        stop = self._data.find(end, self.position, self.position + max_bytes)
        if stop < 0:
            raise ValueError(f"no {end!r} where one was wanted")
        found = self._take(stop - self.position)
        self.position += 1
        return found


def _check_keys(keys: list[object]) -> None:
    counts: dict[int, int] = {}
    for key in keys:
        try:
            number = hash(key)
        except TypeError as error:
            raise ValueError(str(error)) from None
        if key == key:  # each NaN has a hash of its own, but older Pythons give them all one
            counts[number] = counts.get(number, 0) + 1
        if counts.get(number, 0) > _MAX_SAME_HASH:
            raise ValueError("too many keys of one hash")

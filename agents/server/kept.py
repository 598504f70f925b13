"""Lists of JSON that a session keeps: what several of them begin with is kept once."""

import marshal
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

Json = Any  # what `json.loads` gives


@dataclass(frozen=True, eq=False, slots=True)
class Kept:
    """A list by its last value.

    Attributes:
        before: The list without it; None where it is the only one.
        value: The last value.
        digest: Of all values.
    """

    before: "Kept | None"
    value: Json
    digest: bytes

    def values(self) -> list[Json]:
        """Return all values."""
        found, place = [self.value], self.before
        while place is not None:
            found.append(place.value)
            place = place.before
        return found[::-1]


class KeptLists:
    """The lists of one session."""

    def __init__(self) -> None:
        self._known: dict[bytes, Kept] = {}

    def add(self, values: Iterable[Json], before: Kept | None = None) -> Kept:
        """Return a list that goes on from another one, or from none, by at least one value."""
        last = before
        for value in values:
            said = (b"" if last is None else last.digest) + marshal.dumps(value, 2)  # version 2 has no references
            digest = blake2b(said, digest_size=16).digest()
            last = self._known.setdefault(digest, Kept(last, value, digest))
        assert last is not None  # a request holds something
        return last

    def shared(self, value: Json) -> Json:
        """Return the first value that was like this one."""
        return self.add([value]).value

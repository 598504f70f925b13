"""When two sets of plain data are equal, though their members' types count or floats may differ a little.

A program chooses what its sets hold, so nothing here takes longer than the product of the two sizes, however deep sets
are nested and whatever their hashes.
"""

from collections.abc import Callable, Collection

_MOST_UNLIKE = 64  # members that are compared each with each, for want of an equal one


class Forms:
    """Numbers for hashable values: the same number for the same form, members of sets in any order.

    Args:
        number: The form of a number.
        exact_types: The type is part of the form, but lists count as tuples if `tuple_is_list`.
        tuple_is_list: See `exact_types`.
    """

    def __init__(self, number: Callable[[float], str], exact_types: bool, tuple_is_list: bool) -> None:
        self._number = number
        self._exact_types = exact_types
        self._tuple_is_list = tuple_is_list
        self._known: dict[str, int] = {}  # by text, whose hash nobody outside can choose

    def of(self, value: object) -> int:
        """Return the number of a value's form."""
        if isinstance(value, tuple):
            text = f"tuple {[self.of(item) for item in value]}"
        elif isinstance(value, set | frozenset):
            kind = type(value).__name__ if self._exact_types else "set"
            text = f"{kind} {sorted(self.of(item) for item in value)}"
        elif isinstance(value, int | float):
            kind = type(value).__name__ if self._exact_types else "number"
            text = f"{kind} {self._number(value)}"
        else:
            text = f"{type(value).__name__} {value!r}"
        return self._known.setdefault(text, len(self._known))


def same_set(
    got: Collection[object], wanted: Collection[object], forms: Forms, same: Callable[[object, object], bool] | None
) -> bool:
    """Say whether each member of the one is a member of the other.

    Args:
        got: One set.
        wanted: The other.
        forms: Members of one form are the same.
        same: Says whether members of different forms are the same too; it may hold of a and b, and of b and c, but not
            of a and c. In sets of more than 64 members, those with a member of their form have found their partner.
    """
    if len(got) != len(wanted):
        return False
    partners: dict[int, list[int]] = {}  # by form
    for index, member in enumerate(wanted):
        partners.setdefault(forms.of(member), []).append(index)
    taken: dict[int, int] = {}  # by index in `wanted`
    unlike = []
    for index, member in enumerate(got):
        alike = partners.get(forms.of(member))
        if alike:
            taken[alike.pop()] = index
        else:
            unlike.append(index)
    if same is None or not unlike or len(unlike) > _MOST_UNLIKE:
        return not unlike
    free = [index for index in range(len(wanted)) if index not in taken or len(wanted) <= _MOST_UNLIKE]
    return _Matching([*got], [*wanted], free, taken, same).covers(unlike)


class _Matching:
    """Partners for members, each with one of its own: augmenting paths (Kuhn 1955)."""

    def __init__(
        self,
        got: list[object],
        wanted: list[object],
        free: list[int],
        taken: dict[int, int],
        same: Callable[[object, object], bool],
    ) -> None:
        self._got = got
        self._wanted = wanted
        self._free = free
        self._taken = taken
        self._same = same
        self._found: dict[tuple[int, int], bool] = {}

    def covers(self, members: list[int]) -> bool:
        """Say whether all these find a partner, while the others keep theirs or find another."""
        return all(self._place(member, set()) for member in members)

    def _place(self, member: int, tried: set[int]) -> bool:
        for partner in self._free:
            if partner not in tried and self._are_same(member, partner):
                tried.add(partner)
                if partner not in self._taken or self._place(self._taken[partner], tried):
                    self._taken[partner] = member
                    return True
        return False

    def _are_same(self, member: int, partner: int) -> bool:
        if (member, partner) not in self._found:
            self._found[member, partner] = self._same(self._got[member], self._wanted[partner])
        return self._found[member, partner]

"""The members of a mixture, from what the user gave."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..errors import ConfigError
from ..registry import nearest
from .arguments import check_arguments
from .datasets import load_tasks
from .factory import EnvFactory
from .task import Split, Task

MemberSpec = str | Mapping[str, Any]  # Any: what an environment takes is its own affair
_FORM = '{"id": "Math", "name": "math", "weight": 2, "args": {...}, "data": {"dataset": ...}}'
_KEYS = ("id", "name", "weight", "args", "data")
_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class MemberData:
    """A dataset of one member; the options of `--data` and `--eval` in small.

    Attributes:
        dataset: A hub name, a folder or files, comma-separated.
        split: Split to train on.
        eval_dataset: Held-out tasks.
        eval_split: Split of these.
        input_key: Column that holds the prompt.
        label_key: Column that holds the expected answer.
        input_template: Text with one {} that the prompt is put into.
        max_samples: Most tasks of each dataset.
    """

    dataset: str
    split: str = "train"
    eval_dataset: str | None = None
    eval_split: str = "train"
    input_key: str = "input"
    label_key: str | None = None
    input_template: str | None = None
    max_samples: int = 100_000_000

    def tasks(self, split: Split) -> Sequence[Task] | None:
        """Open a dataset; None where none is named."""
        name, own_split = (self.dataset, self.split) if split == "train" else (self.eval_dataset, self.eval_split)
        if name is None:
            return None
        return load_tasks(
            name,
            split=own_split,
            input_key=self.input_key,
            label_key=self.label_key,
            input_template=self.input_template,
            max_samples=self.max_samples,
        )


@dataclass(frozen=True)
class Member:
    """One environment of a mixture.

    Attributes:
        name: Begins its tasks' ids, and is its family's.
        factory: Makes its environments.
        weight: Its share of the tasks is this by the sum of all members'.
        data: Where its tasks come from, if not from itself.
    """

    name: str
    factory: EnvFactory
    weight: float = 1.0
    data: MemberData | None = None


def with_members(factory: EnvFactory) -> EnvFactory:
    """Return a mixture's factory with those of its members, and any other as it is.

    Raises:
        ConfigError: As `parse_members`.
    """
    from .builtin.mixture import Mixture

    if not issubclass(factory.env_class, Mixture):
        return factory
    return replace(factory, members={member.name: member.factory for member in parse_members(factory.kwargs["envs"])})


def parse_members(envs: str | Sequence[MemberSpec]) -> tuple[Member, ...]:
    """Find the members of a mixture.

    Args:
        envs: `Math=2,CodeSandbox`, or a list whose items are names or have the keys `id`, `name`, `weight`, `args`
            and `data`.

    Raises:
        ConfigError: A member is unknown, a mixture, or called as another, or what is said of it cannot be.
    """
    items = list(_short_form(envs)) if isinstance(envs, str) else list(envs)
    if not items:
        raise ConfigError(f"a mixture has no members; wanted 'Math=2,CodeSandbox' or a list of {_FORM}, got {envs!r}")
    members: dict[str, Member] = {}
    for item in items:
        member = _member({"id": item} if isinstance(item, str) else item)
        if member.name in members:
            raise ConfigError(
                f"two members of a mixture are called {member.name!r}; give each a name of its own: "
                f'[{{"id": "{members[member.name].factory.spec}", "name": "first"}}, '
                f'{{"id": "{member.factory.spec}", "name": "second"}}]'
            )
        members[member.name] = member
    return tuple(members.values())


def _short_form(text: str) -> Iterator[MemberSpec]:
    """Read `Math=2,CodeSandbox`."""
    for item in filter(None, map(str.strip, text.split(","))):
        spec, equals, weight = item.partition("=")
        try:
            yield {"id": spec, "weight": float(weight)} if equals else {"id": spec}
        except ValueError:
            raise ConfigError(
                f"a mixture's member {item!r}: wanted NAME or NAME=WEIGHT with a number, got {weight!r}"
            ) from None


def _member(item: MemberSpec) -> Member:
    if not isinstance(item, Mapping) or not isinstance(item.get("id"), str):
        raise ConfigError(f"a mixture's member wants the name of an environment or {_FORM}, got {item!r}")
    spec, name = item["id"], item.get("name") or _last_part(item["id"])
    where = f"member {spec!r} of the mixture"
    for key in item:
        if key not in _KEYS:
            raise ConfigError(f"{where} takes no {key!r}.{nearest(key, _KEYS)} It takes: {', '.join(_KEYS)}")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name has letters, digits, '_', '.' and '-', got {name!r}; give it as 'name'")
    weight = item.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise ConfigError(f"{where}: wanted a weight above 0, got {weight!r}; leave out a member that is not to come")
    factory = _factory(where, spec, item.get("args") or {})
    return Member(name, replace(factory, family=name), float(weight), _data(where, item.get("data")))


def _factory(where: str, spec: str, args: object) -> EnvFactory:
    from .builtin.mixture import Mixture
    from .resolution import find

    if not isinstance(args, Mapping):
        raise ConfigError(f"{where}: 'args' wants a mapping of the environment's arguments, got {args!r}")
    try:
        factory = find(spec, dict(args))
        if issubclass(factory.env_class, Mixture):
            raise ConfigError("it is a mixture itself; name its members in its place")
        factory.check_kwargs()
    except ConfigError as error:
        raise type(error)(f"{where}: {error}") from error
    return factory


def _data(where: str, data: object) -> MemberData | None:
    if data is None:
        return None
    if not isinstance(data, Mapping) or "dataset" not in data:
        keys = ", ".join(field.name for field in fields(MemberData))
        raise ConfigError(f"{where}: 'data' wants a mapping with 'dataset' and perhaps more of {keys}; got {data!r}")
    check_arguments(f"{where}: 'data'", MemberData, data)
    return MemberData(**data)


def _last_part(spec: str) -> str:
    """Return what a member is called by default: `Guess` for `turngym/Guess-v0`, `Capital` for `file.py:Capital`."""
    return re.sub(r"-v\d+$", "", re.split("[/:]", spec)[-1])

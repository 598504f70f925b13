"""TurnGym's environments in Gymnasium's own registry, and collections of other people's.

Importing this module registers the built-in environments and those of installed packages, by
"module:Class" strings that are imported when they are first made.
"""

import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id
from gymnasium.envs.registration import registry as gymnasium_registry

from ..errors import ConfigError, UnknownNameError
from ..registry import Registry, nearest

if TYPE_CHECKING:
    from .base import AsyncEnv, Env

NAMESPACE = "turngym"
ENTRY_POINT_GROUP = "turngym.envs"
_NAME = re.compile(r"[\w.]+(-[\w.]+)*?(-v\d+)?")

BUILTINS = {
    "CodeSandbox": "turngym.envs.builtin.code_sandbox:CodeSandbox",
    "CopyText": "turngym.envs.builtin.copy_text:CopyText",
    "Guess": "turngym.envs.builtin.guess:Guess",
    "HumanEval": "turngym.envs.builtin.humaneval:HumanEval",
    "MCP": "turngym.envs.tools.mcp_env:MCP",
    "Math": "turngym.envs.builtin.math:Math",
    "Mixture": "turngym.envs.builtin.mixture:Mixture",
    "Prompt": "turngym.envs.builtin.prompt:Prompt",
    "PythonTool": "turngym.envs.builtin.python_tool:PythonTool",
    "ServedEnv": "turngym.envs.serving.served_env:ServedEnv",
    "ToolEnv": "turngym.envs.tools.tool_env:ToolEnv",
    "ToolServer": "turngym.envs.tools.tool_server:ToolServer",
}


@dataclass(frozen=True)
class Collection:
    """A family of environments that one class serves: `env:COLLECTION/NAME`.

    Attributes:
        target: The class, as "module:Class".
        parameter: Its keyword argument that receives NAME.
        names: Lists the names; may import the library behind it.
        is_open: It takes other names too, which only the class can tell from wrong ones.
    """

    target: str
    parameter: str
    names: Callable[[], Iterable[str]]
    is_open: bool = False


COLLECTIONS: Registry[Collection] = Registry("environment collection")
COLLECTIONS.register_lazy("gem", "turngym.envs.collections.gem:COLLECTION")
COLLECTIONS.register_lazy("openenv", "turngym.envs.collections.openenv:COLLECTION")
COLLECTIONS.register_lazy("reasoning_gym", "turngym.envs.builtin.reasoning_gym:COLLECTION")
COLLECTIONS.register_lazy("textarena", "turngym.envs.collections.textarena:COLLECTION")
COLLECTIONS.register_lazy("verifiers", "turngym.envs.collections.verifiers:COLLECTION")


@dataclass(frozen=True)
class GymnasiumEntry:
    """What Gymnasium calls to make one of our environments; an `AsyncEnv` gets its synchronous facade."""

    target: "str | type[Env] | type[AsyncEnv]"

    def __call__(self, **kwargs: Any) -> "gymnasium.Env[Any, str]":
        """Make the environment with these keyword arguments."""
        from .facade import synchronous
        from .factory import EnvFactory

        return synchronous(EnvFactory(str(self.target), self.target, kwargs)())


def register(name: str, target: "str | type[Env] | type[AsyncEnv]", **kwargs: Any) -> None:
    """Register an environment as `turngym/NAME-v0` with Gymnasium.

    Args:
        name: `MyEnv`, or with a version, `MyEnv-v2`.
        target: The class, or better "module:Class", imported when first needed.
        **kwargs: Default keyword arguments of the class.

    Raises:
        ConfigError: The name has another form, or is taken by something else.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"wanted an environment name such as 'MyEnv' or 'MyEnv-v2', got {name!r}")
    if not isinstance(target, str | type):
        raise ConfigError(f"environment {name!r}: wanted a class or 'module:Class', got {type(target).__name__}")
    if isinstance(target, str) and not all(target.partition(":")):
        raise ConfigError(f"environment {name!r}: wanted 'module:Class', got {target!r}")
    _, bare_name, version = parse_env_id(name)
    full_id = get_env_id(NAMESPACE, bare_name, version or 0)
    entry = GymnasiumEntry(target)
    known = gymnasium_registry.get(full_id)
    if known is not None:
        if (known.entry_point, known.kwargs) == (entry, kwargs):
            return
        raise ConfigError(f"environment {full_id!r} is already registered as {known.entry_point!r}; take another name")
    gymnasium.register(full_id, entry_point=entry, kwargs=kwargs)


def _register_known() -> None:
    """Register the built-in environments and those of installed packages."""
    for name, target in BUILTINS.items():
        register(name, target)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            register(point.name, point.value)
        except ConfigError as error:
            # One package's mistake must not take every other environment away.
            package = point.dist.name if point.dist else "an installed package"
            warnings.warn(f"entry point {point.name!r} of {package} is left out: {error}", stacklevel=2)


def registered_ids() -> list[str]:
    """Return the ids in our namespace, sorted."""
    return sorted(key for key, spec in gymnasium_registry.items() if spec.namespace == NAMESPACE)


def full_id(name: str) -> str:
    """Complete an id with namespace and highest version.

    Raises:
        UnknownNameError: Nothing of that name is registered; names the nearest.
    """
    try:
        namespace, bare_name, version = parse_env_id(name)
    except gymnasium.error.Error:
        namespace, bare_name, version = None, name, None
    namespace = namespace or NAMESPACE
    if version is None:
        version = find_highest_version(namespace, bare_name)
    found = get_env_id(namespace, bare_name, version)
    if found not in gymnasium_registry:
        candidates = {spec.name: spec for spec in gymnasium_registry.values() if spec.namespace == NAMESPACE}
        others = [key for key in registered_ids() if "/" in name or "-v" in name]
        raise UnknownNameError(
            f"unknown environment {name!r}.{nearest(name, [*candidates, *others, *(f'{c}/...' for c in COLLECTIONS)])} "
            "'turngym envs list' shows all; a class of your own is 'module:Class' or 'path/to/file.py:Class'."
        )
    return found


_register_known()

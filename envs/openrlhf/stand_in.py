"""Lets files written for OpenRLHF import `openrlhf.utils.agent`; an OpenRLHF that is installed is found first.

Only imports that belong to such a file are answered: all while it is loaded, so that modules beside it are served
too, and afterwards those that its own functions make. What they bring lives under our names; pickles need no import of
these.
"""

import builtins
import importlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from ...source_file import import_file

ROOT = "openrlhf"
STAND_INS: Mapping[str, str | None] = {
    ROOT: None,
    f"{ROOT}.utils": ".boxed_answers",
    f"{ROOT}.utils.agent": ".agent",
    f"{ROOT}.utils.logging_utils": ".logging_utils",
    f"{ROOT}.utils.vlm_utils": ".pictures",
}
"""From OpenRLHF's modules to ours, which offer what stands in their `__all__`."""

_PACKAGES = (ROOT, f"{ROOT}.utils")
_counting = threading.Lock()
_num_loading = 0


def load_file(path: str | Path) -> ModuleType:
    """Import a user's file that may import OpenRLHF, once per process.

    Raises:
        ConfigError: As `import_file`.
    """
    with standing_in():
        return import_file(path, importer=_import)


@contextmanager
def standing_in() -> Iterator[None]:
    """Answer imports of OpenRLHF's modules meanwhile, unless it is installed; afterwards nothing is left of them."""
    global _num_loading
    with _counting:
        _num_loading += 1
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(
                0, _FINDER
            )  # and it stays: taken out, another thread's import would pass over the next
    try:
        yield
    finally:
        with _counting:
            _num_loading -= 1
            for name in STAND_INS if _num_loading == 0 else ():
                if _is_ours(name):
                    del sys.modules[name]


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:  # Any: as the built-in function
    """Do as `__import__` does, which a file's import statements call."""
    if level or name.partition(".")[0] != ROOT:
        return builtins.__import__(name, globals, locals, fromlist, level)
    with standing_in():
        return builtins.__import__(name, globals, locals, fromlist, level)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if _num_loading == 0:
            return None
        parent = fullname.rpartition(".")[0]
        if fullname.partition(".")[0] != ROOT or (not _is_ours(parent) if parent else _is_installed(fullname)):
            return None  # also what an installed OpenRLHF lacks
        if fullname not in STAND_INS:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: OpenRLHF is not installed, and TurnGym stands in only for "
                f"{', '.join(name for name, ours in STAND_INS.items() if ours)}; install it, or leave the import out",
                name=fullname,
            )
        return ModuleSpec(fullname, _Loader(), is_package=fullname in _PACKAGES)


class _Loader(Loader):
    def exec_module(self, module: ModuleType) -> None:
        ours = STAND_INS[module.__name__]
        if ours is not None:
            found = importlib.import_module(ours, __package__)
            vars(module).update({name: getattr(found, name) for name in found.__all__})


_FINDER = _Finder()


def _is_installed(name: str) -> bool:
    """Whether another finder knows a real package; a folder that happens to have its name is none."""
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        if finder is not _FINDER and find_spec is not None and (spec := find_spec(name, None)) is not None:
            return spec.origin is not None
    return False


def _is_ours(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return isinstance(getattr(spec, "loader", None), _Loader)

"""Puts TurnGym's environments into Gymnasium's registry as soon as Gymnasium is loaded.

Gymnasium takes longer to import than the rest of `import turngym`, and has no plugin entry points
since its version 1.0. So if it is not there yet, an import hook waits for it, whoever imports it.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType


def register_when_gymnasium_loads() -> None:
    """Register the environments now if Gymnasium is loaded, else right after its import."""
    if "gymnasium" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _GymnasiumHook())


def _register() -> None:
    # Importing it registers. It may be what imports Gymnasium just now; then it goes on by itself.
    # By its whole name, so that it is one module also where the root folder was imported under its own.
    importlib.import_module("turngym.envs.registration")


class _GymnasiumHook(importlib.abc.MetaPathFinder):
    """Finds `gymnasium` as Python would, once, and registers after it has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return Gymnasium's own spec with a loader that registers afterwards; None for every other module."""
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)  # only once, and so that the next line does not find itself
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


class _RegisteringLoader(importlib.abc.Loader):
    """Loads as the loader it wraps, then registers; afterwards the module shows its own loader."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Leave it to the wrapped loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then register."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _register()

"""Imports a user's Python file by its path, under a module name of its own."""

import builtins
import hashlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ConfigError

_IMPORTING = threading.RLock()  # a file may load another


def import_file(path: str | Path, importer: Callable[..., Any] | None = None) -> ModuleType:
    """Import a file once per process; the name comes from its absolute path, so two `reward.py` never collide.

    Args:
        path: The file.
        importer: What the file's own import statements call in place of the built-in `__import__`, now and later.

    Raises:
        ConfigError: There is no such file, or importing it raised.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"no file {str(file)!r}; is the path right, seen from {str(Path.cwd())!r}?")
    name = f"turngym_file_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    with _IMPORTING:
        return sys.modules[name] if name in sys.modules else _run(file, name, importer)


def _run(file: Path, name: str, importer: Callable[..., Any] | None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{str(file)!r} is not a Python file; wanted one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    if importer is not None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": importer}
    add_search_folder(file.parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{str(file)!r} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def add_search_folder(folder: str | Path) -> None:
    """Let imports find modules in `folder`, after everything that is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

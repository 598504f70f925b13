"""Imports the package behind a collection, or says what installs it."""

import importlib
import logging
import sys
import threading
import warnings
from types import ModuleType

from ...errors import MissingPackageError

_IMPORTING = threading.RLock()
_WHOLE: set[str] = set()


def import_extra(module: str, collection: str, extra: str) -> ModuleType:
    """Import a module of the package that serves `COLLECTION/...`.

    Raises:
        MissingPackageError: It cannot be imported; names the extra that installs it.
    """
    # `sys.modules` alone is no answer: it holds a module as well whose package another thread has still to import.
    if module in _WHOLE and (known := sys.modules.get(module)) is not None:
        return known
    with _IMPORTING:
        imported = _imported(module, collection, extra)
        _WHOLE.add(module)
    return imported


def _imported(module: str, collection: str, extra: str) -> ModuleType:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of libraries that it imports
            importlib.import_module(module.partition(".")[0])
            return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"environments {collection}/... need a package ({error}): pip install 'turngym[{extra}]'"
        ) from error
    finally:  # some of them set up the whole process's logging when imported
        root.handlers[:] = handlers
        root.setLevel(level)

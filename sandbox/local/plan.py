"""What a jail's root is made of on this machine: system folders, this interpreter's library, chosen packages."""

import glob
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ...errors import MissingPackageError
from .root import SITE

SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_OF_ETC: Final = ("ld.so.cache", "alternatives", "resolv.conf", "hosts", "nsswitch.conf", "ssl/certs", "localtime")


def interpreter() -> str:
    """Return the interpreter that jails run: this one's, outside of any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def binds() -> list[tuple[str, str]]:
    """Return what every root shows, as it lies outside and inside."""
    paths = [*SYSTEM, *(f"/etc/{name}" for name in _OF_ETC)]
    paths += {folder for folder in (sys.base_prefix, sys.base_exec_prefix) if not folder.startswith("/usr")}
    return [
        (os.path.realpath(path) if path.startswith("/etc") else path, path) for path in paths if os.path.exists(path)
    ]


def hidden() -> list[str]:
    """Return folders of packages below what is shown: what is installed may hold answers."""
    patterns = [
        f"{sys.base_prefix}/lib/python3*/site-packages",
        f"{sys.base_prefix}/lib/python3*/dist-packages",
        "/usr/lib/python3*/dist-packages",
        "/usr/local/lib/python3*/*-packages",
    ]
    return sorted({path for pattern in patterns for path in glob.glob(pattern) if os.path.isdir(path)})


def search_path() -> str:
    """Return the PATH of programs."""
    return ":".join(dict.fromkeys([f"{sys.base_prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"]))


def package_binds(modules: Iterable[str]) -> list[tuple[str, str]]:
    """Return where modules lie, with all that their packages need, as they lie outside and inside.

    Raises:
        MissingPackageError: A module is not installed.
    """
    found: dict[str, str] = {}
    for module in modules:
        if module in sys.stdlib_module_names:
            continue
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise MissingPackageError(f"programs are to have {module!r}, which is not installed: pip install {module}")
        names = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
        for distribution in _with_needs(names):
            for path in _top_level(distribution):
                found[str(path)] = f"{SITE}/{path.name}"
    return sorted(found.items())


def _with_needs(names: Iterable[str]) -> Iterator[importlib.metadata.Distribution]:
    pending, seen = list(names), set()
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # needed on other platforms only
        yield distribution
        for need in distribution.requires or []:
            if "extra ==" not in need:
                pending.append(re.split(r"[^A-Za-z0-9._-]", need, maxsplit=1)[0])


def _top_level(distribution: importlib.metadata.Distribution) -> Iterator[Path]:
    tops = {file.parts[0] for file in distribution.files or [] if not file.is_absolute()}
    for top in tops - {"..", "__pycache__"}:
        path = Path(str(distribution.locate_file(top)))
        if path.exists():
            yield path

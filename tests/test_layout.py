"""The house: links, import direction, what the wheel holds, and what importing costs."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKS = ROOT / "src" / "turngym"
# Each may import itself and what stands before it.
ORDER = [
    "errors",
    "source_file",
    "registry",
    "sandbox",
    "envs",
    "agents",
    "executors",
    "learner",
    "viewer",
    "config",
    "__main__",
    "__init__",
]
HEAVY = ["torch", "vllm", "ray", "deepspeed", "transformers", "datasets"]


def root_items() -> set[str]:
    """Return the names of what makes up the package: root modules, py.typed, and folders that are packages."""
    folders = {file.parent.name for file in ROOT.glob("[!.]*/__init__.py")}
    return {file.name for file in ROOT.glob("*.py")} | {"py.typed"} | folders


def package_files() -> list[Path]:
    """Return every file of the package that git tracks or would track, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *sorted(root_items())]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listing.returncode == 0:
        return [Path(name) for name in listing.stdout.split("\0") if name and (ROOT / name).exists()]
    files = [file for item in root_items() for file in [ROOT / item, *(ROOT / item).rglob("*")] if file.is_file()]
    return [file.relative_to(ROOT) for file in files if "__pycache__" not in file.parts]


MODULES = sorted(file for file in package_files() if file.suffix == ".py")


def our_imports(module: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name, below the package's root, of everything of ours that a module imports."""
    home = list(module.parent.parts)  # a package's __init__.py lies inside the package, so this serves both
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        base = home[: len(home) - (node.level - 1)]
        assert node.level - 1 <= len(home), f"{module}:{node.lineno} imports from above the package"
        if node.module:
            yield node.lineno, ".".join([*base, node.module])
        else:
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)


def level(name: str) -> int | None:
    """Return where a dotted name stands in ORDER; None for an attribute of the root package, such as __version__."""
    first = name.split(".")[0]
    return ORDER.index(first) if first in ORDER else None


def build(arguments: list[str], out: Path, source: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *arguments, "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def wheel_contents(folder: Path) -> list[str]:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if ".dist-info/" not in name)


@pytest.fixture
def clean_copy(tmp_path: Path) -> Path:
    """Copy what a build reads, links kept as links, so that nothing is written into this clone."""
    copy = tmp_path / "clone"
    shutil.copytree(LINKS.parent, copy / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for file in [*package_files(), *map(Path, ("pyproject.toml", "README.md", "LICENSE", "tests/test_layout.py"))]:
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, copy / file)
    return copy


def test_every_root_item_has_one_relative_link_and_nothing_else_has() -> None:
    assert {entry.name for entry in LINKS.iterdir() if entry.name != "__pycache__"} == root_items()
    for name in root_items():
        assert os.readlink(LINKS / name) == f"../../{name}"


def test_every_root_item_has_a_place_in_the_order() -> None:
    assert {item.removesuffix(".py") for item in root_items()} - {"py.typed"} <= set(ORDER)


def test_imports_run_downwards() -> None:
    upwards = []
    for module in MODULES:
        own = level(module.parts[0].removesuffix(".py"))
        assert own is not None
        for line, name in our_imports(module):
            imported = level(name)
            if imported is not None and imported > own:
                upwards.append(f"{module}:{line} imports {name!r}, which stands above {ORDER[own]!r}")
    assert not upwards


@pytest.mark.parametrize("module", [module for module in MODULES if module.name == "options.py"], ids=str)
def test_options_import_only_errors_and_registry_of_ours(module: Path) -> None:
    for line, name in our_imports(module):
        assert name.split(".")[0] in {"errors", "source_file", "registry"}, f"{module}:{line} imports {name!r}"


def test_imports_inside_the_package_are_relative() -> None:
    absolute = []
    for module in MODULES:
        for node in ast.walk(ast.parse((ROOT / module).read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            if any(name.split(".")[0] == "turngym" for name in names):
                absolute.append(f"{module}:{node.lineno}")
    assert not absolute


def test_no_file_has_a_name_that_says_nothing() -> None:
    folders = [*sorted(root_items()), "tests", "examples", "benchmarks", "scripts"]
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert files
    assert not [str(file) for file in files if file.stem in {"utils", "common", "helpers", "util", "misc"}]


def test_importing_the_package_and_its_options_loads_nothing_heavy() -> None:
    options = [".".join(["turngym", *file.with_suffix("").parts]) for file in MODULES if file.name == "options.py"]
    assert options
    program = (
        "import importlib, sys\n"
        f"for name in ['turngym', *{options!r}]:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = [each for each in {HEAVY!r} if each in sys.modules]\n"
        "    assert not heavy, f'import {name} loads {heavy}'\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(LINKS.parent)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr


def test_nothing_is_collected_twice(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    assert len({item.nodeid for item in items}) == len(items)
    for item in items:
        assert item.path == item.path.resolve(), f"{item.nodeid} is collected through a link"
    assert request.config.getini("testpaths") == ["tests"]
    assert not [str(path) for path in (ROOT / "tests").rglob("*") if path.is_symlink()]


@pytest.mark.slow
def test_the_wheel_holds_the_package_files_and_nothing_else(clean_copy: Path, tmp_path: Path) -> None:
    build(["--wheel"], tmp_path / "out", clean_copy)
    wanted = sorted(f"turngym/{file.as_posix()}" for file in package_files())
    assert "turngym/envs/base.py" in wanted
    assert "turngym/py.typed" in wanted
    assert wheel_contents(tmp_path / "out") == wanted


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(clean_copy: Path, tmp_path: Path) -> None:
    build([], tmp_path / "out", clean_copy)  # without arguments `build` makes the wheel from the source distribution
    assert wheel_contents(tmp_path / "out") == sorted(f"turngym/{file.as_posix()}" for file in package_files())
    (archive,) = (tmp_path / "out").glob("*.tar.gz")
    with tarfile.open(archive) as members:
        assert not [member.name for member in members if member.issym() and member.name.startswith("/")]

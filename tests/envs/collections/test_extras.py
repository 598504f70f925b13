"""What happens where the package behind a collection is not installed."""

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest

from turngym.envs.collections.extras import import_extra
from turngym.envs.commands import main
from turngym.envs.resolution import find, resolve
from turngym.errors import MissingPackageError

SPECS = {
    "gem/game:Mastermind-v0-hard": ("gem.envs", "gem"),
    "openenv/http://localhost:1": ("openenv.core.generic_client", "openenv"),
    "textarena/TicTacToe-v0": ("textarena.envs.registration", "textarena"),
    "verifiers/wordle": ("verifiers", "verifiers"),
}


@pytest.mark.parametrize("spec", SPECS)
def test_the_extra_is_named(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, extra = SPECS[spec]
    while module:
        monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]  # importing it fails
        module = module.rpartition(".")[0]
    with pytest.raises(MissingPackageError, match=rf"{extra}/\.\.\. need a package .*pip install 'turngym\[{extra}\]'"):
        resolve(spec, {})().tasks("train", 0)


def test_names_with_colons_are_no_classes() -> None:
    assert find("openenv/http://localhost:1", {}).kwargs == {"url": "http://localhost:1"}
    assert find("verifiers/wordle", {}).kwargs == {"env": "wordle"}
    assert find("gem/my.py:Class", {}).target.endswith("gem/my.py:Class")  # a file, in a folder of that name


def test_importing_leaves_logging_alone(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "loud_for_tests.py").write_text("import logging\nlogging.getLogger().addHandler(logging.NullHandler())")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(logging.getLogger().handlers)
    assert isinstance(import_extra("loud_for_tests", "loud", "loud"), ModuleType)
    assert logging.getLogger().handlers == before


def test_the_list_shows_every_collection(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for line in (
        "\ngem/... (",
        "\nopenenv/... (such as openenv/http://HOST:PORT)",
        "\ntextarena/... (",
        "\nverifiers/...",
    ):
        assert line in shown


SLOW = """
import threading

from .registration import REGISTRY

threading.Event().wait(0.2)  # meanwhile another thread finds `registration` among the modules, and nothing in it
REGISTRY.append("game")
"""


def test_a_package_that_another_thread_imports_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    package = tmp_path / "slow_for_tests"
    package.mkdir()
    (package / "__init__.py").write_text(SLOW)
    (package / "registration.py").write_text("REGISTRY = []")
    monkeypatch.syspath_prepend(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        seen = threads.map(lambda _: [*import_extra("slow_for_tests.registration", "slow", "slow").REGISTRY], range(8))
        assert list(seen) == [["game"]] * 8

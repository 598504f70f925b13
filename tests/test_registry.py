"""Names, lazy entries, files, and errors that suggest the nearest."""

from pathlib import Path

import pytest

from turngym.errors import ConfigError, UnknownNameError
from turngym.registry import Registry, with_absolute_file


def test_registered_lazy_and_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    registry: Registry[object] = Registry("thing")
    registry.register("one")(1)
    registry.register_lazy("pi", "math:pi")
    (tmp_path / "mine.py").write_text("two = 2\n")
    monkeypatch.chdir(tmp_path)
    assert registry["one"] == 1
    assert registry["pi"] == pytest.approx(3.14159, abs=1e-5)
    assert registry["mine.py:two"] == 2
    assert list(registry) == ["one", "pi"]
    assert with_absolute_file("mine.py:two") == f"{tmp_path / 'mine.py'}:two"
    assert with_absolute_file("one") == "one"
    with pytest.raises(ConfigError, match=r"has no 'tow'\. Did you mean 'two'"):
        registry["mine.py:tow"]


def test_unknown_and_taken_names():
    registry: Registry[object] = Registry("thing")
    registry.register("alpha")(1)
    with pytest.raises(UnknownNameError, match=r"unknown thing 'alfa'\. Did you mean 'alpha'"):
        registry["alfa"]
    with pytest.raises(ConfigError, match="already registered"):
        registry.register("alpha")(2)

"""Files written for OpenRLHF."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def files() -> Path:
    return Path(__file__).parent / "files"


@pytest.fixture(autouse=True)
def without_openrlhf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of that name is imported yet, also where pytest calls the folder of this project so."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "openrlhf"]:
        monkeypatch.delitem(sys.modules, name)

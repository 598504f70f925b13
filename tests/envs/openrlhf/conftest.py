"""Files written for OpenRLHF."""

from pathlib import Path

import pytest


@pytest.fixture
def files() -> Path:
    return Path(__file__).parent / "files"

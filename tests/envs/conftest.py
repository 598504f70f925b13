"""The sandboxes that graders and environments are tested with."""

from collections.abc import AsyncIterator

import pytest

from turngym.sandbox.base import Sandbox
from turngym.sandbox.registration import SANDBOXES, shared_sandbox

from .unsafe_sandbox import UnsafeSandbox


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    """The local sandbox, which environments in the same test use too."""
    found = await shared_sandbox("local")
    yield found
    num_left = found.num_sessions
    await found.close()
    assert num_left == 0


@pytest.fixture
async def unsafe(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[UnsafeSandbox]:
    """A sandbox that counts and fails on request; environments get it as `unsafe`."""
    found = UnsafeSandbox()
    monkeypatch.setitem(SANDBOXES._entries, "unsafe", lambda: found)
    yield found
    found.failing = {}
    await found.close()

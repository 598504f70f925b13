"""`turngym doctor sandbox` tells what works here and what does not, by its exit code too."""

import asyncio

import pytest

from turngym.__main__ import main
from turngym.errors import SandboxUnavailableError
from turngym.sandbox import checks, doctor
from turngym.sandbox.base import Sandbox
from turngym.sandbox.registration import SANDBOXES


class Fine(Sandbox):
    """Says that it works."""

    name = "fine"
    tier = "fine, no roof"
    tiers = {"fine": "four walls", "fine, no roof": "four walls only", "fine, no floor": "a hole"}
    languages = frozenset({"python"})
    num_sessions = 0
    is_closed = False

    async def start(self):
        pass

    async def close(self):
        type(self).is_closed = True

    async def _run(self, job):
        raise NotImplementedError

    async def open_session(self, *_, **__):
        raise NotImplementedError


class Absent(Fine):
    """Does not work here."""

    async def start(self):
        raise SandboxUnavailableError("no\nsocket: start the daemon")


@pytest.fixture
def backends(monkeypatch):
    monkeypatch.setattr(SANDBOXES, "_entries", {"fine": Fine, "absent": Absent})
    monkeypatch.setattr(Fine, "is_closed", False)


@pytest.fixture
def passing(monkeypatch):
    async def check(sandbox):
        return
        yield

    monkeypatch.setattr(checks, "CHECKS", {"one": check, "two": check})
    monkeypatch.setattr(checks, "QUICK", ("one",))


def test_all_is_well(backends, passing, capsys):
    assert main(["doctor", "sandbox", "--backend", "fine"]) == 0
    out = capsys.readouterr().out
    assert "fine, no roof: four walls only" in out
    assert "no socket: start the daemon" in out
    assert "checks: 1 of 1 passed" in out
    assert "All is well." in out
    assert Fine.is_closed


def test_a_failed_check_is_told(backends, passing, capsys, monkeypatch):
    async def fails(sandbox):
        yield "a program got out"
        yield "twice"

    monkeypatch.setitem(checks.CHECKS, "one", fails)
    assert main(["doctor", "sandbox", "--backend", "fine"]) == 1
    out = capsys.readouterr().out
    assert "one: a program got out" in out
    assert "one: twice" in out
    assert "checks: 0 of 1 passed" in out
    assert "1 failed." in out


def test_all_runs_every_check_and_the_hostile_programs(backends, passing, capsys):
    assert main(["doctor", "sandbox", "--backend", "fine", "--all"]) == 1  # it cannot run any program
    out = capsys.readouterr().out
    assert "checks: 2 of 2 passed" in out
    assert "hostile programs" in out


def test_a_backend_that_does_not_work_is_the_users_mistake(backends, passing, capsys):
    assert main(["doctor", "sandbox", "--backend", "absent"]) == 2
    captured = capsys.readouterr()
    assert "yes" in captured.out  # the table tells of the others
    assert "start the daemon" in captured.err
    assert main(["doctor", "sandbox", "--backend", "fine", "--argument", "image=x"]) == 2
    assert "does not take these arguments" in capsys.readouterr().err
    assert main(["doctor", "sandbox", "--backend", "fine", "--argument", "image"]) == 2
    assert "wanted --argument NAME=VALUE, got 'image'" in capsys.readouterr().err
    assert main(["doctor", "sandbox", "--backend", "fin"]) == 2
    assert "Did you mean 'fine'?" in capsys.readouterr().err


def test_arguments_reach_the_backend(backends, passing, monkeypatch):
    given = {}

    class Takes(Fine):
        def __init__(self, image, num_workers):
            given.update(image=image, num_workers=num_workers)

    words = ["--argument", "image=a/b:c", "--argument", "num_workers=3"]
    monkeypatch.setattr(SANDBOXES, "_entries", {"takes": Takes})
    assert main(["doctor", "sandbox", "--backend", "takes", *words]) == 0
    assert given == {"image": "a/b:c", "num_workers": 3}


def test_what_a_tier_means_is_put_together():
    class Holed(Fine):
        tier = "fine, no roof, no floor"

    async def stand():
        return await doctor.stand("holed", Holed())

    standing = asyncio.run(stand())
    assert standing.trouble is None
    assert standing.meaning == "four walls only; a hole"
    assert standing.languages == ("python",)


def test_other_doctors_are_still_there(capsys):
    assert main(["doctor", "./sandbox"]) == 2  # a run folder of that name
    assert "sandbox" in capsys.readouterr().err


@pytest.mark.slow
def test_the_local_sandbox_is_well_here(capsys):
    assert main(["doctor", "sandbox"]) == 0, capsys.readouterr().out

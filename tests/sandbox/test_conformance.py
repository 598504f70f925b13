"""Our sandboxes keep the contract and withstand the hostile programs."""

import asyncio
import os

import pytest

from turngym.sandbox.checks import check_sandbox
from turngym.sandbox.checks_host import host_canaries
from turngym.sandbox.checks_hostile import check_hostile
from turngym.sandbox.checks_leaks import leaks
from turngym.sandbox.hostile import HOSTILE
from turngym.sandbox.registration import make_sandbox

ARGUMENTS = {"local": {}, "docker": {"image": os.environ.get("TURNGYM_DOCKER_IMAGE", "python:3.12-slim")}}
NUM_RUNS = {"local": 2000, "docker": 2000}
BACKENDS = [
    pytest.param("local", id="local"),
    pytest.param("docker", id="docker", marks=[pytest.mark.docker, pytest.mark.soak]),
]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sandbox_keeps_the_contract(backend):
    async def check():
        async with make_sandbox(backend, ARGUMENTS[backend]) as sandbox:
            return await check_sandbox(sandbox)

    assert asyncio.run(check()) == []


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sandbox_withstands_hostile_programs(backend):
    async def check():
        with host_canaries() as canaries:
            async with make_sandbox(backend, ARGUMENTS[backend]) as sandbox:
                return await check_hostile(sandbox, HOSTILE.values(), canaries, num_parallel=4)

    assert asyncio.run(check()) == []


@pytest.mark.soak
def test_one_jail_withstands_them_one_after_the_other():
    async def check():
        with host_canaries() as canaries:
            async with make_sandbox("local", {"num_workers": 1}) as sandbox:
                return await check_hostile(sandbox, HOSTILE.values(), canaries)

    assert asyncio.run(check()) == []


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", BACKENDS)
def test_thousands_of_runs_leave_nothing_behind(backend):
    async def check():
        async with make_sandbox(backend, ARGUMENTS[backend]) as sandbox:
            return await leaks(sandbox, NUM_RUNS[backend])

    assert asyncio.run(check()) == []

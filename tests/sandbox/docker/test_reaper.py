"""Whose containers are taken for leftovers."""

import dataclasses
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from turngym.sandbox.docker.reaper import LABEL, Owner, leftovers, parse_owner, this_process

HERE = this_process()


class OneContainer:
    """A daemon with one container."""

    def __init__(self, owner: str, state: str, age_s: float) -> None:
        self._record = {"Id": "c", "Labels": {LABEL: owner}, "State": state, "Created": time.time() - age_s}

    def labelled(self, label: str) -> list[dict[str, Any]]:
        assert label == LABEL
        return [self._record]


def test_an_owner_is_read_back() -> None:
    assert parse_owner(HERE.text) == HERE
    assert HERE.pid == os.getpid()
    assert HERE.is_alive is True
    for text in ("", "a b c d", "a b 1", f"{HERE.text} x"):
        assert parse_owner(text) is None


def test_a_process_that_ended_is_dead_also_when_its_number_is_in_use_again() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert dataclasses.replace(HERE, pid=process.pid).is_alive is False
    assert dataclasses.replace(HERE, start_ticks=HERE.start_ticks + 1).is_alive is False


DEAD = dataclasses.replace(HERE, start_ticks=1)
ELSEWHERE = dataclasses.replace(HERE, boot_id="another")
OTHER_NAMESPACE = dataclasses.replace(HERE, namespace="pid:[1]")


@pytest.mark.parametrize(
    ("owner", "state", "age_s", "is_left"),
    [
        (HERE, "running", 9999, False),
        (HERE, "exited", 9999, False),
        (DEAD, "running", 0, True),
        (DEAD, "created", 0, True),
        (ELSEWHERE, "running", 9999, False),
        (ELSEWHERE, "exited", 9999, True),
        (ELSEWHERE, "exited", 5, False),
        (OTHER_NAMESPACE, "running", 9999, False),
        (OTHER_NAMESPACE, "dead", 9999, True),
    ],
)
def test_leftovers(owner: Owner, state: str, age_s: float, is_left: bool) -> None:
    client: Any = OneContainer(owner.text, state, age_s)
    assert leftovers(client) == (["c"] if is_left else [])

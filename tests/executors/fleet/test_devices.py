"""R49 and R51: every process of a run sees the GPUs that Ray gave it, and no others; none of it wants a device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from turngym.errors import WorkerError
from turngym.executors.engines.vllm import VllmConfig
from turngym.executors.fleet import devices as devices_module
from turngym.executors.fleet.devices import VARIABLE, Assignment, devices_of, take_devices
from turngym.executors.fleet.rollout_actor import RolloutActor
from turngym.executors.fleet.scoring_actor import ScoringActor

PROGRAM = Path(__file__).parent / "devices_under_ray.py"
GROUP = "04d23841650db39f84c084ad4b0f01000000"


def assignment(*gpu_ids: str, group: str | None = None) -> Assignment:
    return Assignment(gpu_ids, {"CPU": 1.0} | ({"GPU": float(len(gpu_ids))} if gpu_ids else {}), group)


@pytest.mark.parametrize(
    ("shown", "given"),
    [
        ("1", ["1"]),  # Ray set the variable
        (None, ["1"]),  # it may not
        ("2,3", ["3"]),  # it may not, and the parent shows two
        ("3", ["3"]),  # it set it, under that parent
        ("0, 1,2,3", ["1", "2"]),  # two GPUs for one engine
        ("GPU-8e42, MIG-77aa", ["MIG-77aa"]),
    ],
)
def test_an_actor_sees_what_it_was_given(shown, given):
    environment = {} if shown is None else {VARIABLE: shown}
    assert devices_of("engine 1", assignment(*given), environment, count=len(given)) == tuple(given)


@pytest.mark.parametrize(("shown", "seen"), [(None, None), ("2,3", ("2", "3")), ("1", ("1",))])
def test_who_shares_sees_what_others_were_given(shown, seen):
    environment = {} if shown is None else {VARIABLE: shown}
    assert devices_of("teacher engine 0", assignment(), environment, count=1, shares=True) == seen


@pytest.mark.parametrize(
    ("shown", "own", "words", "wrong"),
    [
        (
            "",
            assignment(group=GROUP),
            {"count": 1},
            "works on 1 GPUs and was given none by Ray; CUDA_VISIBLE_DEVICES is ''",
        ),
        ("0,1", assignment(), {"count": 1}, "given none by Ray; CUDA_VISIBLE_DEVICES is '0,1': give it num_gpus"),
        (None, assignment(), {"count": 1}, "given none by Ray; CUDA_VISIBLE_DEVICES is not set"),
        ("", assignment(), {"count": 1, "shares": True}, "works on 1 GPUs and has none; CUDA_VISIBLE_DEVICES is ''"),
        ("", assignment("1"), {"count": 1}, "was given GPU 1 by Ray, and CUDA_VISIBLE_DEVICES is '', which hides it"),
        ("0", assignment("1"), {"count": 1}, "was given GPU 1 by Ray, and CUDA_VISIBLE_DEVICES is '0', which hides it"),
        ("0", assignment("0"), {"count": 2}, "works on 2 GPUs and has 0; CUDA_VISIBLE_DEVICES is '0'"),
        ("0,1", assignment("0", "1"), {"count": 1}, "works on 1 GPUs and has 0, 1;"),
    ],
)
def test_what_it_cannot_see_is_named(shown, own, words, wrong):
    environment = {} if shown is None else {VARIABLE: shown}
    with pytest.raises(WorkerError) as raised:
        devices_of("engine 1", own, environment, **words)
    assert str(raised.value).startswith(f"engine 1 ({own}) ")
    assert wrong in str(raised.value)


def test_actor_and_bundle_are_named():
    own = Assignment((), {"CPU_group_0_04d2": 1.0, "CPU": 1.0}, GROUP)
    with pytest.raises(WorkerError, match=rf"^engine 1 \(in a bundle of group {GROUP}, with CPU 1, CPU_group_0_04d2 1"):
        devices_of("engine 1", own, {VARIABLE: ""}, count=1)


def test_children_see_the_same(monkeypatch):
    monkeypatch.setenv(VARIABLE, "2,3")
    monkeypatch.setattr(devices_module, "own_assignment", lambda: assignment("3"))
    assert take_devices("engine 1") == ("3",)
    program = f"import os; print(os.environ[{VARIABLE!r}])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "3\n"


def test_every_role_looks_at_its_start(monkeypatch):
    """Before a tokenizer, a model or CUDA: the configuration names none that there is."""
    from turngym.executors.episodes.limits import Limits
    from turngym.executors.fleet.rollout_actor import RolloutConfig
    from turngym.learner.ranks.rank import LearnerRank, RankConfig

    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(devices_module, "own_assignment", lambda: assignment(group=GROUP))
    engine = VllmConfig("nowhere", "float32", 64)
    env = object()
    rollout = RolloutConfig(engine, env, Limits(max_context=64))  # type: ignore[arg-type]
    with pytest.raises(WorkerError, match=r"^engine 1 .*given none by Ray"):
        RolloutActor(rollout, on_gpu=True, name="engine 1")
    with pytest.raises(WorkerError, match=r"^teacher engine 0 .*has none"):
        ScoringActor(engine, on_gpu=True, name="teacher engine 0")
    with pytest.raises(WorkerError, match=r"^rank 0 of 2 \(\).*given none by Ray"):
        LearnerRank(RankConfig({}, 0, 1, 1.0), 0, 2, on_gpu=True)


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("shown", [pytest.param(None, marks=pytest.mark.soak), "2,3"])
def test_under_ray(shown):
    """Two engines of one GPU, with and without Ray's own variable, then one of two; then who asks for none."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {} if shown is None else {VARIABLE: shown}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=270, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    given = ["0", "1"] if shown is None else ["2", "3"]
    for kind in ("set by Ray", "not set by Ray"):
        assert sorted(found[kind]) == [[device, device] for device in given]  # in the process, and in its child
    assert found["one of two"] == [[",".join(given)] * 2]
    wanted = r"engine 0 (in a bundle of group "
    assert wanted in found["none asked for"]
    assert f"given none by Ray; {VARIABLE} is ''" in found["none asked for"]

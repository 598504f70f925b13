"""The checks of forks find each planted fault, and nothing where parent and twin know nothing of each other."""

import copy

import pytest

from turngym import AsyncEnv, Env, Task
from turngym.envs.checks import check_env
from turngym.envs.factory import EnvFactory
from turngym.envs.resolution import resolve
from turngym.errors import ForkRefusedError


class Diary(Env):
    """Repeats all it was told; its last word is drawn."""

    def reset(self, *, seed=None, options=None):
        self.told: list[str] = []
        return self._draw(seed, options).id, {}

    def step(self, action):
        self.told.append(str(action))
        is_over = len(self.told) == 4
        word = str(self.np_random.integers(1 << 30)) if is_over else ""
        return "".join(self.told) + word, 0.0, is_over, False, {}

    @property
    def can_fork(self):
        return True

    def fork(self):
        return copy.deepcopy(self)


class DiaryAsync(AsyncEnv):
    told: tuple[str, ...] = ()

    async def reset(self, *, seed=None, options=None):
        self.told = ()
        return options["task"].id, {}

    async def step(self, action):
        self.told += (action,)
        return "".join(self.told), 0.0, len(self.told) == 3, False, {}

    @property
    def can_fork(self):
        return len(self.told) == 1

    async def fork(self):
        twin = type(self)()
        twin.told = self.told
        return twin


class SharesItsList(Diary):
    def fork(self):
        return copy.copy(self)


class ForgetsARandomState(Diary):
    def fork(self):
        twin = copy.deepcopy(self)
        twin.np_random.random()
        return twin


class BeginsAnew(DiaryAsync):
    async def fork(self):
        return type(self)()


class TakesItsParentsFileAway(Diary):
    is_gone: list[bool]

    def reset(self, *, seed=None, options=None):
        self.is_gone = []
        return super().reset(seed=seed, options=options)

    def fork(self):
        twin = copy.deepcopy(self)
        twin.is_gone = self.is_gone
        return twin

    def step(self, action):
        return ("gone" if self.is_gone else "", *super().step(action)[1:])

    def close(self):
        self.is_gone.append(True)


class IsItself(Diary):
    def fork(self):
        return self


class ReturnsNothing(Diary):
    def fork(self):
        return None


class OnlySaysSo(Diary):
    def fork(self):
        return Env.fork(self)


class TwinsCannotBeClosed(Diary):
    is_twin = False

    def fork(self):
        twin = copy.deepcopy(self)
        twin.is_twin = True
        return twin

    def close(self):
        if self.is_twin:
            raise OSError("held")


@pytest.mark.parametrize(
    ("env_class", "what"),
    [
        (SharesItsList, "a twin that was forked after reset answers otherwise than its parent would"),
        (ForgetsARandomState, "a twin that was forked after reset answers otherwise"),
        (BeginsAnew, "a twin that was forked after turn 0 answers otherwise"),
        (TakesItsParentsFileAway, "a twin that was forked after reset answers otherwise"),
        (IsItself, "forking raised EnvError: fork returned the environment itself"),
        (ReturnsNothing, "forking raised EnvError: fork returned NoneType"),
        (OnlySaysSo, "forking raised EnvError: OnlySaysSo cannot fork; its can_fork says so"),
        (TwinsCannotBeClosed, "forking raised EnvError: close raised OSError the first time: held"),
    ],
)
def test_each_planted_fault_is_found(env_class, what):
    (problem,) = check_env(EnvFactory("it", env_class), max_turns=8)
    assert (problem.check, problem.severity) == ("fork", "error")
    assert what in problem.what


def test_a_parent_that_changes_with_its_twin_is_found():
    class LosesWhatTheLastTwinTook(Diary):
        num_twins = 0

        def reset(self, *, seed=None, options=None):
            self.num_twins = 0
            return super().reset(seed=seed, options=options)

        def fork(self):
            twin = copy.deepcopy(self)
            twin.num_twins = 0
            self.num_twins += 1
            return twin

        def step(self, action):
            return (str(self.num_twins), *super().step(action)[1:])

    (problem,) = check_env(EnvFactory("it", LosesWhatTheLastTwinTook), max_turns=8)
    assert "an environment goes another way once twins that were forked of it after reset" in problem.what
    assert "step 1 of the rest gave ('2', 0.0, False, False) and not ('0', 0.0, False, False)" in problem.what


@pytest.mark.parametrize("env_class", [Diary, DiaryAsync])
def test_sound_forks_have_no_problem(env_class):
    assert check_env(EnvFactory("it", env_class), max_turns=8) == []


def test_answers_that_keep_it_from_being_forked_are_no_fault_of_it():
    class Refuses(Diary):
        def fork(self):
            raise ForkRefusedError("a thread runs")

    assert check_env(EnvFactory("it", Refuses), max_turns=8) == []


@pytest.mark.slow
def test_a_tool_forks_well():
    tasks = [Task(id=str(number), prompt="Print it.", label="1") for number in range(2)]
    assert [problem.check for problem in check_env(resolve("PythonTool"), tasks)] == ["tasks_differ"]

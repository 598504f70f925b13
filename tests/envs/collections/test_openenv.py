"""`openenv/URL`, with the package's own server and client."""

import pytest

from turngym.envs.checks import check_env
from turngym.envs.resolution import resolve
from turngym.envs.task import Task
from turngym.errors import ConfigError, EnvError, RewardError, ToolServerError

pytest.importorskip("openenv.core.env_server", reason="needs the package: pip install 'turngym[openenv]'")

from openenv.core.env_server import Action, Environment, Observation, create_fastapi_app
from openenv.core.env_server.types import State


class Move(Action):
    guess: str
    loudness: int = 1


class Answer(Observation):
    hint: str


class Doubles(Environment):
    """Wants twice the seed; "never" ends it without a reward, "crash" breaks it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._number, self._steps = 0, 0

    def reset(self, seed=None, episode_id=None, easy=False, **kwargs):
        self._number, self._steps = seed or 0, 0
        return Answer(hint=f"twice {self._number}?{' easy' if easy else ''}")

    def step(self, action, timeout_s=None, **kwargs):
        self._steps += 1
        if action.guess == "crash":
            raise RuntimeError("out of order")
        if action.guess == "never":
            return Answer(hint="", done=True)
        is_right = action.guess == str(2 * self._number)
        return Answer(hint=f"{self._steps}: {is_right}, {action.loudness}", done=is_right, reward=float(is_right))

    @property
    def state(self):
        return State(step_count=self._steps)


@pytest.fixture
def url(live) -> str:
    return live(create_fastapi_app(Doubles, Move, Answer, max_concurrent_envs=8))


async def begin(url, seed=21, **kwargs):
    env = resolve(f"openenv/{url}", kwargs)()
    return env, (await env.reset(options={"task": Task(id="t", seed=seed)}))[0]


async def test_an_episode_with_the_only_text_field_of_the_schema(url) -> None:
    env, text = await begin(url)
    assert text == "twice 21?"
    assert await env.step("41") == ("1: False, 1", 0.0, False, False, {})
    assert await env.step("42") == ("2: True, 1", 1.0, True, False, {})
    await env.close()
    with pytest.raises(EnvError, match="no episode running"):
        await env.step("42")


async def test_sessions_do_not_mix(url) -> None:
    (one, _), (two, text) = await begin(url, 1), await begin(url, 2, easy=True)
    assert text == "twice 2? easy"
    assert (await one.step("2"))[1] == 1.0
    assert (await two.step("2"))[1] == 0.0
    assert (await two.step("4"))[1] == 1.0
    await one.close()
    await two.close()


async def test_an_action_that_the_model_writes_as_json(url) -> None:
    env, _ = await begin(url, action_key="", observation_key="hint", max_steps=4)
    assert (await env.step("I do not know"))[0].startswith("Error: that is no JSON object")
    refused = await env.step('{"colour": 1}')
    assert refused[0].startswith("Error: Server error")
    assert refused[1:] == (0.0, False, False, {})
    assert (await env.step('I say {"guess": "1", "loudness": 3}'))[0] == "1: False, 3"
    assert (await env.step('{"guess": "1"}'))[3] is True  # truncated: the fourth step
    await env.close()


async def test_failures_are_no_rewards(url) -> None:
    env, _ = await begin(url)
    with pytest.raises(RewardError, match="None is not 0"):
        await env.step("never")
    env, _ = await begin(url)
    with pytest.raises(ToolServerError, match="out of order"):
        await env.step("crash")
    await env.close()
    with pytest.raises(ToolServerError, match="tells no schema"):
        await begin("http://127.0.0.1:9", timeout_s=2.0)
    with pytest.raises(EnvError, match=r"observations have no 'text'; they have .*hint"):
        await begin(url, observation_key="text")


async def test_what_is_no_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="wants the URL of a server"):
        resolve("openenv/echo_env", {})()


def test_it_is_a_proper_environment(url) -> None:
    assert check_env(resolve(f"openenv/{url}", {"max_steps": 3})) == []


async def test_a_server_whose_actions_have_several_texts(live) -> None:
    class Letter(Action):
        to: str
        text: str

    url = live(create_fastapi_app(Doubles, Letter, Answer))
    with pytest.raises(ConfigError, match="actions have the fields metadata, to, text"):
        await begin(url)

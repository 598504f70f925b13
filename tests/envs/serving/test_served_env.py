"""Environments over a real HTTP server, against the same environments in this process."""

import asyncio
import threading

import httpx
import numpy as np
import pytest

from turngym.envs.base import AsyncEnv, Env
from turngym.envs.checks import check_env
from turngym.envs.factory import EnvFactory
from turngym.envs.messages import RawText
from turngym.envs.resolution import resolve
from turngym.envs.serving.app import env_app
from turngym.envs.serving.limits import ServeLimits
from turngym.envs.serving.served_env import ServedEnv
from turngym.envs.serving.service import EnvService
from turngym.envs.task import Task
from turngym.envs.tools import http_calls
from turngym.errors import (
    ConfigError,
    DeadlineError,
    EnvError,
    EnvLostError,
    EnvUnavailableError,
    GraderError,
    RewardError,
    ToolServerError,
)

KEY = "secret"
ODD_RESULTS = {
    "no reward": ("", object(), True, False, {}),
    "nan": ("", float("nan"), True, False, {}),
    "three": ("", 0.0, True),
    "no info": ("", 0.0, True, False, None),
    "no messages": ([7], 0.0, True, False, {}),
    "bytes": ([{"role": "user", "content": [{"image": b"x"}]}], 0.0, True, False, {}),
    "no score": ("", 0.0, True, False, {"score": 1j}),
    "own info": ("", np.float32(0.5), np.bool_(True), False, {"own": {1}, "score": np.float32(0.5)}),
}


class Odd(AsyncEnv):
    """Does what its action says."""

    wants_query = True
    num_open = 0
    num_steps = 0

    async def reset(self, *, seed=None, options=None):
        task = (options or {}).get("task")
        if task and task.label == "broken":
            raise GraderError("no verdict")
        type(self).num_open += 1
        return RawText(task.prompt if task else "go"), {"score": 0.5}

    async def step(self, action):
        type(self).num_steps += 1
        if action == "fail":
            raise GraderError("no verdict")
        if action == "hang":
            await asyncio.sleep(1000)
        if action in ODD_RESULTS:
            return ODD_RESULTS[action]
        return f"{action}|{action.query}", 0.25, action == "end", False, {"extra_logs": {"n": 1}}

    async def close(self):
        type(self).num_open -= 1


class Slow(Env):
    """Blocks its thread."""

    let_go = threading.Event()

    def reset(self, *, seed=None, options=None):
        return f"seed {seed}", {}

    def step(self, action):
        self.let_go.wait(30)
        return "", 0.0, True, False, {}


def service_of(env_class, **limits) -> EnvService:
    Odd.num_open = Odd.num_steps = 0
    return EnvService(EnvFactory(env_class.__name__, env_class), ServeLimits(**limits))


@pytest.fixture
def serve(live):
    def start(env_class, **limits) -> str:
        return live(env_app(service_of(env_class, **limits), KEY))

    return start


async def test_an_episode_is_the_same_as_in_this_process(live):
    from turngym.envs.builtin.guess import Guess

    url = live(env_app(EnvService(EnvFactory("Guess", Guess), ServeLimits()), KEY))
    served, own = ServedEnv(url, KEY), Guess()
    task, tasks = own.tasks("train", 3)[5], served.tasks("train", 3)
    assert len(tasks) == len(own.tasks("train", 3))
    expected = own.reset(seed=task.seed, options={"task": task})
    for options in ({"task": tasks[5]}, {"task": task}):  # by its place, and sent along
        assert await served.reset(seed=options["task"].seed, options=options) == expected
    for action in ("7", "no number", "1"):
        wanted = own.step(action)
        assert await served.step(action) == (wanted[0], float(wanted[1]), *wanted[2:])
    await served.close()


@pytest.mark.slow
def test_it_keeps_the_contract(live):
    url = live(env_app(EnvService(resolve("Guess"), ServeLimits()), KEY))
    assert check_env(EnvFactory("ServedEnv", ServedEnv, {"url": url, "key": KEY}), timeout_s=30.0) == []


async def test_actions_and_observations_keep_their_kinds(serve):
    env = ServedEnv(serve(Odd), KEY, wants_query=True)
    observation, info = await env.reset(options={"task": Task("t", prompt="once")})
    assert isinstance(observation, RawText)
    assert (observation, info) == ("once", {"score": 0.5})
    assert await env.step("a") == ("a|None", 0.25, False, False, {"extra_logs": {"n": 1}})
    assert (await env.step("end"))[2] is True
    await env.close()
    assert Odd.num_open == 0


@pytest.mark.slow
async def test_a_failure_there_is_the_same_failure_here_and_ends_the_session(serve):
    env = ServedEnv(serve(Odd, timeout_s=0.5), KEY)
    for action, kind in (
        ("fail", GraderError),
        ("hang", DeadlineError),
        ("no reward", RewardError),
        ("nan", RewardError),
        ("three", EnvError),
        ("no info", EnvError),
        ("no messages", EnvError),
        ("bytes", EnvError),
        ("no score", EnvError),
    ):
        await env.reset()
        with pytest.raises(kind):
            await env.step(action)
        with pytest.raises(EnvLostError, match="there is no session"):
            await env.step("a")
    assert Odd.num_open == 0
    with pytest.raises(GraderError):
        await env.reset(options={"task": Task("t", prompt="p", label="broken")})
    assert Odd.num_open == -1  # it was closed before it was counted
    await env.reset()
    assert await env.step("own info") == ("", 0.5, True, False, {"own": "{1}", "score": 0.5})
    await env.close()


@pytest.mark.slow
async def test_a_step_whose_answer_was_lost_is_not_taken_twice(serve, monkeypatch):
    env = ServedEnv(serve(Odd), KEY)
    await env.reset()
    sent, lost = http_calls._sent, []

    async def lossy(client, request):
        answer = await sent(client, request)
        if request.url.endswith("/step") and len(lost) < 2:
            lost.append(request)
            raise httpx.ReadError("the line was cut")
        return answer

    monkeypatch.setattr(http_calls, "_sent", lossy)
    assert (await env.step("a"))[0] == "a|None"
    assert len(lost) == 2
    assert (await env.step("b"))[0] == "b|None"
    assert Odd.num_steps == 2
    env._turn = 7
    with pytest.raises(EnvError, match="turn 7 was to be answered, and it is the time of turn 2"):
        await env.step("c")
    env._turn = 2
    await env.step("end")
    with pytest.raises(EnvError, match="the episode is over"):
        await env.step("more")
    await env.close()


@pytest.mark.slow
async def test_sessions_are_limited_and_forgotten_ones_are_closed(serve):
    url = serve(Odd, max_sessions=1, lease_s=0.2)
    first, second = ServedEnv(url, KEY), ServedEnv(url, KEY)
    await first.reset()
    async with asyncio.timeout(60):
        while True:  # until the lease of the first has ended
            try:
                await second.reset()
                break
            except EnvUnavailableError:
                await asyncio.sleep(0.05)
    with pytest.raises(EnvLostError):
        await first.step("a")
    await first.close()
    await second.close()


async def test_a_synchronous_environment_blocks_nobody_else(serve):
    url = serve(Slow)
    first, second = ServedEnv(url, KEY), ServedEnv(url, KEY)
    assert (await first.reset(seed=4))[0] == "seed 4"
    async with asyncio.timeout(60):
        blocked = asyncio.create_task(first.step("a"))
        await second.reset()
        Slow.let_go.set()
        await blocked
    await first.close()
    await second.close()


@pytest.mark.slow
async def test_what_the_server_holds_is_closed_with_it(live):
    import uvicorn

    app = env_app(service_of(Odd), KEY)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    async with asyncio.timeout(60):
        while not server.started:
            await asyncio.sleep(0.01)
        env = ServedEnv(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", KEY)
        await env.reset()
        assert Odd.num_open == 1
        server.should_exit = True
        while thread.is_alive():
            await asyncio.sleep(0.01)
        assert Odd.num_open == 0
        with pytest.raises(ToolServerError, match="is the server up"):
            await env.step("a")
        await env.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/tasks?split=test", None, 400),
        ("GET", "/tasks?seed=x", None, 400),
        ("POST", "/reset", b"{", 400),
        ("POST", "/reset", b"[]", 400),
        ("POST", "/reset", b'{"task": 7}', 400),
        ("POST", "/reset", b'{"seed": "x"}', 400),
        ("POST", "/reset", b'{"task": {"index": -1}}', 400),
        ("POST", "/reset", b'{"task": {"index": 1000000000}}', 400),
        ("POST", "/reset", b'{"task": {"index": 0, "split": "test"}}', 400),
        ("POST", "/reset", b"[" * 100_000, 400),
        ("POST", "/step", b"{}", 400),
        ("POST", "/step", b'{"session_id": "x", "turn": "0"}', 400),
        ("POST", "/step", b'{"session_id": "x", "action": "a"}', 404),
        ("POST", "/close", b'{"session_id": "x"}', 200),
        ("GET", "/step", None, 405),
        ("GET", "/nowhere", None, 404),
    ],
)
async def test_malformed_requests_are_refused(method, path, body, status):
    transport = httpx.ASGITransport(env_app(service_of(Odd), KEY))
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        answer = await client.request(method, path, content=body, headers={"Authorization": f"Bearer {KEY}"})
        assert answer.status_code == status, answer.text


async def test_a_wrong_action_leaves_the_session_as_it_is(serve):
    url = serve(Odd)
    env = ServedEnv(url, KEY)
    await env.reset()
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=url, headers=headers) as client:
        answer = await client.post("/step", json={"session_id": env._session, "action": 7})
        assert answer.status_code == 400
    assert (await env.step("a"))[0] == "a|None"
    await env.close()


async def test_nobody_comes_in_without_the_key(serve):
    url = serve(Odd)
    async with httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": KEY}):
            for path in ("/info", "/tasks", "/nowhere"):
                assert (await client.get(path, headers=headers)).status_code == 401
    env = ServedEnv(url, "other")
    with pytest.raises(EnvError, match="this server's key"):
        await env.reset()
    await env.close()


def test_the_key_comes_from_the_environment_too(monkeypatch):
    monkeypatch.delenv("TURNGYM_ENV_KEY", raising=False)
    with pytest.raises(ConfigError, match="wants the server's key"):
        ServedEnv("http://a")
    monkeypatch.setenv("TURNGYM_ENV_KEY", KEY)
    assert ServedEnv("http://a")._headers == {"Authorization": f"Bearer {KEY}"}
    with pytest.raises(ConfigError, match="wants url"):
        ServedEnv("a:80")

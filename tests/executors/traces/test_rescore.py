"""Another reward function over recorded episodes."""

import asyncio
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import numpy as np
import pytest
import yaml

from turngym.agents.base import Sampling
from turngym.agents.chat import agent_for
from turngym.agents.frameworks.base import UserAgent
from turngym.agents.tokenizer import Codec, load_tokenizer
from turngym.envs.builtin.prompt import Prompt
from turngym.envs.openrlhf.env import agent_file
from turngym.envs.reward import Reward
from turngym.envs.rewards import load_reward
from turngym.envs.task import Task
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.own_agents.agent_file import make_executor
from turngym.executors.own_agents.openai_server import AgentEpisodes
from turngym.executors.pools.env_pool import EnvPool
from turngym.executors.store.store import TrajectoryStore
from turngym.executors.traces.rescore import rescored

# What the last completion says, read as a number; the function fails where that is none.
DIGIT = """
import re

def reward_func(queries, prompts, labels, **kwargs):
    assert len(queries) == 1 and queries[0].startswith(prompts[0])
    answer = queries[0][len(prompts[0]):]
    number = int(re.search(r"\\d+", answer).group())
    return {"rewards": [number], "scores": [number / 9], "extra_logs": {"length": len(answer)}}
"""


@pytest.fixture
def digit(tmp_path):
    path = tmp_path / "digit.py"
    path.write_text(DIGIT)
    return path


def test_old_against_new(traces, run, digit):
    code, out, err = traces("rescore", run, "--reward.remote_url", digit, "--split", "train")
    assert (code, err) == (0, "")
    # Old rewards 1, 0.25 and 1, new ones 9, 5 and 9: they lie on a line.
    assert out.splitlines() == [
        "3 episodes scored anew, 3 of them changed",
        "1 left alone, since the attempt failed when it was played",
        "mean reward 0.75 before, 7.66667 now",
        "correlation 1.0000",
        "largest changes:",
        "           1 -> 9          1/Guess/train/7/0",
        "           1 -> 9          2/Guess/train/7/0",
        "        0.25 -> 5          1/Guess/train/7/1",
    ]


def test_new_episodes_go_to_a_new_store_and_the_old_stay(traces, run, digit, tmp_path):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    code, out, _ = traces("rescore", run, "--reward.remote_url", digit, "--out", tmp_path / "new")
    assert code == 0
    assert out.splitlines()[-1] == f"written to {tmp_path / 'new'}"
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    old = list(TrajectoryStore(run / "trajectories" / "train").read())
    new = list(TrajectoryStore(tmp_path / "new" / "train").read())
    assert [s.trajectory.rewards_per_turn.tolist() for s in new] == [[0, 9], [0, 0, 5], [9], [0]]
    assert [s.trajectory.score for s in new[:3]] == [1, 5 / 9, 1]
    assert new[0].trajectory.extra_logs == {"length": len("I say 9<|end|>")}
    assert [(s.step, s.env, s.inexact) for s in new] == [(s.step, s.env, s.inexact) for s in old]
    assert new[3].trajectory.failure == old[3].trajectory.failure  # left alone
    for one, other in zip(old, new, strict=True):
        for a, b in zip(one.trajectory.sequences, other.trajectory.sequences, strict=True):
            assert a.token_ids.tolist() == b.token_ids.tolist()
            assert a.logprobs.tobytes() == b.logprobs.tobytes()
    code, out, _ = traces("view", tmp_path / "new", "--min_reward", 6)
    assert out.splitlines()[-1] == "2 episodes, mean reward 9"


def test_a_failed_reward_is_a_failure_and_never_0(traces, run, digit, tmp_path):
    _, out, _ = traces("rescore", run, "--reward.remote_url", digit, "--out", tmp_path / "new")
    assert "3 episodes scored anew" in out
    assert "1 without a reward, left out of all that follows; the first: RewardError: reward_func of" in out
    (held_out,) = [s.trajectory for s in TrajectoryStore(tmp_path / "new" / "eval").read()]
    assert held_out.failure.kind == "reward"
    assert held_out.failure.turn == 2
    assert held_out.rewards_per_turn.tolist() == [0, 0]  # the turn that was to be scored has no reward
    assert held_out.score is None


def test_a_label_that_json_has_no_form_for_is_told(traces, run, digit):
    store = TrajectoryStore(run / "trajectories" / "train")
    (first, *_) = store.read()
    store.copy(3, [replace(first, step=3, inexact=("label",))])
    _, out, err = traces("rescore", run, "--step", 3, "--reward.remote_url", digit)
    assert out.startswith("1 episodes scored anew")
    assert err.startswith("turngym: 3/Guess/train/7/0: its label")


class Server(BaseHTTPRequestHandler):
    """Gives every query half a point, as `turngym serve-rm` answers."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"rewards": [0.5] * len(asked["query"])}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_a_reward_behind_a_url(traces, run):
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/reward"
        code, out, _ = traces("rescore", run, "--reward.remote_url", url, "--reward.timeout_s", 60)
        server.shutdown()
        thread.join(60)
    assert code == 0
    assert "4 episodes scored anew, 4 of them changed" in out
    assert "mean reward 0.5625 before, 0.5 now" in out


def test_no_reward_at_all_is_exit_code_1(traces, run, tmp_path):
    (tmp_path / "bad.py").write_text(
        "def reward_func(queries, prompts, labels, **kwargs):\n    return [float('nan')]\n"
    )
    code, out, _ = traces("rescore", run, "--reward.remote_url", tmp_path / "bad.py")
    assert code == 1
    assert out.startswith("0 episodes scored anew, 0 of them changed\n4 without a reward")


def test_the_same_reward_changes_nothing(traces, run, tmp_path):
    (tmp_path / "one.py").write_text("def reward_func(queries, prompts, labels, **kwargs):\n    return [1.0]\n")
    _, out, _ = traces(
        "rescore", run, "2/Guess/train/7/0", "--split", "train", "--reward.remote_url", tmp_path / "one.py"
    )
    assert out.splitlines() == [
        "1 episodes scored anew, 0 of them changed",
        "mean reward 1 before, 1 now",
        "correlation not defined: one side is constant",
    ]


async def test_the_function_sees_what_a_run_showed_it(tiny_model, tmp_path):
    seen = tmp_path / "seen.txt"
    (tmp_path / "writes.py").write_text(
        "def reward_func(queries, prompts, labels, **kwargs):\n"
        f"    open({str(seen)!r}, 'a').write(repr((queries, prompts, labels)) + '\\n')\n"
        "    return [0.5]\n"
    )
    tokenizer = load_tokenizer(str(tiny_model))
    pool = EnvPool(1)
    make = lambda: Prompt(remote_url=str(tmp_path / "writes.py"), apply_chat_template=True)  # noqa: E731
    executor = MultiTurn(agent_for(tokenizer), make, pool, Limits(max_context=200))
    engine = ScriptedEngine([tokenizer.encode("naïve 4<|end|>", add_special_tokens=False)])
    trajectory = await executor.run(Task(id="t", prompt="2+2?", label=4), 0, engine, Sampling(32))
    calls = []

    async def reward(queries, prompts, labels):
        calls.append(repr((queries, prompts, labels)))
        return [Reward(0.25, 0.125, {"x": 2.0})]

    again = await rescored(trajectory, reward, Codec(tokenizer))
    assert calls == seen.read_text().splitlines()
    assert (again.reward, again.score, again.extra_logs) == (0.25, 0.125, {"x": 2.0})
    assert np.array_equal(again.sequences[0].token_ids, trajectory.sequences[0].token_ids)
    pool.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--reward.remote_url /nowhere.py", "/nowhere.py"),
        ("--reward.remote_url reward", "one .py file or http(s) URLs, got 'reward'"),
        ("--reward.remote_url DIGIT --out RUN", "holds something already; name a new folder"),
        ("--reward.remote_url DIGIT --out RUN/trajectories/more", "lies among the episodes that are read"),
        ("--reward.remote_url DIGIT --step 9", "no episode in"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(traces, run, digit, words, message):
    words = words.replace("RUN", str(run)).replace("DIGIT", str(digit))
    code, out, err = traces("rescore", run, *words.split())
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_run_whose_tokenizer_is_not_known(traces, run, digit, tiny_model):
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "actor": {"model_name_or_path": "/gone"}}))
    code, _, err = traces("rescore", run, "--reward.remote_url", digit)
    assert code == 2
    assert "cannot load the tokenizer of '/gone'" in err
    model = ["--actor.model_name_or_path", tiny_model]
    assert traces("rescore", run, "--reward.remote_url", digit, *model)[0] == 0


# A number that depends on all that the function is shown.
SUM = """
from zlib import crc32

def reward_func(queries, prompts, labels, **kwargs):
    return [float(crc32(repr((queries, prompts, labels)).encode()) % 9973)]
"""
TRL = SUM.replace("queries, prompts, labels, ", "prompts, completions, ").replace(
    "queries, prompts, labels", "prompts, completions"
)
SINGLE = """
from openrlhf.utils.agent import SingleTurnAgentExecutor

class AgentExecutor(SingleTurnAgentExecutor):
    def __init__(self): super().__init__({!r})
"""


class Talks(UserAgent):
    """Asks twice in one conversation, and once in another."""

    max_concurrency = None

    async def run(self, task, endpoint):
        headers = {"authorization": f"Bearer {endpoint.api_key}"}
        async with httpx.AsyncClient(base_url=endpoint.base_url, headers=headers, timeout=30) as client:
            talk = [{"role": "user", "content": task.prompt}]
            for messages in (talk, [{"role": "user", "content": "aside"}], talk):
                answer = await client.post("chat/completions", json={"messages": messages})
                messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "sure?"}]

    def tasks(self, split, seed):
        return None

    def complaints(self):
        return []

    def close(self):
        pass


@pytest.mark.slow
@pytest.mark.usefixtures("without_openrlhf")
@pytest.mark.parametrize("function", [SUM, TRL])
def test_the_function_of_a_run_gives_its_rewards_again(traces, tiny_model, tmp_path, function):
    """Of an environment, an agent of one's own, and an executor of OpenRLHF that scores by a function itself."""
    (tmp_path / "reward.py").write_text(function)
    (tmp_path / "agent_func.py").write_text(SINGLE.format(str(tmp_path / "reward.py")))
    tokenizer, reward = load_tokenizer(str(tiny_model)), load_reward(str(tmp_path / "reward.py"))
    agent, pool, limits = agent_for(tokenizer), EnvPool(1), Limits(max_context=600)
    task = Task(id="t", prompt="naïve <|end|>2+2?", label="4")
    prompt = lambda: Prompt(remote_url=str(tmp_path / "reward.py"), apply_chat_template=True)  # noqa: E731
    made = {"env:Prompt": lambda: MultiTurn(agent, prompt, pool, limits)}
    made["func:talks.py"] = lambda: AgentEpisodes(agent, Talks(), limits, reward=reward)
    if function == SUM:  # their own executors refuse others
        file = str(tmp_path / "agent_func.py")
        made[f"func:{file}"] = lambda: make_executor(agent, agent_file(file, {}), pool, limits, tokenizer)

    async def play(executor):
        texts = ["4<|end|> or\n5<|end|>", "é", "no<|end|>"]
        engine = ScriptedEngine([tokenizer.encode(text) for text in texts], max_context=600)
        if isinstance(executor, AgentEpisodes):
            await executor.start()
        try:
            async with asyncio.timeout(60):
                return await executor.run(task, 0, engine, Sampling(32))
        finally:
            if isinstance(executor, AgentEpisodes):
                await executor.close()

    for step, (spec, make) in enumerate(made.items()):
        trajectory = asyncio.run(play(make()))
        assert trajectory.failure is None
        assert trajectory.reward > 0
        TrajectoryStore(tmp_path / "run" / "trajectories" / "train", env=spec).write(step, [trajectory])
    pool.close()
    model = ["--actor.model_name_or_path", tiny_model]
    code, out, err = traces("rescore", tmp_path / "run", "--reward.remote_url", tmp_path / "reward.py", *model)
    assert (code, err) == (0, "")
    assert out.startswith(f"{len(made)} episodes scored anew, 0 of them changed")

"""`textarena/*`, with the package itself: alone, against an opponent, and both sides."""

import json
import random
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from turngym.envs.checks import check_env
from turngym.envs.resolution import resolve
from turngym.errors import ConfigError, EnvError, ToolServerError, UnknownNameError

pytest.importorskip("textarena", reason="needs the package: pip install 'turngym[textarena]'")

FIRST_FREE = """
import re
def move(seen):
    return re.findall(r"'(\\[\\d\\])'", seen.rsplit("Available Moves", 1)[1])[0]
class Resigns:
    def __call__(self, seen):
        return "I give up"
def mute(seen):
    return None
"""


@pytest.fixture
def opponents(tmp_path: Path) -> str:
    (tmp_path / "opponents.py").write_text(FIRST_FREE)
    return f"{tmp_path / 'opponents.py'}"


def begin(spec, seed=0, **kwargs):
    factory = resolve(spec, kwargs)
    env = factory()
    return env, *env.reset(options={"task": factory.tasks("train", 0)[seed]})


def test_a_game_of_one_player() -> None:
    env, text, info = begin("textarena/GuessTheNumber-v0")
    assert text.startswith("You are Player 0. You are playing Guess The Number.")
    assert info == {"side": 0}
    low, high = 1, 20
    for _ in range(6):  # halving finds one of 20 numbers in 5
        guess = (low + high) // 2
        text, reward, terminated, truncated, info = env.step(f"I say [{guess}]")
        assert f"[{guess}]" not in text  # what the model said itself is not shown again
        if terminated:
            break
        low, high = (guess + 1, high) if "higher" in text else (low, guess - 1)
    assert (reward, terminated, truncated, info["score"], text) == (1.0, True, False, 1.0, "")
    with pytest.raises(EnvError, match="no game running"):
        env.step("[1]")


def test_a_game_follows_from_its_seed_whatever_else_draws() -> None:
    secrets = set()
    for task in (0, 0, 1, 2):
        random.seed(task)
        before, before_numpy = random.getstate(), np.random.get_state()[1].tolist()
        env, *_ = begin("textarena/GuessTheNumber-v0", task)
        assert random.getstate() == before
        assert np.random.get_state()[1].tolist() == before_numpy
        secrets.add((task, env._env.state.game_state["game_number"]))
    assert len(secrets) == 3


def test_it_is_a_proper_environment() -> None:
    problems = check_env(resolve("textarena/GuessTheNumber-v0", {}))
    assert [problem.check for problem in problems] == ["tasks_differ"]  # none of the checker's answers is a guess


def test_both_sides_in_one_chair() -> None:
    env, text, info = begin("textarena/TicTacToe-v0", sides="both")
    sides = [info["side"]]
    assert text.startswith("You are Player 0 in Tic Tac Toe.")
    for move in "4031":
        text, reward, terminated, _, info = env.step(f"[{move}]")
        sides.append(info["side"])
        assert (reward, terminated) == (0.0, False)
        assert text.count("Current Board") == 1  # of all the boards since its last turn, this side sees the last
    assert sides == [0, 1, 0, 1, 0]
    assert "[Player 1] [1]" in text
    assert "[Player 0]" not in text
    text, reward, terminated, _, info = env.step("[9]")  # there is none; once that is forgiven
    assert (reward, terminated, info["side"]) == (0.0, False, 0)
    assert "attempted an invalid move" in text
    *_, info = env.step("[5]")
    assert info["rewards"] == [1.0, -1.0]
    assert info["scores"] == [1.0, 0.0]


def test_against_an_opponent(opponents: str) -> None:
    env, text, _ = begin("textarena/TicTacToe-v0", opponent=f"{opponents}:move", player=1)
    assert "You are Player 1" in text
    assert "[Player 0] [0]" in text
    assert "[Player 0] [1]" in env.step("[3]")[0]  # it takes 0 and 1, and would win with 2
    _, reward, terminated, _, info = env.step("[4]")
    assert (reward, terminated, info["score"], info["rewards"]) == (-1.0, True, 0.0, [1.0, -1.0])

    env, text, _ = begin("textarena/TicTacToe-v0", opponent=f"{opponents}:Resigns", player=0)
    _, reward, terminated, _, info = env.step("[4]")
    assert (reward, terminated, info["score"]) == (1.0, True, 1.0)


def test_the_seed_says_which_side_is_the_policys(opponents: str) -> None:
    seen = {
        begin("textarena/TicTacToe-v0", task, opponent=f"{opponents}:move")[1][: len("You are Player 0")]
        for task in range(8)
    }
    assert seen == {"You are Player 0", "You are Player 1"}


def test_an_opponent_that_breaks_is_a_failure(opponents: str) -> None:
    env, *_ = begin("textarena/TicTacToe-v0", opponent=f"{opponents}:mute", player=0)
    with pytest.raises(EnvError, match="returned NoneType; wanted a text"):
        env.step("[4]")
    with pytest.raises(EnvError, match="ended 20 games before the policy's first turn"):
        begin("textarena/TicTacToe-v0", opponent=f"{opponents}:Resigns", player=1)


@pytest.mark.slow
def test_an_opponent_behind_a_url() -> None:
    bodies = []

    class Model(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer({"data": [{"id": "frozen"}]})

        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer({"choices": [{"message": {"content": f"[{len(bodies) - 1}]"}}]})

        def answer(self, body):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Model)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        env, *_ = begin("textarena/TicTacToe-v0", opponent=url, player=0)
        env.step("[4]")
        env.step("[3]")
    finally:
        server.shutdown()
        server.server_close()
    assert [body["model"] for body in bodies] == ["frozen", "frozen"]
    assert [message["role"] for message in bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert bodies[1]["messages"][1]["content"] == "[0]"
    with pytest.raises(ToolServerError, match="gave no move"):
        env.step("[8]")


@pytest.mark.parametrize(
    ("game", "kwargs", "error", "says"),
    [
        ("TicTacTo-v0", {}, UnknownNameError, "Did you mean 'TicTacToe-v0'"),
        ("TicTacToe-v0", {}, ConfigError, "give the other side with --agent_args.opponent"),
        ("TicTacToe-v0", {"sides": "all"}, ConfigError, "sides wants one of 'one', 'both'"),
        ("TicTacToe-v0", {"sides": "both", "player": 1}, ConfigError, "takes neither opponent nor player"),
        (
            "TicTacToe-v0",
            {"opponent": "math:sin", "opponent_model": "m"},
            ConfigError,
            "is for an opponent behind a URL",
        ),
        ("TicTacToe-v0", {"opponent": "math:pi"}, ConfigError, "wanted a function from a text to a move"),
        ("TicTacToe-v0", {"sides": "both", "size": 4}, ConfigError, "does not take {'size': 4}"),
        ("GuessTheNumber-v0", {"sides": "both"}, ConfigError, "has one player"),
        ("SecretMafia-v0", {}, ConfigError, "no game of one or two players"),
        ("Debate-v0", {"sides": "both"}, ConfigError, "cannot be made here: ValueError: OpenRouter API key"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(game, kwargs, error, says, monkeypatch) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(error, match=says):
        resolve(f"textarena/{game}", kwargs)()

"""Reward functions behind HTTP."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from turngym.envs.reward import Reward
from turngym.envs.reward_http import HttpReward
from turngym.envs.rewards import load_reward
from turngym.errors import RewardError

QUERY = (["p a"], ["p"], ["l"])


def served(answer, urls=("http://one/r", "http://two/r")) -> tuple[HttpReward, list[httpx.Request]]:
    """A reward function whose n-th request is answered by `answer(n)`."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answer(len(seen) - 1)

    return HttpReward(urls, timeout_s=5.0, pause_s=0.0, transport=httpx.MockTransport(handle)), seen


async def test_what_is_posted_and_what_comes_back() -> None:
    body = {"rewards": [0.5], "scores": [0.0], "extra_logs": {"x": [2]}}
    reward, seen = served(lambda n: httpx.Response(200, json=body))
    assert await reward(*QUERY) == [Reward(0.5, 0.0, {"x": 2.0})]
    assert seen[0].method == "POST"
    assert json.loads(seen[0].content) == {"query": ["p a"], "prompts": ["p"], "labels": ["l"]}


async def test_urls_are_used_in_turn() -> None:
    reward, seen = served(lambda n: httpx.Response(200, json={"rewards": [1]}))
    for _ in range(4):
        await reward(*QUERY)
    assert [request.url.host for request in seen] == ["one", "two", "one", "two"]


async def test_a_failed_try_goes_on_to_the_next_server() -> None:
    answers = [httpx.Response(500), httpx.Response(200, text="not json"), httpx.Response(200, json={"rewards": [1]})]
    reward, seen = served(lambda n: answers[n])
    assert await reward(*QUERY) == [Reward(1.0, 1.0, {})]
    assert [request.url.host for request in seen] == ["one", "two", "one"]


async def test_after_five_tries_it_is_an_error_that_lists_them() -> None:
    def answer(n: int) -> httpx.Response:
        if n % 2:
            raise httpx.ConnectError("refused")
        return httpx.Response(503)

    reward, seen = served(answer)
    with pytest.raises(
        RewardError, match=r"no reward after 5 tries.*http://one/r: HTTPStatusError.*ConnectError: refused"
    ):
        await reward(*QUERY)
    assert len(seen) == 5


async def test_an_answer_that_is_no_reward_is_not_asked_for_again() -> None:
    reward, seen = served(lambda n: httpx.Response(200, json={"rewards": [1, 2]}))
    with pytest.raises(RewardError, match="'http://one/r' returned 2 rewards for 1 queries"):
        await reward(*QUERY)
    assert len(seen) == 1


@pytest.mark.slow
async def test_a_real_server_through_remote_url() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["query"]
            body = json.dumps({"rewards": [float(len(text)) for text in query]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        reward = load_reward(f"http://127.0.0.1:{server.server_port}/get_reward")
        assert await reward(["abc", "de"], ["a", "d"], ["", ""]) == [Reward(3.0, 3.0, {}), Reward(2.0, 2.0, {})]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

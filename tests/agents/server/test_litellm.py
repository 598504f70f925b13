"""R26: what LiteLLM sends, as it was recorded from its package, by each of its routes that lead here.

`litellm_requests.json` holds two requests a route; the first was answered with the first of TEXTS.
"""

import json
from pathlib import Path

import httpx
import pytest

from turngym.agents.server.app import server_app

KEY = "secret"
RECORDED = json.loads(Path(__file__).with_name("litellm_requests.json").read_text())["requests"]
CALL = 'Let me add.\n<tool_call>\n{"name": "add", "arguments": {"a": 17, "b": 25}}\n</tool_call>'
TEXTS = [f"<think>\nI add.\n</think>\n\n{CALL}", "It is 42."]


@pytest.mark.parametrize("route", list(RECORDED))
async def test_a_history_that_came_through_litellm_goes_on_from_what_was_sampled(talk_of, route):
    talk = talk_of("qwen2_5", TEXTS)
    app = server_app(talk.agent, {"s": talk.session}, key=KEY, model="m")
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://s/s/s", headers=headers
    ) as client:
        for request in RECORDED[route]:
            response = await client.post(request["path"], json=request["body"], headers=request["headers"])
            assert response.status_code == 200, response.text
    first, second = talk.engine.requests
    assert second.prompt_ids[: len(first.prompt_ids)].tolist() == first.prompt_ids.tolist()
    sampled = second.prompt_ids[len(first.prompt_ids) :][: len(talk.replies[0])]
    assert sampled.tolist() == talk.replies[0]  # the thought too, whether it came back or not
    record = talk.session.record()
    (sequence,) = record.sequences
    assert sequence.token_ids[sequence.is_action].tolist() == [token for ids in talk.replies for token in ids]
    # Its route for Anthropic sends no thought back.
    dropped = int(route.startswith("anthropic/"))
    assert {name: n for name, n in record.history.items() if n} == {"continued": 1} | (
        {"thoughts_dropped": 1} if dropped else {}
    )

"""The example of an environment with a tool."""

import json
from pathlib import Path

from turngym.envs.checks import check_env
from turngym.envs.resolution import resolve

EXAMPLE = Path(__file__).parents[3] / "examples" / "stock_count.py"


def call(shelf: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'look', 'arguments': {'shelf': shelf}})}</tool_call>"


def test_it_keeps_the_contract():
    assert check_env(resolve(f"{EXAMPLE}:StockCount"), timeout_s=30.0) == []


async def test_looking_and_adding_up_is_right_and_guessing_is_not():
    factory = resolve(f"{EXAMPLE}:StockCount", {"num_shelves": 2})
    task = factory.tasks("eval", 0)[3]
    counts = list(task.data["shelves"].values())
    item = next(item for item in counts[0] if f"how many {item}" in str(task.prompt))
    for looks, reward in ((True, 1.0), (False, 0.0)):
        env = factory()
        await env.reset(options={"task": task})
        if looks:
            messages, *_ = await env.step(call("S1") + call("S2") + call("S3"))
            assert [json.loads(message["content"]) for message in messages[:2]] == counts
            assert messages[2]["content"] == "Error: ValueError: there is no shelf 'S3'; there are S1, S2"
        end = await env.step(f"There are {counts[0][item] + counts[1][item]}.")
        assert end[1:4] == (reward, True, False)
        await env.close()

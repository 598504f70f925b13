"""A whole run of a user's agent: the real loop, the real server, a scripted engine; failed episodes train nothing."""

from pathlib import Path

import pytest

from turngym.agents import ChatAgent, load_tokenizer
from turngym.agents.frameworks.factory import resolve_agent
from turngym.executors.episodes.limits import Limits
from turngym.executors.own_agents.openai_server import AgentEpisodes
from turngym.executors.rollouts.pacing import Pace

from ..toy_run import BAD, Running, Toy, surviving, wanted

AGENT = f"""
import httpx

async def run(task, base_url, api_key):
    history = []
    headers = {{"authorization": f"Bearer {{api_key}}"}}
    async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=60) as client:
        for turn in range(2):
            history.append({{"role": "user", "content": f"{{task.id}}, turn {{turn}}"}})
            answer = await client.post("chat/completions", json={{"messages": history}})
            history.append(answer.raise_for_status().json()["choices"][0]["message"])
    if task.id == {BAD!r}:
        raise OSError("it broke")
    return {{"reward": len(set(history[-1]["content"])), "extra_logs": {{"turns": 2}}}}
"""


@pytest.mark.slow
def test_all_that_an_agent_did_is_trained_on_once_and_what_failed_never(tmp_path: Path, tiny_model):
    file = tmp_path / "agent.py"
    file.write_text(AGENT)
    chat_agent = ChatAgent(load_tokenizer(str(tiny_model)))
    made: list[AgentEpisodes] = []

    def executor() -> AgentEpisodes:
        made.append(AgentEpisodes(chat_agent, resolve_agent(f"func:{file}")(), Limits(), name="the agent"))
        return made[0]

    toy = Toy(tmp_path, num_tasks=12, num_passes=1, pace=Pace(4, batches_ahead=1, max_staleness=2), executor=executor)
    running = Running(toy)
    running.fleet.on_loop(made[0].start())
    close = running.fleet.close

    def close_both() -> None:
        running.fleet.on_loop(made[0].close())
        close()

    running.fleet.close = close_both  # type: ignore[method-assign]
    running.go()
    assert sorted(surviving(tmp_path)) == sorted(wanted(toy))
    assert made[0].server._sessions == {}
    assert all(seat.engine.num_running == 0 for seat in running.fleet.seats)
    prompts = [chat_agent.codec.decode(r.prompt_ids) for seat in running.fleet.seats for r in seat.engine.requests]
    assert sum("turn 1" in prompt for prompt in prompts) >= 4 * 12

"""An agent of one's own, with a tool: it asks over OpenAI's API, and is trained as it is.

turngym train --agent func:examples/sum_agent.py --agent_args.max_calls 3 ...
"""

import json
import random
from collections.abc import Sequence

from openai import AsyncOpenAI

from turngym.envs import Task
from turngym.envs.task import EVAL_SEED_OFFSET, Split

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def tasks(split: Split, seed: int) -> Sequence[Task]:
    """Return sums of three numbers."""
    offset = EVAL_SEED_OFFSET if split == "eval" else 0
    return [_task(f"{split}/{number}", random.Random(offset + 1000 * seed + number)) for number in range(1000)]


def _task(name: str, chance: random.Random) -> Task:
    numbers = [chance.randrange(100, 1000) for _ in range(3)]
    return Task(id=f"sum/{name}", prompt=f"What is {' + '.join(map(str, numbers))}?", label=sum(numbers))


async def run(task: Task, base_url: str, api_key: str, model: str, max_calls: int = 3) -> dict[str, object]:
    """Answer with the help of a tool; 1 for the right sum."""
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "Add with the tool. Then answer with the sum alone."},
        {"role": "user", "content": str(task.prompt)},
    ]
    num_calls = 0
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        while True:
            answer = await client.chat.completions.create(model=model, messages=messages, tools=[ADD])
            said = answer.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            if not said.tool_calls or num_calls >= max_calls:
                break
            for call in said.tool_calls:
                num_calls += 1
                result = _add(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    is_right = (said.content or "").strip() == str(task.label)
    return {"reward": float(is_right), "score": float(is_right), "extra_logs": {"calls": num_calls}}


def _add(arguments: str) -> str:
    """Return the sum, or tell the model what was wrong."""
    try:
        given = json.loads(arguments)
        return str(int(given["a"]) + int(given["b"]))
    except (KeyError, TypeError, ValueError) as error:
        return f"wanted two numbers a and b: {error!r}"

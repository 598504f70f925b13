"""Steps an environment by hand at the terminal."""

from collections.abc import Callable

from .base import Action
from .facade import synchronous
from .factory import EnvFactory, for_task
from .messages import Observation, RawText, as_messages
from .task import Task


def play(
    factory: EnvFactory,
    task: Task,
    *,
    read: Callable[[str], str] = input,
    write: Callable[[str], None] = print,
) -> float | None:
    """Play one episode and return its reward; None when input ended before the episode did.

    Args:
        factory: Makes the environment.
        task: What the episode is about.
        read: Asks for one action; `EOFError` ends the game.
        write: Shows one piece of text.
    """
    make, own = for_task(factory, task)
    env = synchronous(make())
    total = 0.0
    try:
        write(f"task {task.id}")
        observation, _ = env.reset(seed=task.seed, options={"task": own})
        shown = _show(observation, factory.spec)
        write(shown)
        while True:
            text = read("action> ")
            observation, reward, terminated, truncated, info = env.step(Action(text, query=f"{shown}\n{text}"))
            total += float(reward)
            shown = _show(observation, factory.spec)
            write("\n".join(part for part in (shown, _outcome(float(reward), info)) if part))
            if terminated or truncated:
                write(f"{'terminated' if terminated else 'truncated'}, total reward {total:g}")
                return total
    except EOFError:
        write(f"\ninput ended, total reward {total:g} so far")
        return None
    finally:
        env.close()


def _show(observation: Observation, source: str) -> str:
    messages = as_messages(observation, source)
    if isinstance(messages, RawText):
        return messages
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages if message["content"])


def _outcome(reward: float, info: dict[str, object]) -> str:
    details = ", ".join(f"{key}={value!r}" for key, value in info.items() if value not in (None, {}, ""))
    return f"reward {reward:g}" + (f" ({details})" if details else "")

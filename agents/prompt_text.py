"""Prompts of a dataset as the one text that agents written for OpenRLHF begin with."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from ..envs.task import LazyTasks, Task
from ..errors import DataError, TemplateError
from .tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def with_text_prompts(tasks: Sequence[Task], model: str | None) -> Sequence[Task]:
    """Return tasks whose prompts are text, each made when it is asked for.

    Args:
        tasks: Their prompts are text or chat messages.
        model: Whose chat template is put around each prompt, with a generation prompt; None takes prompts as they are.

    Raises:
        ConfigError: The model's tokenizer cannot be loaded, or has no chat template.
        DataError: A prompt is chat messages, and no template is to be applied; found when that task is asked for, the
            first at once.
    """
    tokenizer = None if model is None else _tokenizer(model)

    def make(index: int) -> Task:
        task = tasks[index]
        return replace(task, prompt=_text(task, tokenizer))

    if len(tasks):
        make(0)
    return LazyTasks(len(tasks), make)


@cache
def _tokenizer(model: str) -> "PreTrainedTokenizerBase":
    tokenizer = load_tokenizer(model)
    if not tokenizer.chat_template:
        raise DataError(f"--data.apply_chat_template: the tokenizer of {model!r} has no chat template; leave it out")
    return tokenizer


def _text(task: Task, tokenizer: "PreTrainedTokenizerBase | None") -> str:
    prompt = task.prompt
    if tokenizer is None:
        if not isinstance(prompt, str):
            raise DataError(f"the prompt of task {task.id!r} is chat messages; give --data.apply_chat_template")
        return prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt or [])
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template raises what it likes
        raise TemplateError(f"the chat template cannot render the prompt of task {task.id!r}: {error}") from error
    return str(text)

"""Prompts of a dataset as the one text that agents written for OpenRLHF begin with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ..envs.images import read_images
from ..envs.messages import Message, RawText
from ..envs.task import LazyTasks, Task
from ..errors import DataError, TemplateError
from .template import images_of
from .tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def with_text_prompts(
    tasks: Sequence[Task], model: str | None, template_kwargs: Mapping[str, Any] | None = None
) -> Sequence[Task]:
    """Return tasks whose prompts are text, each made when it is asked for.

    Args:
        tasks: Their prompts are text or chat messages.
        model: Whose chat template is put around each prompt, with a generation prompt; None takes prompts as they are.
        template_kwargs: What the template takes beside messages.

    Raises:
        ConfigError: The model's tokenizer cannot be loaded, or has no chat template.
        DataError: A prompt is chat messages, and no template is to be applied; found when that task is asked for, the
            first at once.
    """
    tokenizer = None if model is None else _tokenizer(model)

    def make(index: int) -> Task:
        task = tasks[index]
        return replace(task, prompt=_text(task, tokenizer, template_kwargs or {}))

    if len(tasks):
        make(0)
    return LazyTasks(len(tasks), make)


@cache
def _tokenizer(model: str) -> "PreTrainedTokenizerBase":
    tokenizer = load_tokenizer(model)
    if not tokenizer.chat_template:
        raise DataError(f"--data.apply_chat_template: the tokenizer of {model!r} has no chat template; leave it out")
    return tokenizer


def _text(task: Task, tokenizer: "PreTrainedTokenizerBase | None", template_kwargs: Mapping[str, Any]) -> str:
    """Return a task's prompt as text, with its images."""
    prompt = task.prompt
    if tokenizer is None:
        if not isinstance(prompt, str):
            raise DataError(f"the prompt of task {task.id!r} is chat messages; give --data.apply_chat_template")
        return prompt
    messages = (
        [Message(role="user", content=prompt)] if isinstance(prompt, str) else list(map(read_images, prompt or []))
    )
    images = [image for message in messages for image in images_of(message)]
    try:
        text = tokenizer.apply_chat_template(
            [_shown(message) for message in messages], tokenize=False, add_generation_prompt=True, **template_kwargs
        )
    except Exception as error:  # a template raises what it likes
        raise TemplateError(f"the chat template cannot render the prompt of task {task.id!r}: {error}") from error
    return RawText(text, images) if images else str(text)


def _shown(message: Message) -> dict[str, Any]:  # Any: what templates read
    """Return a message with nothing but its kind in place of each image."""
    content = message.get("content")
    if not images_of(message) or isinstance(content, str):
        return dict(message)
    return {**message, "content": [{"type": "image"} if "image" in part else part for part in content]}

"""Tasks from datasets: a hub name, a folder, or files; checked before any model is loaded."""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from .dataset_images import checked_images, prompt_with_images
from .dataset_rows import Table, open_table
from .messages import Message, as_messages
from .task import LazyTasks, Task

FINGERPRINT_SAMPLES = 256


def load_tasks(
    dataset: str,
    *,
    split: str = "train",
    input_key: str = "input",
    label_key: str | None = None,
    image_key: str | None = None,
    max_images: int = 0,
    input_template: str | None = None,
    probs: str | None = None,
    max_samples: int = 100_000_000,
    seed: int = 42,
) -> Sequence[Task]:
    """Open datasets, check every row, and return the tasks; rows are read when a task is asked for.

    Rows without a label are dropped and counted on stderr.

    Args:
        dataset: Hub names, folders or files, comma-separated.
        split: Split of hub names and folders; a file is one table.
        input_key: Column of the prompt: text or chat messages.
        label_key: Column of the expected answer.
        image_key: Column of the prompt's images, which is then chat messages; see `dataset_images`.
        max_images: Most images of a prompt; 0 for no bound.
        input_template: Text with one {} that a prompt string is put into.
        probs: Comma-separated weights; rows are then drawn by them until every dataset was used up,
            and those of shorter datasets repeat. Without, datasets follow one another.
        max_samples: Most tasks.
        seed: For drawing by `probs`.

    Raises:
        DataError: A dataset or column is missing, a row cannot be used, or nothing is left.
        ConfigError: `probs` or `input_template` has a wrong form.
    """
    names = [name.strip() for name in dataset.split(",") if name.strip()]
    if not names:
        raise DataError(f"wanted the name of a dataset, got {dataset!r}")
    if max_samples < 1:
        raise ConfigError(f"max_samples must be at least 1, got {max_samples}")
    _check_template(input_template)
    weights = None if probs is None else _weights(probs, len(names))
    tables = [open_table(name, split) for name in names]
    rows = [_usable_rows(table, input_key, label_key) for table in tables]
    sizes = [len(usable) for usable in rows]
    picks = _joined(sizes) if weights is None else _drawn(sizes, weights, seed)

    def make(index: int) -> Task:
        source, position = (int(number) for number in picks[index])
        lap, row = divmod(position, sizes[source])
        number = int(rows[source][row])
        task = _task(tables[source], number, input_key, label_key, input_template)
        if image_key is not None:
            task = _with_images(task, tables[source], number, image_key, max_images)
        prefix = f"{source}:" if len(tables) > 1 else ""
        return Task(f"{prefix}{task.id}{f'+{lap}' if lap else ''}", task.prompt, task.label, data=task.data)

    tasks = LazyTasks(min(len(picks), max_samples), make)
    if image_key is not None:
        for table in tables:
            table.require(image_key, "images", "--data.image_key")
        tasks[0]  # the others are read when they are asked for
    return tasks


def fingerprint(tasks: Sequence[Task]) -> str:
    """Return a short hash of a task set, for a resumed run to see that it is the same.

    It covers the number of tasks and the ids (which hold a hash of the content) of up to 256 of them, spread evenly.
    """
    positions = np.unique(np.linspace(0, max(len(tasks) - 1, 0), min(len(tasks), FINGERPRINT_SAMPLES)).astype(int))
    text = "\n".join([str(len(tasks)), *(tasks[int(position)].id for position in positions)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _usable_rows(table: Table, input_key: str, label_key: str | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Check both columns and return the numbers of the rows that have a label."""
    table.require(input_key, "prompt", "--data.input_key")
    if label_key is not None:
        table.require(label_key, "label", "--data.label_key")
    for number, value in enumerate(table.column(input_key)):
        _check_prompt(table, number, input_key, value)
    if label_key is None:
        return np.arange(len(table))
    blank = np.fromiter((_is_blank(value) for value in table.column(label_key)), dtype=bool, count=len(table))
    if blank.all():
        raise DataError(
            f"{table.name!r}: every row of the label column {label_key!r} is empty; "
            f"columns are {', '.join(table.columns)}. Set --data.label_key"
        )
    if blank.any():
        print(
            f"{table.name}: dropped {int(blank.sum())} of {len(table)} rows without a label in {label_key!r} "
            f"(the first is row {int(np.flatnonzero(blank)[0])})",
            file=sys.stderr,
        )
    return np.flatnonzero(~blank)


def _check_prompt(table: Table, number: int, input_key: str, value: object) -> None:
    if isinstance(value, str) and value.strip():
        return
    if isinstance(value, list) and value:
        try:
            as_messages([_without_nulls(message) for message in value], f"column {input_key!r}")
            return
        except Exception as error:
            raise DataError(f"{table.name!r} row {number}: {error}") from error
    shown = repr(value) if len(repr(value)) < 80 else f"{repr(value)[:80]}..."
    raise DataError(
        f"{table.name!r} row {number}: {input_key!r} holds {shown} ({type(value).__name__}); wanted text or chat "
        f"messages. Mend or drop the row, or set --data.input_key; columns are {', '.join(table.columns)}"
    )


def _task(table: Table, number: int, input_key: str, label_key: str | None, template: str | None) -> Task:
    row = table.row(number)
    value = row.pop(input_key)
    prompt: str | list[Message]
    if isinstance(value, str):
        prompt = value if template is None else template.format(value)
    else:
        prompt = [_without_nulls(message) for message in value]  # type: ignore[misc]  # checked when loaded
    label = None if label_key is None else (value if label_key == input_key else row[label_key])
    content = hashlib.sha256(json.dumps([prompt, label], default=str).encode()).hexdigest()[:10]
    return Task(id=f"{table.short_name}/{number}-{content}", prompt=prompt, label=label, data=row)


def _with_images(task: Task, table: Table, number: int, image_key: str, most: int) -> Task:
    """Put a row's images into its prompt."""
    place = f"{table.name!r} row {number}, column {image_key!r}"
    images = checked_images(table.row(number)[image_key], Path(table.name).expanduser().parent, place, most)
    try:
        prompt = prompt_with_images(task.prompt or "", images)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    content = hashlib.sha256("".join([task.id, *(image.digest for image in images)]).encode()).hexdigest()[:10]
    data = {key: value for key, value in task.data.items() if key != image_key}
    return Task(f"{table.short_name}/{number}-{content}", prompt, task.label, data=data)


def _without_nulls(message: object) -> object:
    """Arrow gives every message every key; those that are null were not there."""
    if not isinstance(message, Mapping):
        return message
    return {key: value for key, value in message.items() if value is not None}


def _is_blank(value: object) -> bool:
    return value is None or value != value or (isinstance(value, str) and not value.strip())  # NaN is not itself


def _check_template(template: str | None) -> None:
    if template is None:
        return
    try:
        is_right = template.format("\0").count("\0") == 1
    except (IndexError, KeyError, ValueError):
        is_right = False
    if not is_right:
        raise ConfigError(
            f"input_template wants text with one {{}} for the prompt (and other braces doubled), got {template!r}"
        )


def _weights(probs: str, num_datasets: int) -> list[float]:
    try:
        weights = [float(part) for part in probs.split(",")]
    except ValueError:
        raise ConfigError(f"prompt_probs wants comma-separated numbers, got {probs!r}") from None
    if len(weights) != num_datasets or not all(0 < weight < float("inf") for weight in weights):
        raise ConfigError(f"prompt_probs wants {num_datasets} positive numbers, one per dataset, got {probs!r}")
    return [weight / sum(weights) for weight in weights]


def _joined(sizes: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return (dataset, position) pairs, one dataset after the other."""
    return np.concatenate(
        [np.column_stack([np.full(size, source), np.arange(size)]) for source, size in enumerate(sizes)]
    )


def _drawn(sizes: Sequence[int], weights: Sequence[float], seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return (dataset, position) pairs drawn by weight until every dataset was used up once."""
    rng = np.random.default_rng(seed)
    sources = np.empty(0, dtype=np.int64)
    counts = np.zeros(len(sizes), dtype=np.int64)
    while (counts < sizes).any():
        sources = np.concatenate([sources, rng.choice(len(sizes), size=sum(sizes), p=weights)])
        counts = np.bincount(sources, minlength=len(sizes))
    positions = np.empty_like(sources)
    ends = []
    for source, size in enumerate(sizes):
        drawn = np.flatnonzero(sources == source)
        positions[drawn] = np.arange(len(drawn))
        ends.append(int(drawn[size - 1]) + 1)
    return np.column_stack([sources, positions])[: max(ends)]

"""Opens one dataset, wherever it lies, as a table of rows; wraps the library `datasets`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import DataError, MissingPackageError

# File name endings and the loader of each.
_FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
_BATCH = 1000


class Table:
    """Rows of named columns.

    Attributes:
        name: As the user gave it.
        columns: Names of the columns.
    """

    def __init__(self, name: str, rows: Any) -> None:  # Any: a datasets.Dataset, imported only where it is opened
        self.name = name
        self.columns: list[str] = list(rows.column_names)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def short_name(self) -> str:
        """The last part of the name, for task ids."""
        return Path(self.name).name

    def column(self, key: str) -> Iterator[Any]:
        """Yield a column's values."""
        for batch in self._rows.select_columns([key]).iter(batch_size=_BATCH):
            yield from batch[key]

    def row(self, number: int) -> dict[str, Any]:
        """Return one row."""
        return dict(self._rows[number])

    def require(self, key: str, what: str, option: str) -> None:
        """Raise `DataError` unless there is a column `key`."""
        if key not in self.columns:
            raise DataError(
                f"{self.name!r} has no column {key!r} for the {what}; its columns are "
                f"{', '.join(map(repr, self.columns))}. Set {option} to one of them"
            )


def open_table(name: str, split: str) -> Table:
    """Open a file, a folder or a hub dataset.

    Raises:
        DataError: It is not there, cannot be read, lacks the split, or is empty.
    """
    path = Path(name).expanduser()
    if not path.exists() and _looks_like_path(name):
        raise DataError(f"no file or folder {name!r}; is the path right, seen from {str(Path.cwd())!r}?")
    try:
        import datasets
    except ImportError as error:
        raise MissingPackageError("datasets need the package: pip install datasets") from error
    try:
        rows = _open_path(path, datasets) if path.exists() else datasets.load_dataset(name)
    except DataError:
        raise
    except Exception as error:  # the library raises its own, Arrow's, pandas' and the network's
        cause = f"; {error.__cause__}" if error.__cause__ is not None else ""
        hint = "" if path.exists() else " It is no local file or folder either."
        reason = f"{type(error).__name__}: {error}{cause}".rstrip(".! ")
        raise DataError(f"dataset {name!r} cannot be loaded: {reason}.{hint}") from error
    if isinstance(rows, dict):
        if split not in rows and not path.is_file():
            raise DataError(f"dataset {name!r} has no split {split!r}; it has {', '.join(map(repr, rows))}")
        # A file is one table, which the library calls "train" whatever it holds.
        rows = rows[split] if split in rows else next(iter(rows.values()))
    if not len(rows):
        raise DataError(f"dataset {name!r} is empty")
    return Table(name, rows)


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "~", os.sep)) or name.count("/") > 1 or "\\" in name or Path(name).suffix in _FORMATS


def _open_path(path: Path, datasets: Any) -> Any:
    if path.is_dir():
        is_saved = (path / "state.json").exists() or (path / "dataset_dict.json").exists()
        return datasets.load_from_disk(str(path)) if is_saved else datasets.load_dataset(str(path))
    if path.suffix not in _FORMATS:
        raise DataError(f"{str(path)!r}: wanted a file that ends in {', '.join(_FORMATS)}, got {path.suffix!r}")
    if not path.stat().st_size:
        raise DataError(f"{str(path)!r} is empty")
    return datasets.load_dataset(_FORMATS[path.suffix], data_files=str(path))

"""Stands in for `openrlhf.utils.logging_utils`."""

import logging

__all__ = ["init_logger"]


def init_logger(name: str) -> logging.Logger:
    """Return a logger; what it says goes where the process's logging goes."""
    return logging.getLogger(name)

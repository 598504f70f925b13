"""A pool of environments as options want it."""

import json
import math
import os

from ...envs.options import EnvPoolOptions
from ...errors import ConfigError
from .base import Host
from .env_classes import EnvClasses
from .env_pool import EnvPool
from .local import LocalHost
from .on_loop import LoopHost
from .processes import ProcessHost
from .threads import ThreadHost


def make_pool(options: EnvPoolOptions, max_wait_s: float) -> EnvPool:
    """Return a pool; what it takes is started by `start` or the first environment.

    Args:
        options: As the user gave them.
        max_wait_s: How long the calls of an episode may wait for their turn.
    """
    return EnvPool(
        max_wait_s=max_wait_s,
        max_concurrency=options.max_concurrency,
        host=_remote_host(options) if options.num_workers else local_host(options),
    )


def local_host(options: EnvPoolOptions) -> LocalHost:
    """Return what hosts environments on one machine."""
    loop_host = LoopHost()
    return LocalHost(_SYNC_HOSTS[options.backend](options, loop_host), loop_host, EnvClasses())


def parse_weights(text: str | None) -> dict[str, float]:
    """Return what --env_pool.weights says.

    Raises:
        ConfigError: It is not NAME=NUMBER, comma-separated, or a number is not positive.
    """
    weights: dict[str, float] = {}
    for item in (text or "").split(",") if text else []:
        name, _, number = item.partition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not name.strip() or not 0 < weight < math.inf or name.strip() in weights:
            raise ConfigError(
                f"--env_pool.weights: wanted NAME=2,OTHER=1 with each name once and positive numbers, got {text!r}"
            )
        weights[name.strip()] = weight
    return weights


def parse_resources(text: str | None) -> dict[str, float]:
    """Return what --env_pool.resources says.

    Raises:
        ConfigError: It is no JSON object of positive numbers, or names what has an option of its own.
    """
    try:
        resources = json.loads(text or "{}")
    except json.JSONDecodeError:
        resources = None
    if not isinstance(resources, dict) or not all(_is_amount(amount) for amount in resources.values()):
        raise ConfigError(
            f"--env_pool.resources: wanted a JSON object of positive numbers such as '{{\"envnode\": 1}}', got {text!r}"
        )
    if taken := {"CPU", "GPU", "memory"} & resources.keys():
        raise ConfigError(
            f"--env_pool.resources: {min(taken)!r} cannot be asked for here, only what nodes were started with by "
            "`ray start --resources`; cores are --env_pool.num_cpus"
        )
    return {name: float(amount) for name, amount in resources.items()}


def _is_amount(amount: object) -> bool:
    return isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount < math.inf


def _thread_host(options: EnvPoolOptions, loop_host: LoopHost) -> Host:
    return ThreadHost(options.num_threads, parse_weights(options.weights), loop_host)


def _process_host(options: EnvPoolOptions, loop_host: LoopHost) -> Host:
    num_processes = options.num_processes or len(os.sched_getaffinity(0))
    return ProcessHost(num_processes, options.max_memory_gib, parse_weights(options.weights))


def _remote_host(options: EnvPoolOptions) -> Host:
    from .remote import RemoteHost  # only here is Ray needed

    return RemoteHost(options, parse_resources(options.resources))


_SYNC_HOSTS = {"thread": _thread_host, "process": _process_host}

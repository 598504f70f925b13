"""What blocks the event loop of a rollout actor, for the driver to read while the actor itself cannot answer.

A call into the actor would not do, not even to a concurrency group of its own: while the loop stands still, Ray may
hold back all that comes to the actor. So a thread of the actor says it to the cluster's key-value store.
"""

import logging
import pickle
import threading
import time
from typing import Any

import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from ..pools.watchdog import Blocking, blocking_now

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
_NAMESPACE = b"turngym-blocking"


def report_blocking() -> None:
    """Let a thread of this process say what blocks it from now on, if it is a Ray actor's."""
    if ray.is_initialized() and (actor_id := ray.get_runtime_context().get_actor_id()) is not None:
        threading.Thread(target=_report, args=(actor_id.encode(),), name="turngym-blocking", daemon=True).start()


def reported(actor: Any) -> Blocking | None:  # Any: Ray's handles have no types
    """Return what an actor last said to block it; None where nothing did."""
    said = _internal_kv_get(actor._actor_id.hex().encode(), namespace=_NAMESPACE)
    blocking: Blocking | None = None if said is None else pickle.loads(said)
    return blocking


def _report(key: bytes) -> None:
    has_said = False
    while True:
        time.sleep(LOOK_EVERY_S)
        blocking = blocking_now()
        try:
            if blocking is not None:
                _internal_kv_put(key, pickle.dumps(blocking), namespace=_NAMESPACE)
            elif has_said:
                _internal_kv_del(key, namespace=_NAMESPACE)
        except Exception as error:  # the store may be back at the next look
            _log.warning("cannot tell the cluster what blocks this process (%s): %r", blocking, error)
        else:
            has_said = blocking is not None

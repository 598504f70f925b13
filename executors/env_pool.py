"""Where environments run: synchronous ones in threads, asynchronous ones on the event loop, all under deadlines."""

import asyncio
import functools
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from ..envs.base import Action, AsyncEnv, Env
from ..envs.daemon_threads import DaemonThreads
from ..envs.task import Task
from ..errors import ConfigError, DeadlineError, EnvError

_log = logging.getLogger(__name__)

AnyEnv = Env | AsyncEnv
EnvFactory = Callable[[], AnyEnv]


class EnvPool:
    """Makes environments and runs their calls; one pool serves all episodes of a process.

    Args:
        num_threads: Most synchronous environments that are in a call at once. One that outlives its
            deadline is given up, and does not count any more.
        close_timeout_s: Deadline of one `close`, and how long it waits for a running call to end first.
    """

    def __init__(self, num_threads: int = 32, *, close_timeout_s: float = 10.0) -> None:
        if num_threads < 1:
            raise ConfigError(f"num_threads must be at least 1, got {num_threads}")
        self.close_timeout_s = close_timeout_s
        self.num_abandoned = 0  # calls that were given up at their deadline
        self.num_close_failures = 0
        self._threads = DaemonThreads(num_threads, "turngym-env")
        self._abandoned: list[_Call] = []
        self._background: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def num_stuck(self) -> int:
        """Threads that are past their call's deadline and still in it."""
        return sum(not call.ended.is_set() for call in self._abandoned)

    async def make(self, factory: EnvFactory, timeout_s: float) -> "PooledEnv":
        """Make an environment: in a thread, or on the event loop where an `AsyncEnv` class is known."""
        if self._is_closed:
            raise EnvError("this pool of environments is closed; no episode can begin in it")
        call = _Making(factory)
        try:
            env = None if _makes_async(factory) else await self.run(call, f"making {_name_of(factory)}", timeout_s)
        except BaseException:  # a cancellation too: nobody else knows what the thread will have made
            call.give_up(functools.partial(self._close_unwanted, asyncio.get_running_loop()))
            raise
        return PooledEnv(self, factory() if env is None else env)

    def close(self) -> None:
        """Let no further episode begin; those that run end as they do."""
        self._is_closed = True

    async def run(self, call: "_Call", what: str, timeout_s: float) -> Any:  # Any: what the call returns
        """Run a call in a thread; its time in the queue does not count.

        Raises:
            DeadlineError: It is still running after `timeout_s`.
        """
        try:
            return await self._threads.call(call, timeout_s=timeout_s, what=what)
        except DeadlineError:
            if not call.ended.is_set():
                self.num_abandoned += 1
                call.is_abandoned = True
                self._abandoned = [other for other in self._abandoned if not other.ended.is_set()] + [call]
            raise

    async def shielded(self, work: Awaitable[None]) -> None:
        """Await work that goes on if the wait for it is cancelled."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        await asyncio.shield(task)

    def _close_unwanted(self, loop: asyncio.AbstractEventLoop, env: AnyEnv) -> None:
        """Close an environment that was made after its episode had ended."""
        if isinstance(env, AsyncEnv):
            asyncio.run_coroutine_threadsafe(env.close(), loop)
        else:
            env.close()


class PooledEnv:
    """One environment of a pool; its calls come one after the other, perhaps from different threads."""

    def __init__(self, pool: EnvPool, env: AnyEnv) -> None:
        self._pool = pool
        self._env = env
        self._last: _Call | None = None
        self._before: _Call | None = None
        self._is_closed = False
        self.name = type(env).__name__
        self.wants_query = bool(getattr(env, "wants_query", False))

    async def reset(self, task: Task, timeout_s: float) -> object:
        """Call `reset` and return what it returned, unchecked."""
        return await self._run(lambda: self._env.reset(seed=task.seed, options={"task": task}), "reset", timeout_s)

    async def step(self, action: Action, timeout_s: float) -> object:
        """Call `step` and return what it returned, unchecked."""
        return await self._run(lambda: self._env.step(action), "step", timeout_s)

    async def close(self) -> None:
        """Close the environment, the first time; a failure is logged and counted, since the episode is over.

        A call that is still running because its episode was cancelled may end first, for as long as the
        pool's `close_timeout_s`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if isinstance(self._env, AsyncEnv):
            await self._close()
        else:
            await self._pool.shielded(self._close())

    async def _close(self) -> None:
        try:
            await self._run(self._close_in_order, "close", 2 * self._pool.close_timeout_s)
        except Exception as error:
            self._pool.num_close_failures += 1
            _log.warning("%s.close failed: %r", self.name, error)

    def _close_in_order(self) -> Any:  # Any: None, or a coroutine
        if self._before is not None:
            self._before.let_end(self._pool.close_timeout_s)
        return self._env.close()

    async def _run(self, function: Callable[[], Any], name: str, timeout_s: float) -> object:
        what = f"{self.name}.{name}"
        if isinstance(self._env, AsyncEnv):
            return await _direct(function, what, timeout_s)
        self._before, self._last = self._last, _Call(function)
        return await self._pool.run(self._last, what, timeout_s)


class _Call:
    """A call as its thread sees it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.ended = threading.Event()
        self.is_abandoned = False
        self._function = function
        self._lock = threading.Lock()
        self._has_begun = False
        self._may_begin = True

    def __call__(self) -> Any:
        with self._lock:
            if not self._may_begin:
                raise EnvError("the episode ended before this call began")
            self._has_begun = True
        try:
            return self._function()
        finally:
            self.ended.set()

    def let_end(self, timeout_s: float) -> None:
        """Wait for the call to end, unless it was given up; if it has not begun, it never will."""
        with self._lock:
            self._may_begin = False
            is_running = self._has_begun and not self.is_abandoned
        if is_running:
            self.ended.wait(timeout_s)


class _Making(_Call):
    """The call that makes an environment; it knows what to do with one that comes too late."""

    def __init__(self, factory: EnvFactory) -> None:
        super().__init__(functools.partial(_made_unless_async, factory))
        self._made: AnyEnv | None = None
        self._discard: Callable[[AnyEnv], None] | None = None

    def __call__(self) -> AnyEnv | None:
        made: AnyEnv | None = super().__call__()
        with self._lock:
            self._made, discard = made, self._discard
        if made is not None and discard is not None:
            discard(made)
        return made

    def give_up(self, discard: Callable[[AnyEnv], None]) -> None:
        """Have the environment discarded in a thread, whenever it is there."""
        with self._lock:
            self._discard, made = discard, self._made
        if made is not None:
            threading.Thread(target=discard, args=(made,), daemon=True).start()


async def _direct(function: Callable[[], Awaitable[object]], what: str, timeout_s: float) -> object:
    """Await an environment's coroutine in this task, so that what it opened can be closed by the same task."""
    task = asyncio.current_task()
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            outcome = await function()
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise DeadlineError(f"{what} took longer than its deadline of {timeout_s:g} s") from error
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        raise EnvError(f"{what} raised CancelledError, and nobody had cancelled it") from error
    except SystemExit as error:
        raise EnvError(f"{what} raised SystemExit: {error}") from error
    if deadline.expired():  # it caught the cancellation and went on
        raise DeadlineError(f"{what} took longer than its deadline of {timeout_s:g} s")
    return outcome


def _made_unless_async(factory: EnvFactory) -> AnyEnv | None:
    """Make the environment, or return None: an `AsyncEnv` is to be made on the event loop it will use.

    Called in a thread, since finding out may import the environment's module.
    """
    return None if _makes_async(factory, may_import=True) else factory()


def _makes_async(factory: object, *, may_import: bool = False) -> bool:
    while isinstance(factory, functools.partial):
        factory = factory.func
    made = getattr(factory, "env_class", factory) if may_import else factory
    return isinstance(made, type) and issubclass(made, AsyncEnv)


def _name_of(factory: object) -> str:
    while isinstance(factory, functools.partial):
        factory = factory.func
    return getattr(factory, "__name__", None) or str(getattr(factory, "spec", factory))

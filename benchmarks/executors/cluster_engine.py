"""One engine of a simulated cluster: requests share its decoding steps, and no event is spent on a single token."""

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import Any

from cluster_work import Episode

from turngym.executors.engines.base import UpdateMode

WATERMARK = 0.98  # of the capacity; a request is let in below it, so that the next token does not put another out


@dataclass(frozen=True)
class EngineModel:
    """Speed and memory of one engine; the defaults are near a model of 7B with grouped queries on one H100.

    Attributes:
        max_num_seqs: Most requests decoded at once.
        capacity: Tokens whose keys and values fit into the memory.
        weights_s: Of one decoding step, whatever it decodes: the weights are read.
        sequence_s: Of one step, for each request in it: its token is computed.
        context_s: Of one step, for each token of each request's context: keys and values are read.
        prefill_per_s: Tokens of prompts computed per second; nothing is decoded meanwhile.
        is_oldest_first: Requests of older orders go before others, in the queue and in memory; otherwise they go by
            when they came.
    """

    max_num_seqs: int = 256
    capacity: int = 700_000
    weights_s: float = 7e-3
    sequence_s: float = 35e-6
    context_s: float = 19e-9
    prefill_per_s: float = 36_000.0
    is_oldest_first: bool = True

    def step_s(self, num_requests: int, num_context: float) -> float:
        """Return the seconds of one decoding step."""
        return self.weights_s + self.sequence_s * num_requests + self.context_s * num_context


@dataclass(eq=False)
class Request:
    """One completion to be sampled.

    Attributes:
        context: Tokens before what is left to sample.
        num_new: Of these, those that the episode's last turn did not leave in the prefix cache.
        num_left: Tokens left to sample.
        age: Of its order; lower ones are older.
        work: The caller's own.
        rank: Lower ones go first.
        begins, ends: Decoding steps of the engine between which it runs.
    """

    episode: Episode
    context: float
    num_new: float
    num_left: float
    age: int
    work: Any  # Any: the engine passes it on
    rank: tuple[int, int] = (0, 0)
    begins: float = 0.0
    ends: float = math.inf


class Engine:
    """Decodes as many requests as fit, those of the lowest ranks; puts out the highest where memory runs out."""

    def __init__(self, model: EngineModel) -> None:
        self._model = model
        self._now = self._steps = 0.0  # steps are counted in fractions, since all requests advance alike
        self._context = 0.0  # tokens whose keys and values are held
        self._blocked_until = 0.0  # prompts are computed
        self._step_s = model.weights_s
        self._running: set[Request] = set()
        self._ends: list[tuple[float, int, Request]] = []  # a heap; holds entries of requests that are gone, too
        self._waiting: list[tuple[tuple[int, int], Request]] = []  # a heap by ranks, which are all different
        self._held: list[Request] = []
        self._numbers = itertools.count()
        self._mode: UpdateMode | None = None  # of the update that goes on
        self._paused_at = 0.0
        self.version = 0
        self.load = 0  # attempts that it was given and that have not ended
        self.num_tokens = 0.0  # sampled so far
        self.num_preempted = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left of what was asked before a pause."""
        return not self._running and not self._waiting

    def next_at(self) -> float:
        """Return when something happens if nothing comes from outside."""
        if not self._running or self._is_frozen:
            return math.inf
        while self._ends[0][2].ends != self._ends[0][0]:
            heapq.heappop(self._ends)
        steps = min(self._ends[0][0] - self._steps, (self._model.capacity - self._context) / len(self._running))
        return max(self._now, self._blocked_until) + max(0.0, steps) * self._step_s

    def ask(self, request: Request, now: float) -> None:
        """Take a request."""
        request.rank = (request.age if self._model.is_oldest_first else 0, next(self._numbers))
        if self._mode is not None:
            self._held.append(request)
            return
        self._advance(now)
        heapq.heappush(self._waiting, (request.rank, request))
        self._fill()

    def cancel(self, request: Request, now: float) -> None:
        """Forget a request."""
        self._advance(now)
        if request in self._running:
            self._leave(request)
        self._waiting = [entry for entry in self._waiting if entry[1] is not request]
        heapq.heapify(self._waiting)
        self._held = [held for held in self._held if held is not request]
        self._fill()

    def run_to(self, now: float) -> list[Request]:
        """Go on until now, and return the requests that are complete."""
        self._advance(now)
        finished = []
        while self._ends and self._ends[0][0] <= self._steps + 1e-6:
            ends, _, request = heapq.heappop(self._ends)
            if request.ends == ends:
                request.episode.newest = self.version
                self._leave(request)
                finished.append(request)
        self._fill()
        return finished

    def pause(self, mode: UpdateMode, now: float) -> None:
        """Hold what comes; draining lets what runs and waits finish, the other modes stop it where it is."""
        self._advance(now)
        self._mode, self._paused_at = mode, now

    def resume(self, version: int, now: float) -> None:
        """Go on under new weights; what ran keeps its keys and values, or has them computed anew."""
        left = max(0.0, self._blocked_until - (self._paused_at if self._is_frozen else now))
        recompute_s = self._context / self._model.prefill_per_s if self._mode is UpdateMode.RECOMPUTE else 0.0
        self._blocked_until, self._now = now + left + recompute_s, now
        self._mode, self.version = None, version
        for request in self._held:
            heapq.heappush(self._waiting, (request.rank, request))
        self._held.clear()
        self._fill()

    @property
    def _is_frozen(self) -> bool:
        return self._mode in (UpdateMode.RECOMPUTE, UpdateMode.KEEP)

    def _advance(self, now: float) -> None:
        began = max(self._now, self._blocked_until)
        if now > began and self._running and not self._is_frozen:
            steps = (now - began) / self._step_s
            sampled = steps * len(self._running)
            self._steps += steps
            self._context += sampled
            self.num_tokens += sampled
        self._now = now

    def _leave(self, request: Request) -> None:
        self._running.remove(request)
        self._context -= request.context + self._steps - request.begins
        request.ends = math.inf  # what is left of it in the heap counts no more

    def _fill(self) -> None:
        """Put out what does not fit any more, let in what does, and set the pace of the steps to come."""
        if self._is_frozen:
            return
        while self._context > self._model.capacity - 1 and len(self._running) > 1:
            self._put_out(max(self._running, key=lambda request: request.rank))
        while self._waiting and self._fits(self._waiting[0][1]):
            self._admit(heapq.heappop(self._waiting)[1])
        self._step_s = self._model.step_s(len(self._running), self._context)

    def _fits(self, request: Request) -> bool:
        has_memory = self._context + request.context < WATERMARK * self._model.capacity
        return not self._running or (has_memory and len(self._running) < self._model.max_num_seqs)

    def _admit(self, request: Request) -> None:
        episode = request.episode
        prompt = request.num_new if episode.cached == self.version else request.context
        episode.cached = self.version  # also where an update comes before its end: the cache of older weights is dead
        self._blocked_until = max(self._blocked_until, self._now) + prompt / self._model.prefill_per_s
        episode.oldest = self.version if episode.oldest is None else episode.oldest
        request.begins, request.ends = self._steps, self._steps + request.num_left
        self._running.add(request)
        self._context += request.context
        heapq.heappush(self._ends, (request.ends, next(self._numbers), request))

    def _put_out(self, request: Request) -> None:
        done = self._steps - request.begins
        self._leave(request)
        request.context += done
        request.num_left -= done
        request.num_new = request.context
        heapq.heappush(self._waiting, (request.rank, request))
        self.num_preempted += 1

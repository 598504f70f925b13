"""The scripted engine passes every check, and each check finds the engine that is wrong in its way."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from turngym.agents.base import Sampling, StopReason
from turngym.executors.engines.base import UpdateMode
from turngym.executors.engines.checks import CHECKS, check_engine
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.engines.transports import ShmWriter
from turngym.executors.engines.weights import TensorSpec

pytestmark = pytest.mark.slow

VOCAB = 64


def problems(engine, **arguments):
    arguments = {"vocab_size": VOCAB, "tolerance": 1e-4, "hold_s": 0.05, "timeout_s": 5.0} | arguments
    return asyncio.run(check_engine(engine, **arguments))


def test_the_scripted_engine_keeps_the_contract():
    plan = [(TensorSpec("a", "float32", (3,)),), (TensorSpec("b", "bfloat16", (2, 2)),)]
    writer = ShmWriter(plan)
    try:
        buckets = [writer.write(i, [torch.rand(tensor.shape)]) for i, (tensor,) in enumerate(plan)]
        engine = ScriptedEngine(token_latency_s=0.002, max_context=256)
        assert problems(engine, buckets=buckets) == []
        assert set(engine.tensors) == {"a", "b"}
    finally:
        writer.close()


class Altered(ScriptedEngine):
    """A scripted engine that changes a request or its answer."""

    def __init__(self, **arguments):
        super().__init__(**{"token_latency_s": 0.005, "max_context": 256} | arguments)

    def ask(self, prompt_ids, sampling):
        return prompt_ids, sampling

    def say(self, completion, sampling):
        return completion

    async def generate(self, prompt_ids, sampling, images=None, request=""):
        prompt, asked = self.ask(prompt_ids, sampling)
        return self.say(await super().generate(prompt, asked, images, request), sampling)


class NoLogprobs(Altered):
    def say(self, completion, sampling):
        return replace(completion, logprobs=None)


class PositiveLogprobs(Altered):
    def say(self, completion, sampling):
        return replace(completion, logprobs=-completion.logprobs)


class ConstantLogprobs(Altered):
    def say(self, completion, sampling):
        return replace(completion, logprobs=np.full_like(completion.logprobs, -0.5))


class OldVersions(Altered):
    def say(self, completion, sampling):
        return replace(completion, versions=completion.versions * 0)


class OutsideVocabulary(Altered):
    def say(self, completion, sampling):
        return replace(completion, token_ids=completion.token_ids + VOCAB)


class OtherIds(Altered):
    """As if it decoded the prompt and encoded it again: 5 comes back as 4."""

    def ask(self, prompt_ids, sampling):
        return np.where(prompt_ids % 2 == 1, prompt_ids - 1, prompt_ids), sampling


class DropsTheEnd(Altered):
    """Sees only the first half of a prompt."""

    def ask(self, prompt_ids, sampling):
        return prompt_ids[:6], sampling


class TooManyTokens(Altered):
    def ask(self, prompt_ids, sampling):
        return prompt_ids, replace(sampling, max_tokens=sampling.max_tokens + 1)


class WrongReason(Altered):
    def say(self, completion, sampling):
        is_stop = completion.stop_reason is StopReason.STOP
        return replace(completion, stop_reason=StopReason.LENGTH if is_stop else StopReason.STOP)


class IgnoresStopTokens(Altered):
    def ask(self, prompt_ids, sampling):
        return prompt_ids, replace(sampling, stop_token_ids=())


class NeverGreedy(Altered):
    def ask(self, prompt_ids, sampling):
        return prompt_ids, replace(sampling, temperature=sampling.temperature or 1.0)


class AlwaysOneSeed(Altered):
    def ask(self, prompt_ids, sampling):
        return prompt_ids, replace(sampling, seed=1)


class IgnoresSeeds(Altered):
    def ask(self, prompt_ids, sampling):
        return prompt_ids, replace(sampling, seed=None)


class IgnoresTopK(Altered):
    def ask(self, prompt_ids, sampling):
        return prompt_ids, replace(sampling, top_k=-1)


class IgnoresShapes(Altered):
    def ask(self, prompt_ids, sampling):
        return prompt_ids, replace(sampling, shape=None)


class FinesTwice(Altered):
    def ask(self, prompt_ids, sampling):
        shape = sampling.shape
        if shape is None or not shape.presence_penalty:
            return prompt_ids, sampling
        return prompt_ids, replace(sampling, shape=replace(shape, presence_penalty=0.0, frequency_penalty=1.0))


class TellsTheLeastLikely(Altered):
    def say(self, completion, sampling):
        top = completion.top
        return completion if top is None else replace(completion, top=replace(top, token_ids=top.token_ids[:, ::-1]))


class DiesOfGrammars(Altered):
    def ask(self, prompt_ids, sampling):
        if sampling.shape is not None:
            self.kill("a grammar")
        return prompt_ids, sampling


class RawLogprobs(Altered):
    """Samples at the temperature, and gives the logprobs of temperature 1."""

    async def generate(self, prompt_ids, sampling, images=None, request=""):
        completion = await super().generate(prompt_ids, sampling, images, request)
        if sampling.temperature in (0.0, 1.0):
            return completion
        plain = Sampling(1, temperature=1.0)
        logprobs = [
            self.policy.log_distribution(np.append(prompt_ids, completion.token_ids[:i]), plain)[token]
            for i, token in enumerate(completion.token_ids)
        ]
        return replace(completion, logprobs=np.asarray(logprobs, np.float32))

    def __init__(self):
        from turngym.executors.engines.toy_policy import ToyPolicy

        super().__init__()
        self.policy = ToyPolicy(VOCAB)


class ScoresHot(Altered):
    """Scores at another temperature than it says."""

    def __init__(self):
        super().__init__(scoring_temperature=2.0)

    scoring_temperature = 1.0


class ScoresInCache(Altered):
    """As a prefix cache would have it: what was computed before has no scores any more."""

    seen: frozenset[bytes] = frozenset()

    async def score(self, token_ids, request=""):
        scores = await super().score(token_ids, request)
        is_known = token_ids.tobytes() in self.seen
        self.seen |= {token_ids.tobytes()}
        return np.concatenate([scores[:1], scores[129:]]) if is_known else scores


class ScoresOneOff(Altered):
    """Gives each token the score of the one before it."""

    async def score(self, token_ids, request=""):
        return np.roll(await super().score(token_ids, request), 1)


class MixesScoresUp(Altered):
    """Sequences that run together are scored as the longest of them."""

    running: tuple[np.ndarray, ...] = ()

    async def score(self, token_ids, request=""):
        self.running = (*self.running, token_ids)
        await asyncio.sleep(0.005)
        longest = max(self.running, key=len)
        scores = await super().score(longest, request)
        self.running = ()
        return scores[: len(token_ids)]


class ScoresLongSequences(Altered):
    async def score(self, token_ids, request=""):
        return await super().score(token_ids[: self.max_context - 1], request)


class AnswersLongPrompts(Altered):
    def ask(self, prompt_ids, sampling):
        return prompt_ids[: self.max_context - sampling.max_tokens], sampling


class HangsOnLongPrompts(Altered):
    async def generate(self, prompt_ids, sampling, images=None, request=""):
        if len(prompt_ids) + sampling.max_tokens > self.max_context:
            await asyncio.sleep(60)
        return await super().generate(prompt_ids, sampling, images, request)


class MixesRequestsUp(Altered):
    """Of requests that run together, each gets the answer of the one before."""

    last = None

    def say(self, completion, sampling):
        if self.num_running == 0:
            self.last = None
            return completion
        said, self.last = self.last, completion
        return completion if said is None else said


class LeaksCancelledRequests(Altered):
    async def generate(self, prompt_ids, sampling, images=None, request=""):
        try:
            return await super().generate(prompt_ids, sampling, images, request)
        except asyncio.CancelledError:
            self._running.add(object())
            self._idle.clear()
            raise


class PausesNothing(Altered):
    async def pause(self, mode=UpdateMode.DRAIN):
        return


class PausesForEver(Altered):
    async def resume(self):
        return


class KillsRunningRequests(Altered):
    async def pause(self, mode=UpdateMode.DRAIN):
        self.kill("paused")


class AlwaysDrains(Altered):
    async def pause(self, mode=UpdateMode.DRAIN):
        await super().pause()


class StampsTheLastVersion(Altered):
    """Gives all tokens of a completion the version that it ended with."""

    def say(self, completion, sampling):
        return replace(completion, versions=np.full_like(completion.versions, completion.versions[-1]))


class StampsBackwards(Altered):
    def say(self, completion, sampling):
        return replace(completion, versions=completion.versions[::-1])


class AdmitsWhileItHolds(Altered):
    async def pause(self, mode=UpdateMode.DRAIN):
        await super().pause(mode)
        if mode is not UpdateMode.DRAIN:
            self._going.set()
            self._open.set()

    async def begin_update(self):
        self._open.clear()
        await super().begin_update()


class BeginsAnew(Altered):
    """After an update it samples what is left once more."""

    def say(self, completion, sampling):
        if len(set(completion.versions.tolist())) == 1:
            return completion
        first = int((completion.versions == completion.versions[0]).sum())
        arrays = (completion.token_ids, completion.logprobs, completion.versions)
        ids, logprobs, versions = (np.concatenate([a[:first], a]) for a in arrays)
        return replace(completion, token_ids=ids, logprobs=logprobs, versions=np.sort(versions))


class MixesOldValuesIn(Altered):
    """As if the keys and values it goes on with were of other weights."""

    def say(self, completion, sampling):
        is_later = completion.versions != completion.versions[0]
        return replace(completion, logprobs=completion.logprobs - 0.5 * is_later.astype(np.float32))


class KeepsItsVersion(Altered):
    async def finish_update(self, version):
        await super().finish_update(0)


class LosesBytes(Altered):
    async def load_bucket(self, bucket):
        return await super().load_bucket(bucket) + 1


class CannotCloseTwice(Altered):
    is_closed = False

    async def close(self):
        if self.is_closed:
            raise RuntimeError("closed already")
        self.is_closed = True
        await super().close()


class AnswersAfterClose(Altered):
    async def close(self):
        return


@pytest.mark.parametrize(
    ("kind", "check", "words"),
    [
        (NoLogprobs, "records", "no logprobs"),
        (PositiveLogprobs, "records", "greater than 0"),
        (OutsideVocabulary, "records", "[0, 64)"),
        (OtherIds, "tokens_in", "decoded and encoded again"),
        (DropsTheEnd, "tokens_in", "changes nothing"),
        (TooManyTokens, "limits", "max_tokens=1 gave 2"),
        (WrongReason, "limits", "stop reason 'stop' after"),
        (IgnoresStopTokens, "limits", "stop_token_ids"),
        (NeverGreedy, "randomness", "greedy gave"),
        (AlwaysOneSeed, "randomness", "all the same"),
        (IgnoresSeeds, "randomness", "one seed"),
        (IgnoresTopK, "distribution", "top_k=1"),
        (RawLogprobs, "distribution", "twice as far"),
        (ConstantLogprobs, "distribution", "sum to"),
        (IgnoresShapes, "biases", "with a bias of 100"),
        (IgnoresShapes, "min_tokens", "should hold stop token"),
        (IgnoresShapes, "grammars", "is no grammar"),
        (FinesTwice, "penalties", "presence_penalty=2 should lower"),
        (TellsTheLeastLikely, "top_logprobs", "the likeliest were"),
        (DiesOfGrammars, "grammars", "EngineDeadError"),
        (AnswersLongPrompts, "too_long", "was answered"),
        (HangsOnLongPrompts, "too_long", "not done within"),
        (ScoresHot, "scores", "sampled with logprobs"),
        (ScoresInCache, "scores", "prefix cache"),
        (ScoresOneOff, "scores", "must be NaN"),
        (MixesScoresUp, "scores_together", "mixed up"),
        (ScoresLongSequences, "unscorable", "256 tokens was scored"),
        (MixesRequestsUp, "concurrency", "mixed up"),
        (LeaksCancelledRequests, "cancellation", "not done within"),
        (PausesNothing, "pausing", "was not held"),
        (PausesForEver, "pausing", "not done within"),
        (KillsRunningRequests, "pausing", "failed in the pause"),
        (AlwaysDrains, "recompute", "they must stay"),
        (AlwaysDrains, "keep", "they must stay"),
        (StampsTheLastVersion, "recompute", "more than one version"),
        (StampsBackwards, "keep", "versions went"),
        (AdmitsWhileItHolds, "recompute", "was not held"),
        (BeginsAnew, "keep", "tokens over updates, and"),
        (MixesOldValuesIn, "keep", "moved the logprobs"),
        (KeepsItsVersion, "update", "at version 0"),
        (OldVersions, "update", "carry [0]"),
        (LosesBytes, "update", "arrived with"),
        (CannotCloseTwice, "closing", "closed already"),
        (AnswersAfterClose, "closing", "health worked after close"),
    ],
)
def test_a_wrong_engine_is_found(monkeypatch, kind, check, words):
    is_midway = check in ("recompute", "keep")  # these sample until the context is full
    only = [c for c in CHECKS if c.__name__ == f"check_{check}"]
    monkeypatch.setattr("turngym.executors.engines.checks.CHECKS", only)
    plan = [(TensorSpec("a", "float32", (3,)),)]
    writer = ShmWriter(plan)
    try:
        buckets = [writer.write(0, [torch.ones(3)])]
        engine = kind(token_latency_s=0.001) if is_midway else kind()
        found = problems(engine, buckets=buckets, timeout_s=2.0 if is_midway else 1.0, closes=check == "closing")
    finally:
        writer.close()
    assert check in {problem.check for problem in found}
    assert any(words in problem.message for problem in found), found

"""Our server in a process of its own, told by lines of JSON on standard input what to do.

`{"open": [NAME, ...]}` opens sessions, `{"close": [NAME, ...]}` ends them and says how many tokens they hold, and
`{"direct": [NAME, ...]}` asks the engine itself what these sessions asked it, each session turn by turn, all at once.
"""

import argparse
import asyncio
import gc
import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "executors"))
import smollm2

from turngym.agents.base import Completion, Generator, Sampling
from turngym.agents.chat import ChatAgent, agent_for
from turngym.agents.server.server import Server
from turngym.agents.tokenizer import load_tokenizer
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.engines.vllm import VllmConfig, VllmEngine
from turngym.executors.fleet.rollout_actor import GC_THRESHOLD

SAID = "The third word of this line names a colour, and what comes next is a town, as far as anybody can tell from it."
GPU_SHARE = 0.3  # of its memory, which vLLM's own server beside it takes too
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Oslo", "days": 3}}\n</tool_call>'


class Recorder:
    """Passes requests on, and keeps what each session asked."""

    def __init__(self, engine: Generator) -> None:
        self.engine = engine
        self.max_context = engine.max_context
        self.asked: dict[str, list[tuple[np.ndarray, Sampling, str]]] = defaultdict(list)

    async def generate(self, prompt_ids, sampling, images=None, request="") -> Completion:
        self.asked[request.partition("/")[0]].append((prompt_ids, sampling, request))
        return await self.engine.generate(prompt_ids, sampling, images, request)

    async def again(self, names: list[str]) -> float:
        """Ask the engine itself the same once more; return the seconds it took."""

        async def one(asked: list[tuple[np.ndarray, Sampling, str]]) -> None:
            for prompt_ids, sampling, request in asked:
                await self.engine.generate(prompt_ids, sampling, None, request)

        began = time.perf_counter()
        await asyncio.gather(*[one(self.asked[name]) for name in names])
        return time.perf_counter() - began


async def serve(server: Server, recorder: Recorder, sampling: Sampling) -> None:
    """Do what comes, line by line, until standard input ends."""
    loop = asyncio.get_running_loop()
    await server.start()
    print(json.dumps({"url": server.url, "key": server.key}), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        told = json.loads(line)
        answer: dict[str, object] = {}
        for name in told.get("open", ()):
            server.open(name, recorder, sampling)
        if "direct" in told:
            answer["seconds"] = await recorder.again(told["direct"])
        if "close" in told:
            records = [await server.close(name) for name in told["close"]]
            answer["num_tokens"] = sum(each.num_actions for record in records for each in record.sequences)
            answer["num_sequences"] = sum(len(record.sequences) for record in records)
            for name in told["close"]:
                recorder.asked.pop(name, None)
        print(json.dumps(answer), flush=True)
    await server.stop()


def scripted(agent: ChatAgent, latency_s: float) -> ScriptedEngine:
    """Return an engine that says a sentence; in sessions that are named for tools, it calls one every other time."""
    said, call = ([*agent.codec.encode(text).tolist(), *agent.end_of_turn_ids] for text in (SAID, CALL))

    def answer(request) -> list[int]:
        name, _, turn = request.name.partition("/")
        return said if "tools" not in name or int(turn.partition(".")[0]) % 2 else call

    return ScriptedEngine(answer, token_latency_s=latency_s, max_context=1 << 20, keep_requests=False)


async def run(options: argparse.Namespace) -> None:
    tokenizer = load_tokenizer(options.model) if options.model else smollm2.tokenizer()
    agent = agent_for(tokenizer)
    if not options.model:
        await serve(Server(agent), Recorder(scripted(agent, options.token_latency_s)), Sampling(max_tokens=256))
        return
    config = VllmConfig(
        options.model,
        "bfloat16",
        max_context=options.max_context,
        num_threads=options.threads,
        gpu_memory_utilization=GPU_SHARE,
    )
    engine = VllmEngine(config, on_gpu=options.gpu)
    await engine.start()
    try:
        await serve(Server(agent), Recorder(engine), Sampling(max_tokens=256))
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="of a real vLLM; by default a scripted engine answers")
    parser.add_argument("--token-latency-s", type=float, default=0.0, help="of the scripted engine")
    parser.add_argument("--max-context", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="the real vLLM runs on a GPU")
    gc.set_threshold(GC_THRESHOLD)
    try:
        import uvloop  # which Ray's actors run on where it is installed; vLLM brings it
    except ImportError:
        asyncio.run(run(parser.parse_args()))
    else:
        uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

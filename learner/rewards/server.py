"""`turngym serve-rm`: a reward model behind HTTP, for `--reward.remote_url` here and in OpenRLHF."""

import asyncio
import json
import math
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ...envs.loop_thread import LoopThread
from ...envs.serving.ports import bound_socket
from ...errors import ConfigError, TurnGymError
from ..run.inputs import check_model
from ..run.interrupt import signals_raise
from .serve_options import ServeRmOptions
from .text_batcher import TextBatcher

if TYPE_CHECKING:
    from .text_scorer import TextRow, TextScorer

BACKLOG = 2048
GRACE_S = 10  # for requests that run when the server is told to stop


def serve(options: ServeRmOptions) -> int:
    """Load the model and answer until SIGINT or SIGTERM; return the exit code.

    Raises:
        ConfigError: An option cannot be used, or nobody may listen there.
    """
    path = _checked_model(options)
    with signals_raise(), bound_socket(options.host, options.port) as listener:
        print(f"loading {path}", flush=True)
        from .text_scorer import load_scorer  # torch: a mistake shows before it is imported

        app = reward_app(load_scorer(options, path), options, path)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S)
        )
        listener.listen(BACKLOG)
        host, port = listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        print(f"serving rewards of {path} at http://{host}:{port}/get_reward; Ctrl-C ends it", flush=True)
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:  # the server has ended by then, and passes on what it was told
            print("stopped", flush=True)
    return 0


def reward_app(scorer: "TextScorer", options: ServeRmOptions, name: str) -> Starlette:
    """Return the application: `/get_reward` and `/health`."""
    batcher = TextBatcher(scorer.score, options.max_tokens, options.batch_size)
    tokenizing = LoopThread("turngym-tokenizer")  # a tokenizer must not be called by two threads at once

    async def rows_of(texts: list[str]) -> "list[TextRow]":
        return [scorer.row(text) for text in texts]

    async def get_reward(request: Request) -> JSONResponse:
        queries = parse_queries(await request.body())
        try:
            async with asyncio.timeout(options.timeout_s):
                rows = await asyncio.wrap_future(tokenizing.submit(rows_of(queries)))
                _check_rows(rows)
                rewards = await batcher.score([row.token_ids for row in rows])
        except TimeoutError as error:
            waiting = f"{batcher.num_waiting} texts still wait"
            raise HTTPException(503, f"no reward within {options.timeout_s:g} s; {waiting}") from error
        except TurnGymError as error:
            raise HTTPException(500, f"{type(error).__name__}: {error}") from error
        _check_rewards(rewards)
        logs = {"is_cut": [float(row.is_cut) for row in rows]}
        return JSONResponse({"rewards": rewards, "scores": rewards, "extra_logs": logs})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "model": name, "waiting": batcher.num_waiting})

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)  # it is registered for these
        return JSONResponse({"detail": error.detail}, error.status_code)

    routes = [Route("/get_reward", get_reward, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes, exception_handlers={HTTPException: refuse})


def parse_queries(body: bytes) -> list[str]:
    """Return the texts of a request; prompts and labels say nothing to a reward model, and are not looked at.

    Raises:
        HTTPException: 400 where it is not JSON, 422 where it holds no texts.
    """
    try:
        content: Any = json.loads(body)
    except ValueError as error:
        raise HTTPException(400, f'the body is not JSON ({error}); wanted {{"query": ["text", ...]}}') from error
    queries = content.get("query") if isinstance(content, dict) else None
    if not isinstance(queries, list):
        keys = f"the keys {sorted(content)}" if isinstance(content, dict) else f"a {type(content).__name__}"
        raise HTTPException(422, f'wanted {{"query": ["text", ...]}}, a list of texts under "query"; got {keys}')
    for index, query in enumerate(queries):
        if not isinstance(query, str) or not query:
            raise HTTPException(422, f"query {index} is {query!r}; wanted a text that is not empty")
        try:
            query.encode()
        except UnicodeEncodeError as error:
            raise HTTPException(422, f"query {index} is no Unicode text: {error}") from error
    return queries


def _check_rows(rows: list["TextRow"]) -> None:
    """Refuse a text that the tokenizer makes nothing of."""
    for index, row in enumerate(rows):
        if not len(row.token_ids):
            raise HTTPException(422, f"query {index} has no tokens; wanted a text that is not empty")


def _check_rewards(rewards: list[float]) -> None:
    """Refuse to pass on what is no number; other requests in the same forward pass are not concerned."""
    for index, reward in enumerate(rewards):
        if not math.isfinite(reward):
            raise HTTPException(500, f"the reward model gave {reward} for query {index}")


def _checked_model(options: ServeRmOptions) -> str:
    counts = {
        "--data.max_len": options.data.max_len,
        "--max_tokens": options.max_tokens,
        "--batch_size": options.batch_size,
    }
    for option, value in counts.items():
        if value is not None and value < 1:
            raise ConfigError(f"{option} must be at least 1, got {value}")
    if not options.timeout_s > 0:
        raise ConfigError(f"--timeout_s must be greater than 0, got {options.timeout_s}")
    return check_model(options.reward.model_name_or_path, "--reward.model_name_or_path")

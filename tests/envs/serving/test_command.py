"""`turngym envs serve` as a process of its own."""

import asyncio
import os
import re
import signal
import sys

import pytest

from turngym.envs.commands import main
from turngym.envs.serving.served_env import ServedEnv


@pytest.mark.slow
async def test_a_server_is_played_and_ends_when_told():
    command = [
        sys.executable,
        "-m",
        "turngym",
        "envs",
        "serve",
        "Guess",
        "--port",
        "0",
        "--agent_args.high",
        "3",
        "--mcp",
    ]
    environment = {key: value for key, value in os.environ.items() if key != "TURNGYM_ENV_KEY"}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    try:
        async with asyncio.timeout(120):
            assert process.stdout is not None
            said = (await process.stdout.readuntil(b"key ")) + await process.stdout.readline()
            found = re.search(
                r"serving Guess at (http://127\.0\.0\.1:\d+); .*\nMCP at \1/mcp\nkey (\S+)\n", said.decode()
            )
            assert found, said
            env = ServedEnv(found[1], found[2])
            observation, _ = await env.reset(options={"task": env.tasks("train", 0)[0]})
            assert "from 1 to 3" in str(observation)
            await env.close()
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["Guess", "--port", "70000"], "between 0 and 65535"),
        (["Guess", "--port", "0", "--host", "192.0.2.1"], "cannot listen on --host 192.0.2.1"),
        (["Guess", "--lease_s", "0"], "above 0"),
        (["Gues"], "Did you mean 'Guess'"),
    ],
)
def test_mistakes_are_told(words, told, capsys):
    assert main(["serve", *words]) == 2
    assert told in capsys.readouterr().err

"""A small real model that never stops by itself, and one engine with it that many tests share."""

import json
import shutil
from pathlib import Path

import pytest
import pytest_asyncio

from .reference import Rig

DEVICES = [pytest.param(False, id="cpu"), pytest.param(True, id="gpu", marks=pytest.mark.gpu)]


@pytest_asyncio.fixture(loop_scope="session", scope="session", params=DEVICES)
async def rig(endless_model: Path, request: pytest.FixtureRequest):
    """A vLLM; what uses it runs on the session's event loop."""
    rig = Rig(endless_model, on_gpu=request.param)
    await rig.engine.start()
    yield rig
    await rig.engine.close()


@pytest.fixture(scope="session")
def endless_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model without an end-of-sequence token, so that completions are as long as a test wants them."""
    folder = tmp_path_factory.mktemp("endless_model")
    shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        settings = json.loads((folder / name).read_text())
        settings.pop("eos_token_id", None)
        settings.pop("eos_token", None)
        if "max_position_embeddings" in settings:
            settings["max_position_embeddings"] = 4096
        (folder / name).write_text(json.dumps(settings))
    return folder

"""The packages behind collections import each other by names that folders of this repository have, too."""

import sys
from pathlib import Path

# `python -m pytest` puts the current folder first; `agents` of openai-agents, which verifiers imports, is then ours.
ROOT = Path(__file__).resolve().parents[3]
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

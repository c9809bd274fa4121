"""Files of ours with other content and a checksum that fits are refused in a sentence, or taken: never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import mutants

sys.path.pop(0)

MEMORY, SECONDS = 500_000_000, 1.0


def judged(kind: str, count: int) -> dict:
    """What became of the mutants, in a process of its own."""
    command = [sys.executable, mutants.__file__, str(count), kind]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stderr.splitlines()[-1])


def check(found: dict) -> None:
    assert found["odd"] == {}
    assert found["refused"] > found["mutants"] / 3
    assert found["memory"] < MEMORY


@pytest.mark.parametrize("kind", mutants.KINDS)
def test_some_mutants(kind):
    check(judged(kind, 8))


@pytest.mark.reliability
@pytest.mark.parametrize("kind", mutants.KINDS)
def test_five_hundred_mutants(kind, record_property):
    found = judged(kind, 500)
    text = "{mutants} mutants of a {kind}: {refused} refused, {taken} taken, {odd} tracebacks, "
    text += "slowest {slowest:.2f} s, {memory:.0f} MB"
    record_property("figure", text.format(**found | {"odd": len(found["odd"]), "memory": found["memory"] / 1e6}))
    check(found)
    assert found["slowest"] < SECONDS

"""Files of ours with other content and a checksum that fits are refused in a sentence, or taken: never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.reliability import mutants

MEMORY, SECONDS = 500_000_000, 1.0


def judged(count: int, *kinds: str) -> list[dict]:
    """What became of the mutants of each kind, in a process of its own."""
    command = [sys.executable, mutants.__file__, str(count), *kinds]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return [json.loads(line) for line in finished.stderr.splitlines() if line.startswith('{"kind"')]


def check(found: dict) -> None:
    assert found["odd"] == {}
    assert found["refused"] > found["mutants"] / 3
    assert found["memory"] < MEMORY


def test_some_mutants():
    found = judged(8, *mutants.KINDS)
    assert [each["kind"] for each in found] == list(mutants.KINDS)
    for each in found:
        check(each)


@pytest.mark.reliability
@pytest.mark.parametrize("kind", mutants.KINDS)
def test_five_hundred_mutants(kind, record_property):
    (found,) = judged(500, kind)
    text = "{mutants} mutants, {kind} ({what}): {refused} refused, {taken} taken, {odd} tracebacks, "
    text += "slowest {slowest:.2f} s, {memory:.0f} MB"
    what = str(mutants.KINDS[kind][1].__doc__).rstrip(".")
    told = found | {"what": what[0].lower() + what[1:], "odd": len(found["odd"]), "memory": found["memory"] / 1e6}
    record_property("figure", text.format(**told))
    check(found)
    assert found["slowest"] < SECONDS

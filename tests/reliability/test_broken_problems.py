"""Default calls on problems that are wrong in one of 53 ways, and on as many correct ones: no wrong answer is silent.

2,000 problems in pieces of 50, half of each correct; piece k holds the seeds from 50 k on.
"""

from __future__ import annotations

import pytest
from tests.reliability import broken_problems
from tests.wrong_setups import WRONG_SETUPS

pytestmark = pytest.mark.reliability
SIZE, PIECES = 50, 40


@pytest.mark.parametrize("piece", range(PIECES))
def test_no_wrong_answer_is_silent_and_no_claim_is_false(piece, record_property):
    found = broken_problems.judged(range(piece * SIZE, (piece + 1) * SIZE))
    claims = [each for each in found if each["claim"]]
    false, silent = ([each for each in found if each["wrong"] and each[key]] for key in ("claim", "silent"))
    words = [each for each in found if each["name"] == "right" and each["warned"]]
    text = (
        "{problems} problems, half of them wrong in one of %d ways: {silent} wrong answers without a word, {false} of "
    )
    text += (
        "{claims} claims false, {words} correct problems with a warning, {seconds:.0f} s of the processor in `minimize`"
    )
    record_property("figure", text % len(WRONG_SETUPS))
    counts = {"silent": silent, "false": false, "claims": claims, "words": words}
    numbers = {name: len(each) for name, each in counts.items()}
    record_property("counts", {"problems": len(found), "seconds": sum(each["seconds"] for each in found)} | numbers)
    assert not silent, silent[:5]
    assert not false, false[:5]
    assert not words, words[:5]

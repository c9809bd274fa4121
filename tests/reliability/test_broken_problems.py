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
    seconds = sum(each["seconds"] for each in found)
    record_property(
        "figure",
        f"{SIZE} problems (piece {piece}), half of them wrong in one of {len(WRONG_SETUPS)} ways, "
        f"{seconds / len(found):.2f} s each: {len(silent)} wrong answers without a word, {len(false)} of {len(claims)} "
        f"claims false, {len(words)} correct ones with a warning of the problem",
    )
    assert not silent, silent[:5]
    assert not false, false[:5]
    assert not words, words[:5]

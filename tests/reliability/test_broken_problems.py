"""Default calls on problems that are wrong in one of 53 ways, and on as many correct ones: no wrong answer is silent.

BROKEN (an environment variable) sets how many problems there are; half of them are correct.
"""

from __future__ import annotations

import os

import pytest
from tests.reliability import broken_problems
from tests.wrong_setups import WRONG_SETUPS

pytestmark = pytest.mark.reliability
COUNT = int(os.environ.get("BROKEN", "2000"))


def test_no_wrong_answer_is_silent_and_no_claim_is_false(record_property):
    found = broken_problems.judged(COUNT)
    claims = [each for each in found if each["claim"]]
    false, silent = ([each for each in found if each["wrong"] and each[key]] for key in ("claim", "silent"))
    words = [each for each in found if each["name"] == "right" and each["warned"]]
    seconds = sum(each["seconds"] for each in found)
    record_property(
        "figure",
        f"{COUNT} problems, half of them wrong in one of {len(WRONG_SETUPS)} ways, {seconds / len(found):.2f} s each: "
        f"{len(silent)} wrong answers without a word, {len(false)} of {len(claims)} claims false, "
        f"{len(words)} correct ones with a warning of the problem",
    )
    assert not silent, silent[:5]
    assert not false, false[:5]
    assert not words, words[:5]

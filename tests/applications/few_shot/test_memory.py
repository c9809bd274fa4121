"""Freed memory is kept when asked for: the same pages serve the next step."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, sys, torch
from bilevel.applications.few_shot.memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def round():
    for _ in range(5):
        torch.ones(16_000_000)  # 64 MB

if sys.argv[1] == "keep":
    assert keep_freed_memory()
round()
before = faults()
round()
print(faults() - before)
"""


def page_faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_kept_memory_costs_no_page_faults() -> None:
    assert page_faults("keep") < 100
    assert page_faults("as it is") > 100

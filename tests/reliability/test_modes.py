"""Every public call in twenty modes of torch: the answer is that without the mode, or an error of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.test_torch_modes import CALLS, DEFAULT_DTYPES, MODES, REFUSED, problem
from torch.overrides import TorchFunctionMode

import bilevel

pytestmark = pytest.mark.reliability


class Watched(TorchFunctionMode):
    """A mode that sees every function of torch and changes none."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def setting(change: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(before)


MORE: dict[str, Callable[[], Any]] = {
    "autocast float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "default device": lambda: torch.device("cpu"),
    "flush denormal": lambda: setting(torch.set_flush_denormal, True, False),
    "matmul precision": lambda: setting(torch.set_float32_matmul_precision, "medium", "highest"),
    "one autograd thread": lambda: torch.autograd.set_multithreading_enabled(False),
    "save on CPU": torch.autograd.graph.save_on_cpu,
    "no saved hooks": lambda: torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"),
    "dual level": torch.autograd.forward_ad.dual_level,
    "function mode": Watched,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_every_call_is_right_or_refused_in_every_mode(dtype, record_property):
    modes = {**MODES, **DEFAULT_DTYPES, **REFUSED, **MORE}
    right = refused = 0
    for name, call in CALLS.items():
        expected = call(problem(dtype)).detach()
        for mode, enter in modes.items():
            given = problem(dtype)
            try:
                with enter():
                    found = call(given).detach()
            except bilevel.BilevelError:
                refused += 1
                continue
            assert torch.equal(found, expected), (name, mode)
            right += 1
    record_property(
        "figure",
        f"{len(CALLS)} public calls in {len(modes)} modes of torch, points in {str(dtype).removeprefix('torch.')}: "
        f"{right} right, {refused} refused, none wrong",
    )
    assert refused <= 3 * len(CALLS)

"""Tests of the projection: the nearest point, by an oracle and by the variational inequality."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from .. import tolerances
from ..errors import InvalidInputError, InvalidTypeError
from ..sets.base import ConvexSet, event_norm
from .cases import Case, SetCases
from .oracle import Oracle

log: logging.Logger = logging.getLogger("bilevel.testing")
"""How many cases the oracle could not judge; shown by `pytest -o log_cli=true --log-cli-level=INFO`."""

AGREEMENT = 1e-7
"""Largest distance to the oracle's answer, relative to max(|z|, size of the set)."""


class ProjectionTests(SetCases):
    """Tests of `project`, `contains`, `distance`, `random_point`."""

    def test_agrees_with_the_oracle(self) -> None:
        """Random cases, 60 by default, against cvxpy with Clarabel."""
        self._check_oracle("oracle", self.oracle_cases)

    @pytest.mark.slow
    def test_agrees_with_the_oracle_2000(self) -> None:
        """2,000 random cases against cvxpy with Clarabel."""
        self._check_oracle("oracle-all", 2000)

    def _check_oracle(self, name: str, count: int) -> None:
        unusable = 0
        for case in self.cases(name, count):
            projected = self._check_truths(case)
            oracles: dict[float, Oracle] = {}
            for z, p, size in zip(case.z, projected, case.size().tolist(), strict=True):
                # The oracle sees the problem divided by its size, since its tolerances are absolute.
                unit = case.scale if size < 10 * case.scale else size
                if unit not in oracles:
                    small = self.set_at(case.seed, case.dimension, case.scale / unit)
                    oracles[unit] = Oracle(lambda y, small=small: self.oracle(y, small), case.shape)
                for answer, error in oracles[unit].answers(z / unit):
                    gap = float((answer * unit - p).norm()) / size
                    if gap <= AGREEMENT:
                        break
                    assert gap <= error * unit / size, (
                        f"{case.Y} at scale {case.scale:g}, dimension {case.dimension}: {gap:.3g} of the scale "
                        f"from the oracle, at z = {z.tolist()}"
                    )
                else:
                    unusable += 1
        log.info("%s: %d cases, %d judged without the oracle", type(self).__name__, count, unusable)
        assert unusable <= 0.02 * count, f"the oracle had no usable answer in {unusable} of {count} cases"

    def _check_truths(self, case: Case) -> Tensor:
        """Feasible, idempotent, non-expansive, and <z - Pz, w - Pz> <= 0 for points w of the set."""
        Y, z, size, ndim = case.Y, case.z, case.size(), len(case.shape)
        p = Y.project(z).detach()
        assert p.shape == z.shape
        assert p.dtype == z.dtype
        for point in p:
            membership = Y.contains(point)
            assert membership, f"{Y} at scale {case.scale:g}: projection outside, {membership.reason}"
        slack = self.accuracy * size
        assert (event_norm(Y.project(p).detach() - p, ndim) <= slack).all(), f"{Y}: not idempotent"
        moved, differences = p[:, None] - p[None], z[:, None] - z[None]
        assert (
            event_norm(moved, ndim) <= event_norm(differences, ndim) + torch.maximum(slack[:, None], slack[None])
        ).all(), f"{Y}: expansive"
        generator = torch.Generator().manual_seed(case.seed + 3)
        batch = (20, *case.shape)
        w = torch.cat([Y.random_point(generator, *batch, scale=case.scale, dtype=z.dtype).detach(), p])
        angle = ((z - p)[:, None] * (w[None] - p[:, None])).flatten(2).sum(-1)
        reach = event_norm(z - p, ndim)[:, None] * event_norm(w[None] - p[:, None], ndim)
        assert (angle <= 1e-9 * reach + slack[:, None] * (size[:, None] + event_norm(w, ndim)[None])).all(), (
            f"{Y}: variational inequality fails by {float((angle / size[:, None] ** 2).max()):.3g} of the scale"
        )
        return p

    @pytest.mark.parametrize("scale", [1e-12, 1e12])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_any_scale(self, scale: float, dtype: torch.dtype) -> None:
        """P_{sY}(s z) = s P_Y(z) from 1e-12 to 1e12, and feasible in units of s."""
        for case in self.small_cases("scales"):
            z = case.z.to(dtype)
            big = self.set_at(case.seed, case.dimension, scale)
            p = big.project(z * scale).detach()
            assert big.contains(p), f"{big}: {big.contains(p).reason}"
            error = event_norm(p.double() / scale - case.Y.project(z.double()).detach(), len(case.shape))
            assert (error <= self._rounding(dtype) * case.size()).all(), f"{big}: off by {float(error.max()):.3g}"

    def _rounding(self, dtype: torch.dtype) -> float:
        return max(tolerances.feasibility(dtype), self.accuracy)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_lower_precision(self, dtype: torch.dtype) -> None:
        """The answer in float32 and bfloat16 is that of float64 up to rounding, in the dtype of the point."""
        self.need_half(dtype)
        for case in self.small_cases("precision"):
            z = case.z.to(dtype)
            p = case.Y.project(z).detach()
            assert p.dtype == dtype
            assert case.Y.contains(p), case.Y.contains(p).reason
            error = event_norm(p.double() - case.Y.project(z.double()).detach(), len(case.shape))
            assert (error <= self._rounding(dtype) * case.size()).all(), f"off by {float(error.max()):.3g}"

    def test_huge_offset_in_float32(self) -> None:
        """z = 1e6 + noise in float32: the answer is feasible, and that of float64 at the same z up to its rounding."""
        for case in self.small_cases("offset"):
            z = (1e6 * case.scale + case.z).float()
            self._check_value(case, case.Y, case.Y.project(z), case.Y.project(z.double()))

    @pytest.mark.parametrize("ratio", [1.0, 1e3, 1e6, 1e12])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_gradients_leave_the_value(self, ratio: float, dtype: torch.dtype) -> None:
        """P(z) is the same with and without gradients in z or in a parameter, for |z| up to 1e12 times the set."""
        for case in self.small_cases("tracked", 3):
            z = (ratio * case.z).to(dtype)
            plain = case.Y.project(z)
            self._check_value(case, case.Y, case.Y.project(z.clone().requires_grad_()), plain)
            for name, value in case.Y.tensor_parameters().items():
                following = case.Y.replace(**{name: value.detach().clone().requires_grad_()})
                self._check_value(case, following, following.project(z), plain)

    def _check_value(self, case: Case, Y: ConvexSet, p: Tensor, expected: Tensor) -> None:
        """p lies in Y and is as expected, up to the rounding of the answer: a far z brings none."""
        p, expected = p.detach(), expected.detach().double()
        assert Y.contains(p), f"{Y}: {Y.contains(p).reason}"
        error, size = (event_norm(v, len(case.shape)) for v in (p.double() - expected, expected))
        allowed = self._rounding(p.dtype) * (case.scale + size)
        assert (error <= allowed).all(), f"{Y}: off by {float((error / allowed).max()):.3g} times the rounding"

    def test_batch_is_a_loop(self) -> None:
        """Each batch element is projected on its own, for any leading shape, an empty one included."""
        for case in self.small_cases("batch"):
            batched = case.Y.project(case.z.reshape(2, 4, *case.shape)).detach()
            looped = torch.stack([case.Y.project(z).detach() for z in case.z]).reshape(batched.shape)
            torch.testing.assert_close(batched, looped, rtol=0, atol=self.accuracy * float(case.size().max()))
            assert case.Y.project(case.z[:0]).shape == case.z[:0].shape
            assert case.Y.jacobian(case.z[:0]).apply(case.z[:0]).shape == case.z[:0].shape
            assert case.Y.distance(case.z[:0]).shape == (0,)
            assert case.Y.contains(case.z[:0])

    def test_distance_and_random_point(self) -> None:
        """|y - Py| is zero on random points of the set, and is the distance elsewhere."""
        for case in self.small_cases("distance"):
            generator = torch.Generator().manual_seed(case.seed)
            inside = case.Y.random_point(generator, 5, *case.shape, dtype=torch.float64).detach()
            assert inside.shape == (5, *case.shape)
            assert case.Y.contains(inside), case.Y.contains(inside).reason
            assert (case.Y.distance(inside) <= self.accuracy * (1 + event_norm(inside, len(case.shape)))).all()
            gap = event_norm(case.z - case.Y.project(case.z), len(case.shape))
            torch.testing.assert_close(case.Y.distance(case.z), gap, rtol=1e-9, atol=self.accuracy)

    def test_the_answer_has_memory_of_its_own(self) -> None:
        """Changing the projection in place does not change z, not even for a point of the set."""
        for case in self.small_cases("memory"):
            inside = case.Y.project(case.z).detach()
            before = inside.clone()
            case.Y.project(inside).detach().add_(1)
            assert torch.equal(inside, before)

    def test_bad_points_are_refused(self) -> None:
        """NaN, infinite, integer, empty points and lists: an error of ours that names the set, by any method."""
        case = next(iter(self.small_cases("bad")))
        Y, name = case.Y, type(case.Y).__name__
        methods: tuple[Any, ...] = (Y.project, Y.jacobian, Y.distance)
        if Y.margin(case.z[0]) is not None:
            methods = (*methods, Y.margin)
        for bad in (float("nan"), float("inf"), -float("inf")):
            z = case.z[0].clone()
            z.view(-1)[0] = bad
            for method in methods:
                with pytest.raises(InvalidInputError, match=f"{name}.* NaN or infinite"):
                    method(z)
            assert "1 NaN or infinite" in Y.contains(z).reason
        for method in (*methods, Y.contains):
            with pytest.raises(InvalidTypeError, match=f"{name} takes floating-point"):
                method(torch.zeros(case.shape, dtype=torch.int64))
            for other in ([0.0], np.zeros(case.shape)):
                with pytest.raises(InvalidTypeError, match=f"{name} takes a tensor"):
                    method(other)
            with pytest.raises(InvalidInputError, match="has no entries"):
                method(torch.zeros(tuple(0 for _ in case.shape)))
            if not self.takes_numbers:
                with pytest.raises(InvalidInputError, match=f"{name} takes points of"):
                    method(torch.zeros((), dtype=torch.float64))
        assert name in repr(Y)

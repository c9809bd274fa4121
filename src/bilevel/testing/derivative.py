"""Tests of the derivative of a projection: closed form, autograd and finite differences agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ..sets.base import ConvexSet
from .cases import Case, SetCases, dense, dense_batch, unit_directions

NEAR = 1e-6
"""Largest distance between closed form, autograd and central differences away from kinks."""


class DerivativeTests(SetCases):
    """Tests of `jacobian`, of autograd through `project` in z and in parameters, and of `margin`."""

    def test_jacobian_is_the_derivative(self) -> None:
        """H v = (P(z + h v) - P(z - h v)) / 2h away from kinks, and autograd gives the same H."""
        seen = 0
        for case in self.small_cases("differences", 9):
            for z in self.smooth_points(case):
                H = dense(case.Y.jacobian(z), z)
                torch.testing.assert_close(H, self._differences(case.Y.project, z), rtol=NEAR, atol=NEAR)
                by_autograd = torch.autograd.functional.jacobian(case.Y.project, z)
                torch.testing.assert_close(H, by_autograd.reshape(H.shape), rtol=NEAR, atol=NEAR)
                seen += 1
        assert seen >= 20, f"only {seen} points away from kinks"

    def _differences(self, function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        """Jacobian matrix of a function of one tensor by central differences."""
        h = self.difference_step
        steps = h * torch.eye(z.numel(), dtype=z.dtype).reshape(-1, *z.shape)
        columns = [(function(z + step) - function(z - step)) / (2 * h) for step in steps]
        return torch.stack([column.detach().reshape(-1) for column in columns], -1)

    def test_jacobian_is_symmetric_between_0_and_1(self) -> None:
        """At every point, kinks included: H = H', 0 <= H <= I, H H = H where claimed, support and rank as said."""
        for case in self.small_cases("spectrum", 12):
            for z in case.z:
                jacobian = case.Y.jacobian(z)
                H = dense(jacobian, z)
                tiny = 1e-9
                torch.testing.assert_close(H, H.T, rtol=0, atol=tiny)
                values = torch.linalg.eigvalsh((H + H.T) / 2)
                assert values.min() >= -tiny
                assert values.max() <= 1 + tiny
                if jacobian.is_projector:
                    torch.testing.assert_close(H @ H, H, rtol=0, atol=tiny)
                if isinstance(jacobian.support, Tensor):
                    assert jacobian.support.shape == z.shape
                    off = ~jacobian.support.reshape(-1)
                    assert not H[off].any()
                    assert not H[:, off].any()
                if jacobian.dimension is not None:
                    assert int(jacobian.dimension) == int((values > 1e-12).sum()), f"{case.Y} at {z.tolist()}"

    def test_polyhedral(self) -> None:
        """Where every H is said to be a projector, it is one, and says so."""
        for case in self.small_cases("polyhedral", 6):
            if not case.Y.polyhedral:
                continue
            jacobian = case.Y.jacobian(case.z)
            assert jacobian.is_projector
            H = dense_batch(jacobian, case.z)
            torch.testing.assert_close(H @ H, H, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_derivative_in_lower_precision(self, dtype: torch.dtype) -> None:
        """Products and margins come in the dtype of the point, and are those of float64 up to rounding."""
        self.need_half(dtype)
        slack, seen = 8 * torch.finfo(dtype).eps, 0
        for case in self.small_cases("half", 6):
            generator = torch.Generator().manual_seed(case.seed)
            for exact in self.smooth_points(case, 8).to(dtype).double():
                if not self._is_smooth(case.Y, exact, generator):  # rounding may have moved the point to a kink
                    continue
                z, seen = exact.to(dtype), seen + 1
                v = torch.randn(z.shape, generator=generator, dtype=torch.float64).to(dtype)
                product, expected = case.Y.jacobian(z).apply(v), case.Y.jacobian(exact).apply(v.double())
                assert product.dtype == dtype
                torch.testing.assert_close(product.double(), expected, rtol=slack, atol=slack * float(v.abs().max()))
                margin, expected = case.Y.margin(z), case.Y.margin(exact)
                if margin is not None:
                    assert margin.dtype == dtype
                    atol = slack * max(float(exact.abs().max()), case.scale)
                    torch.testing.assert_close(margin.double(), expected, rtol=slack, atol=atol)
        assert seen >= 20, f"only {seen} points away from kinks"

    def test_jacobian_of_a_batch(self) -> None:
        """A batch of points, and more directions than points, act element by element."""
        for case in self.small_cases("jacobian-batch"):
            generator = torch.Generator().manual_seed(case.seed)
            v = torch.randn((3, *case.z.shape), generator=generator, dtype=case.z.dtype)
            batched = case.Y.jacobian(case.z).apply(v)
            looped = torch.stack([case.Y.jacobian(z).apply(v[:, k]) for k, z in enumerate(case.z)], 1)
            torch.testing.assert_close(batched, looped, rtol=1e-9, atol=1e-9)

    def test_kinks(self) -> None:
        """At a kink H lies in the convex hull of its limits from nearby smooth points."""
        from scipy.optimize import nnls

        dimensions = [d for d in self.small_dimensions if d <= 2] or [min(self.small_dimensions)]
        for k, base in enumerate(self.small_cases("kinks", 6)):
            case = self.case(base.seed, dimensions[k % len(dimensions)])
            generator = torch.Generator().manual_seed(case.seed)
            for z in case.z:
                H = dense(case.Y.jacobian(z), z).reshape(-1)
                near = z + 1e-7 * unit_directions(100, z, generator)
                limits = dense_batch(case.Y.jacobian(near), near).flatten(1).T
                weights = torch.cat([limits, torch.ones(1, limits.shape[-1], dtype=z.dtype)])
                _, miss = nnls(weights.numpy(), torch.cat([H, torch.ones(1, dtype=z.dtype)]).numpy())
                assert miss <= 1e-4, f"{case.Y}: H at the kink {z.tolist()} is {miss:.2g} from the hull of its limits"

    def test_gradcheck(self) -> None:
        """First and second derivatives of `project` in z, away from kinks."""
        for case in self.small_cases("gradcheck", 3):
            z = self.smooth_points(case, 3).requires_grad_()
            assert torch.autograd.gradcheck(case.Y.project, (z,))
            assert torch.autograd.gradgradcheck(case.Y.project, (z,), atol=1e-4)

    def test_parameter_derivatives(self) -> None:
        """P_theta' u by autograd is that of central differences; gradcheck to second order."""
        for case in self.small_cases("parameters", self.parameter_cases):
            for k, z in enumerate(self.smooth_points(case, 4)):
                self._check_parameters(case, z, second=k == 0)

    def _check_parameters(self, case: Case, z: Tensor, *, second: bool) -> None:
        u = torch.randn(z.shape, generator=torch.Generator().manual_seed(case.seed), dtype=z.dtype)
        for name, value in case.Y.tensor_parameters().items():
            project = self._at_parameter(case.Y, name, z)
            leaf = value.detach().clone().requires_grad_()
            (by_autograd,) = torch.autograd.grad(project(leaf), leaf, u)
            differences = self._differences(project, value.detach())
            by_difference = (u.reshape(-1) @ differences).reshape(value.shape)
            torch.testing.assert_close(by_autograd, by_difference, rtol=NEAR, atol=NEAR)
            if second:
                assert torch.autograd.gradcheck(project, (leaf,))
                assert torch.autograd.gradgradcheck(project, (leaf,), atol=1e-4)

    def _at_parameter(self, Y: ConvexSet, name: str, z: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda value: Y.replace(**{name: value}).project(z)

    def test_margin(self) -> None:
        """Nothing changes within the margin; just beyond it, somewhere, H does."""
        for case in self.small_cases("margin", 9):
            points = self.smooth_points(case)
            margins = case.Y.margin(points)
            if margins is None:
                pytest.skip("this set has no formula for its margin")
            generator = torch.Generator().manual_seed(case.seed)
            for z, margin in zip(points, margins, strict=True):
                if not case.Y.jacobian(z).is_projector or not torch.isfinite(margin):
                    continue
                d = margin * unit_directions(600, z, generator)
                assert not self._changes(case.Y, z, 0.999 * d), f"{case.Y}: a kink within the margin of {z.tolist()}"
                if self.margin_exact:
                    assert self._changes(case.Y, z, 1.1 * d), f"{case.Y}: no kink at the margin of {z.tolist()}"

    def _changes(self, Y: ConvexSet, z: Tensor, steps: Tensor) -> bool:
        """Whether H v differs between z and some z + step."""
        v = torch.randn((3, *z.shape), generator=torch.Generator().manual_seed(0), dtype=z.dtype)
        there = Y.jacobian(z + steps).apply(v[:, None].expand(3, *steps.shape))
        here = Y.jacobian(z.expand_as(steps)).apply(v[:, None].expand(3, *steps.shape))
        return bool(((there - here).abs() > 1e-3).any())

    def test_torch_func(self) -> None:
        """vmap of `project` and of Jacobian products, and jacrev, give what plain calls give."""
        self._need_tracing()
        case = self.largest_small_case("vmap")
        torch.testing.assert_close(torch.func.vmap(case.Y.project)(case.z), case.Y.project(case.z))
        product: Any = lambda z, v: case.Y.jacobian(z).apply(v)  # noqa: E731
        v = torch.randn(case.z.shape, generator=torch.Generator().manual_seed(0), dtype=case.z.dtype)
        torch.testing.assert_close(torch.func.vmap(product)(case.z, v), product(case.z, v))
        z = self.smooth_points(case, 1)[0]
        H = dense(case.Y.jacobian(z), z)
        torch.testing.assert_close(torch.func.jacrev(case.Y.project)(z).reshape(H.shape), H)

    def test_no_answer_is_nan_under_vmap(self) -> None:
        """Where values cannot be looked at, a point that is not finite and a set without a point give NaN."""
        self._need_tracing()
        case = self.largest_small_case("nan")
        Y, z = case.Y, case.z[:4].clone()
        for k, bad in enumerate((float("nan"), float("inf"), -float("inf"))):
            z[k].view(-1)[k % z[k].numel()] = bad
        for ask in self._questions(Y, z[3]):
            self._check_only_nan(torch.func.vmap(ask)(z), slice(3), ask(z[3]))
        slope = torch.func.vmap(torch.func.grad(lambda u: Y.project(u).square().sum()))(z)
        assert slope[:3].isnan().all()
        assert slope[3].isfinite().all()
        for name, value in Y.tensor_parameters().items() if self.traceable_parameters else ():
            values = torch.stack([torch.full_like(value, torch.nan), value.detach()])
            moved = torch.func.vmap(lambda v, name=name: Y.replace(**{name: v}).project(z[3]))(values)
            self._check_only_nan(moved, slice(1), Y.project(z[3]))

    def _questions(self, Y: ConvexSet, z: Tensor) -> list[Callable[[Tensor], Any]]:
        """What a set is asked about a point, with a tensor as the answer."""
        v = torch.ones_like(z)
        questions: list[Callable[[Tensor], Any]] = [Y.project, Y.distance, lambda u: Y.jacobian(u).apply(v)]
        return questions if Y.margin(z) is None else [*questions, Y.margin]

    def _check_only_nan(self, answers: Tensor, bad: slice, good: Tensor) -> None:
        assert answers[bad].isnan().all()
        torch.testing.assert_close(answers[-1], good.detach())

    @pytest.mark.slow
    def test_compile(self) -> None:
        """One graph, with its gradient, under torch.compile; NaN for a point that is not finite."""
        self._need_tracing()
        case = self.largest_small_case("compile")
        torch._dynamo.reset()
        compiled = torch.compile(case.Y.project, backend="aot_eager", fullgraph=True)
        z = case.z.clone().requires_grad_()
        p = compiled(z)
        torch.testing.assert_close(p, case.Y.project(case.z))
        assert compiled(torch.full_like(z, torch.nan)).isnan().all()
        (grad,) = torch.autograd.grad(p.square().sum(), z)
        z = case.z.clone().requires_grad_()
        (eager,) = torch.autograd.grad(case.Y.project(z).square().sum(), z)
        torch.testing.assert_close(grad, eager)

    def _need_tracing(self) -> None:
        if not self.traceable:
            pytest.skip("the projection calls a solver outside torch")

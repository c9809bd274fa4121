"""Balls of the spectral and nuclear norms: singular values are clipped or soft-thresholded."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import ProjectionJacobian, SetWithRadius, constant_on_a_point, show, tracked, validated, with_value
from .spectral import Dilation, SoftThresholdJacobian, without_rounding


class SpectralNormBall(SetWithRadius):
    """{Y : largest singular value <= radius}; P(Z) = U min(diag(s), radius) V' with Z = U diag(s) V'.

    H D = D - S D with S the derivative of soft-thresholding at the radius (`spectral.SoftThresholdJacobian`). The
    kinks are singular values equal to the radius; they count as inside. With radius 0 the projection is constant and
    H = 0. Matrices are decomposed in float64: all singular values carry the rounding of the largest.

    Parameters
    ----------
    radius
        Non-negative: a number, or a tensor with one value per batch element.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6; the derivative: Lewis & Sendov (2005).

    Examples
    --------
    >>> SpectralNormBall(1.0).project(torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.5, 0.0]]))
    tensor([[1.0000, 0.0000, 0.0000],
            [0.0000, 0.5000, 0.0000]])
    """

    event_ndim = 2

    @validated
    def project(self, z: Tensor) -> Tensor:
        wide = z.double()
        radius = _per_matrix(self, wide)
        if not tracked(z, radius):
            return _clipped(wide, radius, *torch.linalg.svd(wide, full_matrices=False)).to(z.dtype)
        moving = constant_on_a_point(wide, radius.unsqueeze(-1))
        dilation = Dilation(moving)
        value = _clipped(wide.detach(), radius.detach(), dilation.left, dilation.values, dilation.right)
        return with_value(value, moving - dilation.shrink(radius.detach(), radius)).to(z.dtype)

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        z = z.double()
        left, values, right = torch.linalg.svd(z, full_matrices=False)
        radius = _per_matrix(self, z).detach()
        shrink = SoftThresholdJacobian(left, values, right, without_rounding(values - radius, values))
        return ClippedJacobian(shrink, moves=(radius > 0).unsqueeze(-1))

    def excess(self, y: Tensor) -> tuple[Tensor, float | Tensor, str]:
        amount = torch.linalg.matrix_norm(y.detach(), 2) - self.radius
        return amount.clamp_min(0), self.radius, f"the spectral norm exceeds the radius {show(self.radius)}"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        radius = _per_matrix(self, z).detach()
        kinks = (torch.linalg.svdvals(z) - radius).abs()
        return torch.where(radius > 0, kinks, torch.inf).amin(-1)


class NuclearNormBall(SetWithRadius):
    """{Y : sum of singular values <= radius}; P(Z) = U max(diag(s) - theta, 0) V' for Z = U diag(s) V'.

    Inside (and on the boundary) H = I. Outside, with S the derivative of soft-thresholding at theta
    (`spectral.SoftThresholdJacobian`) and E = sum of u_i v_i' over the k singular values above theta,
    H D = S D - <E, D> E/k. Singular values equal to theta count as below it. With radius 0 the projection is constant
    and H = 0. Matrices are decomposed in float64: all singular values carry the rounding of the largest.

    Parameters
    ----------
    radius
        Non-negative: a number, or a tensor with one value per batch element.

    References
    ----------
    Cai, Candes & Shen (2010); the derivative: Lewis & Sendov (2005).

    Examples
    --------
    >>> NuclearNormBall(1.0).project(torch.tensor([[2.0, 0.0], [0.0, 1.5]]))
    tensor([[0.7500, 0.0000],
            [0.0000, 0.2500]])
    """

    event_ndim = 2

    @validated
    def project(self, z: Tensor) -> Tensor:
        wide = z.double()
        radius = _per_matrix(self, wide)
        if not tracked(z, radius):
            left, values, right = torch.linalg.svd(wide, full_matrices=False)
            shrunk, outside = _threshold(values, radius)
            return torch.where(outside.unsqueeze(-1), _shrunk(left, shrunk, right), wide).to(z.dtype)
        dilation = Dilation(wide)
        shrunk, outside = _threshold(dilation.values, radius.detach())
        level = (dilation.values - shrunk)[..., :1]
        # The singular values above the level must add up to radius + k * level: this moves the level with Z.
        count = (shrunk > 0).sum(-1, keepdim=True).clamp_min(1)
        moved = level + (dilation.surplus(level) - radius) / count
        value = _shrunk(dilation.left, shrunk, dilation.right)
        inner = with_value(value, dilation.shrink(level, moved))
        return torch.where(outside.unsqueeze(-1), inner, wide).to(z.dtype)

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        z = z.double()
        left, values, right = torch.linalg.svd(z, full_matrices=False)
        shrunk, outside = _threshold(values, _per_matrix(self, z).detach())
        return NuclearJacobian(SoftThresholdJacobian(left, values, right, shrunk), outside)

    def excess(self, y: Tensor) -> tuple[Tensor, float | Tensor, str]:
        amount = torch.linalg.svdvals(y.detach()).sum(-1) - self.radius
        return amount.clamp_min(0), self.radius, f"the nuclear norm exceeds the radius {show(self.radius)}"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        """The distance to s_i = theta, with theta moving along, or to the sphere."""
        values = torch.linalg.svdvals(z)
        radius = _per_matrix(self, z).detach()
        shrunk, outside = _threshold(values, radius)
        count = (shrunk > 0).sum(-1, keepdim=True).clamp_min(1)
        slope = (1 - (shrunk > 0) / count + (shrunk <= 0) / count).clamp_min(torch.finfo(z.dtype).tiny).sqrt()
        sphere = (values.sum(-1, keepdim=True) - radius).abs() / values.shape[-1] ** 0.5
        kinks = torch.where(outside, shrunk.abs() / slope, torch.inf).amin(-1, keepdim=True)
        return torch.where(radius > 0, torch.minimum(kinks, sphere), torch.inf).squeeze(-1)


class ClippedJacobian(ProjectionJacobian):
    """H = I - S with S the derivative of soft-thresholding: the singular values are clipped; 0 where nothing moves."""

    def __init__(self, shrink: SoftThresholdJacobian, moves: Tensor) -> None:
        self._shrink, self._moves = shrink, moves

    def apply(self, v: Tensor) -> Tensor:
        return ((v - self._shrink.apply(v)) * self._moves).to(v)


class NuclearJacobian(ProjectionJacobian):
    """H D = S D - <E, D> E/k outside the ball, D inside."""

    def __init__(self, shrink: SoftThresholdJacobian, outside: Tensor) -> None:
        self._shrink, self._outside = shrink, outside.unsqueeze(-1)
        self._edge = shrink.edge() * self._outside
        self._count = shrink.top.sum(-1).clamp_min(1)[..., None, None]

    def apply(self, v: Tensor) -> Tensor:
        along = (self._edge * v).sum((-2, -1), keepdim=True) / self._count
        return torch.where(self._outside, self._shrink.apply(v) - along * self._edge, v).to(v)


def _per_matrix(ball: SetWithRadius, z: Tensor) -> Tensor:
    """The radius with a last dimension of length 1, to broadcast against singular values."""
    return ball.per_point("radius", z, keepdim=False).unsqueeze(-1)


def _clipped(z: Tensor, radius: Tensor, left: Tensor, values: Tensor, right: Tensor) -> Tensor:
    """z = U diag(values) V' with the singular values cut at the radius; z itself inside the ball."""
    clipped = (left * torch.minimum(values, radius).unsqueeze(-2)) @ right
    return torch.where((values[..., :1] > radius).unsqueeze(-1), clipped, z)


def _shrunk(left: Tensor, shrunk: Tensor, right: Tensor) -> Tensor:
    return (left * shrunk.clamp_min(0).unsqueeze(-2)) @ right


def _threshold(values: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """values - theta with sum max(values - theta, 0) = radius, for decreasing values; whether outside.

    Every point is outside of a ball of radius 0: the projection is constant there too.
    """
    shifted = values - values[..., :1]
    rank = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
    excess = shifted.cumsum(-1) - radius
    count = (rank * shifted > excess).sum(-1, keepdim=True).clamp_min(1)
    shrunk = without_rounding(shifted - excess.gather(-1, count - 1) / count, values)
    outside = (values.sum(-1, keepdim=True) > radius) | (radius == 0)
    return torch.where(outside, shrunk, values), outside

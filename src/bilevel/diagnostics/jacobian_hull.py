"""The smallest |h(H)| over convex combinations of Jacobians H_1, ..., H_k, by dense linear algebra.

With H = sum_i l_i H_i, l in the simplex, and s = f_y + (I - eta G) q,

    q = H s,      h = f_x - eta G_xy q + sum_i l_i V_i s,      dq/dl_i = (I - H (I - eta G))^{-1} H_i s,

V_i being the derivative of a set that moves with x (absent otherwise). Jacobians are combined, never hypergradients:
l -> h is not linear, and the hull of the h(H_i) may hold a zero that no H has (erratum 11).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

TURNS = 60
"""Gauss-Newton steps from each start."""


@dataclass(frozen=True)
class JacobianHull:
    """The formula of the hypergradient as a function of the weights.

    Parameters
    ----------
    faces
        H_i, shape (k, d, d), on the entries of y that any of them touches.
    upper_x, upper_y
        f_x (n,) and f_y (d,).
    hessian, cross
        G (d, d) and G_xy (n, d).
    eta
        The step of the fixed-point map.
    motions
        V_i, shape (k, n, d), or None.
    residual
        h -> (measure of stationarity as a vector, its derivative applied to the columns of a matrix).
    """

    faces: Tensor
    upper_x: Tensor
    upper_y: Tensor
    hessian: Tensor
    cross: Tensor
    eta: float
    motions: Tensor | None
    residual: Callable[[Tensor], tuple[Tensor, Callable[[Tensor], Tensor]]]

    def at(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The residual of h and its derivative in the weights, (n,) and (n, k)."""
        eye = torch.eye(len(self.upper_y), dtype=self.upper_y.dtype)
        step = eye - self.eta * self.hessian
        H = torch.einsum("i,ijk->jk", weights, self.faces)
        *system, info = torch.linalg.lu_factor_ex(eye - H @ step)
        if int(info) > 0:  # g is flat on this face: no hypergradient
            return torch.full_like(self.upper_x, torch.inf), torch.zeros(len(self.upper_x), len(weights)).to(weights)
        q = torch.linalg.lu_solve(*system, (H @ self.upper_y)[:, None])[:, 0]
        s = self.upper_y + step @ q
        turned = torch.linalg.lu_solve(*system, (self.faces @ s).T)  # dq/dl, (d, k)
        h, slope = self.upper_x - self.eta * self.cross @ q, -self.eta * self.cross @ turned
        if self.motions is not None:
            V = torch.einsum("i,ijk->jk", weights, self.motions)
            h, slope = h + V @ s, slope + (self.motions @ s).T + V @ step @ turned
        value, derivative = self.residual(h)
        return value, derivative(slope)

    def norm(self, weights: Tensor) -> float:
        """The measure of stationarity |residual(h)|."""
        return float(self.at(weights)[0].norm())

    def restricted(self, members: list[int]) -> JacobianHull:
        """The same formula with some of the faces."""
        motions = None if self.motions is None else self.motions[members]
        return replace(self, faces=self.faces[members], motions=motions)

    def smallest(self) -> tuple[float, Tensor]:
        """The smallest norm found, and its weights: from the best corners, the centre, and the linearised problem."""
        count = len(self.faces)
        corners = torch.eye(count, dtype=self.upper_y.dtype)
        norms = [self.norm(corner) for corner in corners]
        order = sorted(range(count), key=norms.__getitem__)
        best = (norms[order[0]], corners[order[0]])
        if count == 1:
            return best
        starts = [corners[i] for i in order[:2]] + [torch.full_like(corners[0], 1.0 / count)]
        for start in starts:
            found = descend(self.at, start)
            best = min(best, found, key=lambda pair: pair[0])
            if best[0] <= 1e-12 * max(norms):
                break
        return best

    def helpful(self, numbers: list[int]) -> list[int]:
        """Those of the faces towards which the smallest norm found would fall further."""
        _, weights = self.smallest()
        r, J = self.at(weights)
        slopes = r @ J
        return [number for number in numbers if float(slopes[number]) < float(slopes @ weights)]


def descend(at: Callable[[Tensor], tuple[Tensor, Tensor]], weights: Tensor) -> tuple[float, Tensor]:
    """Levenberg-Marquardt on the simplex: each step minimises |r + J (l' - l)|^2 + damping |l' - l|^2.

    `at` gives a residual r and its derivative J in the weights.
    """
    r, J = at(weights)
    damping = 1e-3 * float(J.square().sum()) + 1e-300
    for _ in range(TURNS):
        new = nearest_combination(J, r - J @ weights, weights, damping)
        r_new, J_new = at(new)
        if float(r_new.norm()) < float(r.norm()) * (1 - 1e-12):
            done = float(r.norm()) - float(r_new.norm()) <= 1e-10 * float(r.norm())
            weights, r, J, damping = new, r_new, J_new, damping / 5
            if done:
                break
        else:
            damping *= 10
            if damping > 1e12 * float(J.square().sum()):
                break
    return float(r.norm()), weights


def nearest_combination(J: Tensor, offset: Tensor, start: Tensor | None = None, damping: float = 0.0) -> Tensor:
    """argmin over l in the simplex of |J l + offset|^2 + damping |l - start|^2.

    The weights add up to 1, so this is the point of least norm in the hull of the columns (J_i + offset) stacked on
    sqrt(damping) (e_i - start), found from their Gram matrix.
    """
    columns = (J + offset[:, None]).double().numpy()
    gram = columns.T @ columns
    if start is not None and damping > 0:
        s = start.double().numpy()
        gram = gram + damping * (np.eye(len(s)) - s[:, None] - s[None] + s @ s)
    return torch.from_numpy(least_norm_weights(gram)).to(J)


def least_norm_weights(gram: np.ndarray) -> np.ndarray:
    """The weights of the point of least norm in a hull, from the Gram matrix of its corners (Wolfe 1976)."""
    scale = float(np.diag(gram).max())
    chosen = [int(np.diag(gram).argmin())]
    weights = np.ones(1)
    for _ in range(10 * len(gram)):
        products = gram[:, chosen] @ weights
        entering = int(products.argmin())
        if entering in chosen or products[entering] >= weights @ products[chosen] - 1e-15 * scale:
            break
        chosen, weights = [*chosen, entering], np.append(weights, 0.0)
        while True:
            affine = _least_norm_in_the_span(gram[np.ix_(chosen, chosen)])
            leaving = affine <= 1e-14
            if not leaving.any():
                weights = affine
                break
            ratio = weights[leaving] / np.maximum(weights[leaving] - affine[leaving], 1e-300)
            weights = weights + min(1.0, float(ratio.min())) * (affine - weights)
            kept = weights > 1e-14
            chosen, weights = [i for i, keep in zip(chosen, kept, strict=True) if keep], weights[kept]
            weights = weights / weights.sum()
    answer = np.zeros(len(gram))
    answer[chosen] = weights
    return answer


def _least_norm_in_the_span(gram: np.ndarray) -> np.ndarray:
    """argmin of v' M v over sum v = 1, signs free: M^{-1} 1, normalised; a ridge of rounding size for equal corners."""
    ridge = 4e-16 * len(gram) * float(np.diag(gram).max()) + 1e-300
    v = np.linalg.solve(gram + ridge * np.eye(len(gram)), np.ones(len(gram)))
    return v / v.sum()

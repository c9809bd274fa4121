"""
Ten sets in the plane
=====================

Every set of the library has a projection and the derivative of the projection. This example shows ten sets in two
dimensions: the set (filled), points and their projections (arrows), and the kinks of the projection (red), where the
derivative jumps from one face to another.

Between the kinks the projection of a polyhedral set is affine: its Jacobian is the projector onto the directions of a
face. The Jacobian of a curved set shortens some directions instead.
"""

# %%
# The sets.
import matplotlib.pyplot as plt
import numpy as np
import torch

from bilevel import sets

torch.set_default_dtype(torch.float64)
hexagon = torch.tensor([[1.0, 0.0], [0.5, 0.9], [-0.5, 0.9], [-1.0, 0.0], [-0.5, -0.9], [0.5, -0.9]])
lens = sets.Intersection(sets.L2Ball(1.3, torch.tensor([-0.6, 0.0])), sets.L2Ball(1.3, torch.tensor([0.6, 0.0])))

catalogue = {
    "L1Ball": sets.L1Ball(1.0),
    "L2Ball": sets.L2Ball(1.0),
    "Box": sets.Box(torch.tensor([-1.0, -0.6]), torch.tensor([1.0, 0.6])),
    "Simplex": sets.Simplex(1.2),
    "HalfSpace": sets.HalfSpace(torch.tensor([0.6, 0.8]), 0.3),
    "SecondOrderCone": sets.SecondOrderCone(),
    "MonotoneCone": sets.MonotoneCone(),
    "Polyhedron": sets.Polyhedron(hexagon, torch.tensor([1.0, 1.0, 0.8, 1.1, 0.7, 0.9])),
    "Permutahedron": sets.Permutahedron(torch.tensor([1.0, -0.4])),
    "Intersection": lens,
}

# %%
# A kink is where the Jacobian jumps. On a fine grid we compare the product H v at neighbouring points: a jump that does
# not shrink with the grid marks a kink. This uses nothing but ``jacobian(z).apply(v)``.


def grid(count, reach=2.2):
    line = torch.linspace(-reach, reach, count)
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)


def kinks(constraint, points):
    """Mask of the grid points next to a jump of H."""
    face = constraint.jacobian(points)
    columns = [face.apply(torch.tensor(v).expand_as(points)) for v in ([1.0, 0.0], [0.0, 1.0])]
    H = torch.cat(columns, -1)
    jump = torch.zeros(points.shape[:2], dtype=torch.bool)
    jump[1:] |= (H[1:] - H[:-1]).abs().amax(-1) > 0.1
    jump[:, 1:] |= (H[:, 1:] - H[:, :-1]).abs().amax(-1) > 0.1
    return jump


# %%
# The picture. The boundary of a set with an interior is a kink as well: inside, H is the identity.
ink, fill, accent = "#1b3a57", "#9ec5e8", "#d1495b"
points = grid(241)
extent = (-2.2, 2.2, -2.2, 2.2)
angles = torch.arange(12) * (2 * torch.pi / 12) + 0.13
start = 1.85 * torch.stack([angles.cos(), angles.sin()], -1)

figure, axes = plt.subplots(2, 5, figsize=(12, 5.2), layout="constrained")
for ax, (name, constraint) in zip(axes.flat, catalogue.items(), strict=True):
    distance = constraint.distance(points)
    thin = bool(distance.min() > 0) or float((distance < 1e-9).double().mean()) < 0.01
    if thin:  # a segment: draw it by its own projections
        ends = constraint.project(torch.tensor([[9.0, -9.0], [-9.0, 9.0]]))
        ax.plot(*ends.T, color="#5b9bd5", linewidth=4, solid_capstyle="round", zorder=2)
    else:
        ax.contourf(distance, levels=[-1, 1e-9], colors=[fill], extent=extent)
    jumps = kinks(constraint, points).numpy()
    ax.contourf(np.where(jumps, 1.0, 0.0), levels=[0.5, 1.5], colors=[accent], extent=extent, zorder=2)
    nearest = constraint.project(start)
    ax.quiver(*start.T, *(nearest - start).T, angles="xy", scale_units="xy", scale=1, width=0.006, color=ink, zorder=3)
    ax.scatter(*start.T, s=14, facecolor="white", edgecolor=ink, linewidth=0.9, zorder=4)
    ax.scatter(*nearest.T, s=16, color=ink, zorder=4)
    ax.set(title=name, xlim=(-2.2, 2.2), ylim=(-2.2, 2.2), aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    ax.tick_params(labelsize=8, length=2, color="0.6", labelcolor="0.4")
    for spine in ax.spines.values():
        spine.set_color("0.8")
plt.show()

# %%
# For one of these points: its projection, the face, and the distance to the nearest kink.
z = torch.tensor([1.5, 0.2])
face = catalogue["L1Ball"].jacobian(z)
print("nearest point ", catalogue["L1Ball"].project(z).tolist())
print("face dimension", int(face.dimension), "- projector:", face.is_projector)
print("distance to the nearest kink", float(catalogue["L1Ball"].margin(z)))

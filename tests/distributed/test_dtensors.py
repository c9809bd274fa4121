"""DTensors are taken as their placements say, or refused with the placement."""

import pytest
import torch
from tests.distributed.ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from bilevel import sets
from bilevel.distributed import sharded
from bilevel.distributed.mesh import ranks_of
from bilevel.errors import BilevelError

pytestmark = pytest.mark.slow  # each starts several processes

SETS = (
    sets.L1Ball(1.0),
    sets.Simplex(1.0),
    sets.L2Ball(0.7),
    sets.Box(-0.1, 0.2),
    sets.FreeSpace(),
    sets.ProductSet([sets.L1Ball(1.0), sets.NonNegative()], sizes=[3, 4]),
)


def differences(mesh, z, v, placements):
    """What a set says of a DTensor otherwise than of the whole tensor."""
    wrong = []
    far, along = (distribute_tensor(t, mesh, placements) for t in (z, v))
    for Y in SETS:
        S = sharded(Y)
        face, p = S.jacobian(far), S.project(far)
        pairs = {
            "P(z)": (p, Y.project(z)),
            "H v": (face.apply(along), Y.jacobian(z).apply(v)),
            "margin": (S.margin(far), Y.margin(z)),
            "distance": (S.distance(far), Y.distance(z)),
        }
        for key, (found, expected) in pairs.items():
            if not torch.allclose(found.full_tensor(), expected, rtol=0, atol=1e-12):
                wrong.append(f"{Y} {placements}, {key}: {found.full_tensor()} instead of {expected}")
        if p.placements != far.placements or face.apply(along).placements != far.placements:
            wrong.append(f"{Y}: placements {p.placements} instead of {far.placements}")
        if bool(S.contains(far)) != bool(Y.contains(z)) or not S.contains(p):
            wrong.append(f"{Y} {placements}: {S.contains(far)}, {S.contains(p)}")
        point = far.detach().clone().requires_grad_()
        slope = torch.autograd.grad((S.project(point) * along).sum().full_tensor(), point)[0]
        if slope.placements != far.placements or not torch.allclose(
            slope.full_tensor(), Y.jacobian(z).apply(v), rtol=0, atol=1e-12
        ):
            wrong.append(f"{Y} {placements}, gradient: {slope} instead of {Y.jacobian(z).apply(v)}")
    for kind in (sets.L1Ball, sets.Simplex, sets.L2Ball):
        radius = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        Y = kind(radius)
        (expected,) = torch.autograd.grad((Y.project(z) * v).sum(), radius)
        (slope,) = torch.autograd.grad((sharded(Y).project(far) * along).sum().full_tensor(), radius)
        found = sharded(kind(radius.detach())).jacobian(far).parameter_vjp(along)["radius"]
        for key, value in {"autograd": slope, "parameter_vjp": found}.items():
            if not torch.allclose(value, expected, rtol=0, atol=1e-12):
                wrong.append(f"{Y} {placements}, {key} of the radius: {value} instead of {expected}")
    return wrong


def placed(ranks):
    mesh = init_device_mesh("cpu", (ranks.size,))
    generator = torch.Generator().manual_seed(0)
    wrong = []
    for shape in ((7,), (2, 7), (4, 7)):
        z, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        layouts = [[Shard(len(shape) - 1)], [Shard(-1)], [Replicate()]]
        for placements in layouts if len(shape) == 1 else [*layouts, [Shard(0)]]:
            wrong += differences(mesh, z, v, placements)
    return wrong


def test_every_placement_gives_the_plain_answers():
    """Over 3 ranks the 7 entries are cut into 3, 3 and 1, and 2 rows leave one rank without any."""
    assert on_ranks(placed, 3) == [[], [], []]


def refused(ranks):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
    z = torch.randn(8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    Y = sharded(sets.L1Ball(1.0))
    told = []
    crossed = distribute_tensor(z, mesh, [Replicate(), Shard(0)])
    bounds = distribute_tensor(torch.linspace(0, 0.1, 8, dtype=torch.float64), mesh, [Replicate(), Shard(0)])
    boxed = sharded(sets.Box(-1.0, bounds)).project(crossed).full_tensor()
    told.append(bool(torch.equal(boxed, sets.Box(-1.0, bounds.full_tensor()).project(z))))
    before = ranks_of(mesh.get_group("parts")).rounds
    told.append(bool(torch.allclose(Y.project(crossed).full_tensor(), sets.L1Ball(1.0).project(z), atol=1e-12)))
    told.append(ranks_of(mesh.get_group("parts")).rounds > before and Y.ranks.rounds == 0)
    for point, constraint in (
        (distribute_tensor(z, mesh, [Shard(0), Shard(0)]), sets.L1Ball(1.0)),
        (DTensor.from_local(z, mesh, [Partial(), Replicate()]), sets.L1Ball(1.0)),
        (crossed, sets.Box(-1.0, torch.ones(8, dtype=torch.float64))),
    ):
        try:
            sharded(constraint).project(point)
        except BilevelError as error:
            told.append(str(error))
    try:
        Y.jacobian(crossed).apply(distribute_tensor(z, mesh, [Replicate(), Replicate()]))
    except BilevelError as error:
        told.append(str(error))
    return told


def test_two_dimensional_meshes_are_right_or_refused_by_placement():
    for found in on_ranks(refused, 4):
        assert found[:3] == [True, True, True]
        twice, partial, bounds, other = found[3:]
        assert "divided over 2 dimensions of its mesh, placements (Shard(dim=0), Shard(dim=0))" in twice
        assert "cannot take a DTensor with placement Partial" in partial
        assert "redistribute it first" in partial
        assert "upper is a tensor of shape (8,), and the point a DTensor with placements" in bounds
        assert "v has placements (Replicate(), Replicate()), and the point (Replicate(), Shard(dim=0))" in other

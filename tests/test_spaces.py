"""Vectors that are divided among ranks: the numbers of one process, the same bits on every rank."""

import pytest
import torch
from tests.ranks import on_ranks

from bilevel.errors import IncompatibleError
from bilevel.spaces import Space


def vectors():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64)
    radius = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    return [{"rows": rows[i], "radius": radius[i]} for i in range(2)]


def numbers(space, a, b):
    stack = {name: torch.stack([a[name], b[name]]) for name in a}
    squares = space.mean_square(a)
    means = {name: float(square.sum()) for name, square in squares.items()}
    finite = space.is_finite(a), space.is_finite({**a, "rows": a["rows"] / (space.ranks.rank - space.ranks.size + 1)})
    return {
        "dot": [float(space.dot(a, b)), float(space.norm(a)), *space.dots(stack, b).tolist()],
        "mean_square": means["rows"] if squares["rows"].ndim == 0 else None,
        "of what is whole": means["radius"],
        "size": space.size(a),
        "finite": finite,
    }


def on_each_rank(ranks):
    a, b = ({**v, "rows": ranks.part(v["rows"])} for v in vectors())
    space = Space(ranks=ranks, divided=("rows",))
    found = numbers(space, a, b)
    per_row = Space({"rows": 1, "radius": 1}, ranks, ("rows",)).mean_square(a)
    assert per_row["rows"].equal(a["rows"].square().mean(-1, keepdim=True))  # each row is a factor of its own
    drawn = space.sphere(a, torch.Generator().manual_seed(0), count=2)
    lengths = [float(space.norm({name: u[i] for name, u in drawn.items()})) for i in range(2)]
    inside = space.ball(a, torch.Generator().manual_seed(0))
    try:
        space.ravel(a)
    except IncompatibleError as error:
        message = str(error)
    return found, lengths, float(space.norm(inside)), drawn["radius"].tolist(), drawn["rows"][0, 0].tolist(), message


def test_divided_vectors():
    wanted = numbers(Space(), *vectors())
    found = on_ranks(on_each_rank, 2)
    for numbers_, lengths, inside, _, _, message in found:
        for name in ("dot", "mean_square", "of what is whole"):
            assert numbers_[name] == pytest.approx(wanted[name], rel=1e-14)
        assert numbers_["size"] == wanted["size"] == 25
        assert numbers_["finite"] == [True, False]
        assert lengths == pytest.approx([1, 1], rel=1e-14)
        assert inside < 1
        assert "divided among 2 ranks: use it in one process" in message
    assert found[0][0] == found[1][0]  # the same bits
    assert found[0][3] == found[1][3]  # one draw of what is whole
    assert found[0][4] != found[1][4]


def test_a_tensor_and_a_dictionary_of_one_tensor_agree():
    a, b = vectors()
    one, many = Space(1), Space({"rows": 1})
    u, v = a["rows"], b["rows"]
    for name, arguments in {"add": (0.3,), "lerp": (0.3,), "dot": ()}.items():
        single = getattr(one, name)(u, v, *arguments)
        several = getattr(many, name)({"rows": u}, {"rows": v}, *arguments)
        assert torch.equal(single, several["rows"] if isinstance(several, dict) else several)
    assert torch.equal(one.scaled(u, 2.0), many.scaled({"rows": u}, 2.0)["rows"])
    assert torch.equal(one.mean_square(u), many.mean_square({"rows": u})["rows"])


def test_entries_of_dictionaries_are_paired_by_name():
    a = {"u": torch.tensor([1.0, 2.0]), "v": torch.tensor([3.0, 4.0])}
    b = {"v": torch.tensor([30.0, 40.0]), "u": torch.tensor([10.0, 20.0])}
    assert float(Space().dot(a, b)) == 10 + 40 + 90 + 160
    stack = {name: entry[None] for name, entry in b.items()}
    assert Space().dots(stack, a).tolist() == [300.0]


def test_only_float32_takes_a_second_pass_for_a_norm():
    """The norm of 0, often taken, needs one product in float64; tiny entries of float32 keep theirs."""
    assert float(Space().norm(torch.full((4,), 1e-30))) == pytest.approx(2e-30)
    with torch.profiler.profile() as seen:
        Space().norm(torch.zeros(4, dtype=torch.float64))
    assert sum(event.count for event in seen.key_averages() if event.key == "aten::dot") == 1

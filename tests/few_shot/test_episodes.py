"""Episodes: what a task holds, that every image has its chance, and that the generator decides everything."""

import numpy as np
import pytest
import torch

from bilevel.errors import InvalidInputError, InvalidTypeError, NonFiniteError
from bilevel.few_shot import Episodes, generated_images
from bilevel.few_shot.episodes import shifted_and_mirrored


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def numbered(classes, per_class):
    """Every pixel of image i of class c is c * per_class + i."""
    return torch.arange(classes * per_class, dtype=torch.float64).reshape(classes, per_class, 1, 1, 1)


def test_a_task_has_different_classes_and_no_image_twice():
    tasks = Episodes(numbered(7, 9), 3, 2, 4, dtype=torch.float64).sample(200, generator())
    assert tasks.support.shape == (200, 6, 1, 1, 1)
    assert tasks.query.shape == (200, 12, 1, 1, 1)
    assert len(tasks) == 200
    for part, labels in ((tasks.support, tasks.support_labels), (tasks.query, tasks.query_labels)):
        classes = part.flatten(1).long() // 9
        same = classes[:, :, None] == classes[:, None, :]
        assert (same == (labels[:, :, None] == labels[:, None, :])).all()  # one label per class and reverse
    both = torch.cat([tasks.support, tasks.query], 1).flatten(1)
    assert all(len(row.unique()) == 18 for row in both)
    first = tasks.support.flatten(1).long()[:, ::2] // 9
    assert (first == tasks.query.flatten(1).long()[:, ::4] // 9).all()  # label k is the same class in both


def test_every_class_and_image_has_the_same_chance():
    tasks = Episodes(numbered(6, 5), 3, 1, 1).sample(4000, generator())
    for part in (tasks.support, tasks.query):
        shares = part.flatten().long().bincount(minlength=30) / 4000
        expected = 3 / 6 / 5
        assert (shares - expected).abs().max() < 5 * (expected / 4000) ** 0.5
    position = tasks.support[:, 0].flatten().long() // 5
    assert (position.bincount(minlength=6) / 4000 - 1 / 6).abs().max() < 5 * (1 / 6 / 4000) ** 0.5


def test_the_generator_decides():
    episodes = Episodes(generated_images(6, 6), 3, 2, 2, rotations=True, augment=True)
    one = episodes.sample(3, generator(1))
    torch.manual_seed(5)  # which is not the generator
    same, other = (episodes.sample(3, generator(seed)) for seed in (1, 2))
    assert torch.equal(one.support, same.support)
    assert torch.equal(one.query, same.query)
    assert not torch.equal(one.support, other.support)


def test_pixels_become_floats():
    images = torch.full((2, 2, 1, 4, 4), 255, dtype=torch.uint8)
    assert (Episodes(images, 2, 1, 1).sample(1, generator()).support == 1).all()
    tasks = Episodes(images.numpy(), 2, 1, 1, dtype=torch.float64).sample(1, generator())
    assert tasks.query.dtype == torch.float64
    assert (Episodes(images.float(), 2, 1, 1).sample(1, generator()).query == 255).all()


def test_rotated_classes():
    images = torch.rand(2, 3, 1, 5, 5)
    episodes = Episodes(images, 8, 1, 2, rotations=True)  # all eight classes in each task
    tasks = episodes.sample(20, generator())
    assert episodes.classes == 8
    known = torch.stack([image.rot90(k, (-2, -1)) for k in range(4) for c in images for image in c])
    for support, query in zip(tasks.support, tasks.query.reshape(20, 8, 2, 1, 5, 5), strict=True):
        found = [(known == image).flatten(1).all(1).nonzero().item() // 3 for image in support]
        assert sorted(found) == list(range(8))
        for kind, others in zip(found, query, strict=True):
            assert all((known == image).flatten(1).all(1).nonzero().item() // 3 == kind for image in others)


def test_augmented_images_are_crops_and_mirror_images():
    images = torch.rand(300, 2, 6, 7)
    changed = shifted_and_mirrored(images, generator())
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    crops = [padded[:, :, i : i + 6, j : j + 7] for i in range(9) for j in range(9)]
    possible = torch.stack([*crops, *(crop.flip(-1) for crop in crops)])
    hits = (possible == changed).flatten(2).all(2)
    assert hits.any(0).all()
    used = hits.float().argmax(0)
    assert len(used.unique()) > 100
    assert 0.35 < (used >= 81).float().mean() < 0.65


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ways": 6}, InvalidInputError, "ways must be at most the 5 classes of images, got 6"),
        ({"ways": 1}, InvalidInputError, "ways must be at least 2, got 1"),
        ({"shots": 3, "queries": 2}, InvalidInputError, r"at most the 4 images of a class, got 3 \+ 2"),
        ({"shots": 0}, InvalidInputError, "shots must be an integer of at least 1, got 0"),
        ({"queries": 1.5}, InvalidInputError, "queries must be an integer of at least 1, got 1.5"),
        ({"images": torch.zeros(5, 4, 28, 28)}, InvalidInputError, r"got \(5, 4, 28, 28\)"),
        (
            {"images": torch.zeros(5, 4, 1, 4, 4, dtype=torch.int64)},
            InvalidTypeError,
            "uint8 or floats, got torch.int64",
        ),
        (
            {"images": [torch.zeros(4, 1, 4, 4), torch.zeros(3, 1, 4, 4)]},
            InvalidTypeError,
            "as many images of each class",
        ),
        ({"images": torch.zeros(5, 4, 1, 4, 6), "rotations": True}, InvalidInputError, "square images, got 4 x 6"),
    ],
)
def test_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        Episodes(**{"images": torch.zeros(5, 4, 1, 4, 4), "ways": 3, "shots": 1, "queries": 1, **arguments})


def test_pixels_that_are_not_finite():
    images = torch.zeros(5, 4, 1, 4, 4)
    images[3, 1, 0, 2, 2] = np.nan
    with pytest.raises(NonFiniteError, match="1 classes, first class 3"):
        Episodes(images, 2, 1, 1)


def test_no_tasks_asked_for():
    with pytest.raises(InvalidInputError, match="count must be an integer of at least 1, got 0"):
        Episodes(torch.zeros(5, 4, 1, 4, 4), 2, 1, 1).sample(0, generator())


def test_generated_images_are_classes():
    """Images of a class are nearer to each other than to other classes, not equal, and the seed decides."""
    images = generated_images(8, 6, size=20, seed=3)
    assert images.dtype == torch.uint8
    assert torch.equal(images, generated_images(8, 6, size=20, seed=3))
    assert not torch.equal(images, generated_images(8, 6, size=20, seed=4))
    flat = images.flatten(2).double() / 255
    assert len(flat.flatten(0, 1).unique(dim=0)) == 48
    within = torch.cdist(flat, flat).sum() / (8 * 6 * 5)
    between = torch.cdist(flat.mean(1), flat.mean(1)).sum() / (8 * 7)
    noise = torch.cdist(flat.flatten(0, 1), flat.flatten(0, 1)).sum() / (48 * 47)
    assert within < 0.9 * noise
    assert between > 0.2 * noise

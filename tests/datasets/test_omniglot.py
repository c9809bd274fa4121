"""Omniglot: pictures become means over areas, whatever form the files have; hostile archives are refused."""

import io
import os
import warnings
import zipfile

import numpy as np
import pytest
from PIL import Image
from tests.documents import edit

from bilevel.datasets import ImageClasses, omniglot, omniglot_split
from bilevel.errors import CorruptFileError, InvalidInputError, MissingFileError

COUNTS = {"images_background": 3, "images_evaluation": 2}


def png(ink):
    buffer = io.BytesIO()
    Image.fromarray(~ink).save(buffer, "PNG")
    return buffer.getvalue()


def drawings(part, count):
    rng = np.random.default_rng(count)
    for character in range(count):
        for drawing in range(20):
            name = f"{part}/Alphabet_{character % 2}/character{character:02}/{character:04}_{drawing:02}.png"
            yield name, rng.random((105, 105)) < 0.2


def write_zip(path, members):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # names that occur twice
        for name, content in members:
            archive.writestr(name, content)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "omniglot").mkdir()
    for part, count in COUNTS.items():
        members = [(name, png(ink)) for name, ink in drawings(part, count)]
        write_zip(tmp_path / "omniglot" / f"{part}.zip", [(f"{part}/", b""), ("__MACOSX/x", b"?"), *members[::-1]])
    return tmp_path


def read(folder):
    return omniglot.read(folder, COUNTS)


def area_means(ink):
    """Each pixel split into 28 x 28 small ones, and 105 x 105 of these put together again."""
    fine = ink.repeat(28, 0).repeat(28, 1)
    return fine.reshape(28, 105, 28, 105).mean((1, 3))


def test_pictures_are_means_over_areas_with_ink_one(folder):
    data = read(folder)
    assert data.images.shape == (5, 20, 1, 28, 28)
    expected = {name: ink for part, count in COUNTS.items() for name, ink in drawings(part, count)}
    for character, images in zip(data.class_names, data.images, strict=True):
        names = sorted(name for name in expected if name.startswith(character + "/"))
        for name, image in list(zip(names, images, strict=True))[::7]:
            assert np.abs(image[0] / 255 - area_means(expected[name])).max() <= 0.5 / 255 + 1e-6
    assert data.class_names[0] == "images_background/Alphabet_0/character00"
    assert list(data.class_names[:3]) == sorted(data.class_names[:3])


def test_unpacked_folders_give_the_same(folder):
    before = read(folder)
    for part in COUNTS:
        file = folder / "omniglot" / f"{part}.zip"
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder / "omniglot")
        file.unlink()
    after = read(folder)
    np.testing.assert_array_equal(after.images, before.images)
    assert after.class_names == before.class_names
    assert set(after.sha256) == {f"omniglot/{part}" for part in COUNTS}
    next((folder / "omniglot" / "images_background").glob("*/*/*.png")).write_bytes(png(np.zeros((105, 105), bool)))
    assert read(folder).sha256["omniglot/images_background"] != after.sha256["omniglot/images_background"]


def test_decoded_pictures_are_kept_and_never_for_other_files(folder):
    before = read(folder)
    (kept,) = (folder / "omniglot").glob("decoded-*.safetensors")
    np.testing.assert_array_equal(read(folder).images, before.images)
    kept.write_bytes(kept.read_bytes()[:-100])  # damaged: decoded again
    np.testing.assert_array_equal(read(folder).images, before.images)
    name = "images_evaluation"
    write_zip(folder / "omniglot" / f"{name}.zip",
              [(member, png(~ink)) for member, ink in drawings(name, COUNTS[name])])  # fmt: skip
    changed = read(folder)
    assert (changed.images[3:].astype(int) + before.images[3:] >= 254).all()
    np.testing.assert_array_equal(changed.images[:3], before.images[:3])


@pytest.mark.parametrize("by", ["mode", "folder", "owner"])
def test_decoded_pictures_that_others_may_have_written_are_decoded_again(folder, by):
    """A forged file has the right name and a checksum that fits: only who may write it tells."""
    before = read(folder)
    (kept,) = (folder / "omniglot").glob("decoded-*.safetensors")
    assert kept.stat().st_mode & 0o777 == 0o600
    edit(kept, lambda document, tensors: tensors.update(images=255 - tensors["images"]))
    if by == "mode":
        kept.chmod(0o666)
    elif by == "folder":
        kept.chmod(0o600)
        kept.parent.chmod(0o777)
    elif os.getuid() == 0:
        os.chown(kept, 65534, 65534)
    else:
        pytest.skip("only root may give a file to somebody else")
    np.testing.assert_array_equal(read(folder).images, before.images)


def good(part="images_background"):
    return [(name, png(ink)) for name, ink in drawings(part, COUNTS[part])]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([*good(), ("../exploded.png", b"")], "'../exploded.png', which is no drawing"),
        ([*good(), ("images_background/../character00/0000_00.png/x", b"")], "which is no drawing"),
        ([*good(), ("/etc/passwd", b"")], "which is no drawing"),
        (good("images_evaluation"), "which is no drawing of images_background"),
        (good()[20:], "2 characters instead of 3"),
        (good()[1:], "19 different drawings of images_background/Alphabet_0/character00 instead of 20"),
        ([*good(), good()[0]], "20 different drawings|twice"),
        ([(good()[0][0], bytes(50_000_000)), *good()[1:]], "more than the 50,000 bytes"),
        ([(good()[0][0], b"no picture"), *good()[1:]], "no PNG picture"),
        ([(good()[0][0], good()[0][1][:90]), *good()[1:]], "no PNG picture"),
        ([(good()[0][0], png(np.zeros((105, 104), bool))), *good()[1:]], "104 x 105 pixels instead of 105 x 105"),
        ([(good()[0][0], png(np.zeros((9000, 9000), bool))), *good()[1:]], "9000 x 9000|more than"),
    ],
    ids=["dots", "hidden dots", "absolute", "other part", "characters", "drawings", "twice", "bomb", "text",
         "truncated picture", "size", "large picture"],
)  # fmt: skip
def test_hostile_archives_are_named(folder, members, reason, monkeypatch):
    monkeypatch.chdir(folder)
    file = folder / "omniglot" / "images_background.zip"
    write_zip(file, members)
    with pytest.raises(CorruptFileError, match=rf"images_background.zip.*: the file .*({reason})"):
        read(folder)
    assert {path.name for path in folder.iterdir()} == {"omniglot"}


def test_truncated_archive(folder):
    file = folder / "omniglot" / "images_background.zip"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(CorruptFileError, match="images_background.zip: the file cannot be unpacked"):
        read(folder)
    file.unlink()
    with pytest.raises(MissingFileError, match="also accepted: omniglot/images_background"):
        read(folder)


@pytest.fixture(scope="module")
def all_characters():
    names = [f"images_background/a/character{i}" for i in range(964)]
    names += [f"images_evaluation/b/character{i}" for i in range(659)]
    return ImageClasses("omniglot", np.arange(1623).reshape(1623, 1, 1, 1, 1), tuple(names), sha256={})


def chosen(data, split, **options):
    return omniglot_split(data, split, **options).images.ravel().tolist()


def test_splits_are_disjoint_and_complete(all_characters):
    train, test = chosen(all_characters, "train"), chosen(all_characters, "test")
    assert (len(train), len(test)) == (1200, 423)
    assert sorted(train + test) == list(range(1623))
    fewer, aside = (chosen(all_characters, split, validation=100) for split in ("train", "validation"))
    assert fewer + aside == train
    assert len(aside) == 100
    assert chosen(all_characters, "background") == list(range(964))
    assert chosen(all_characters, "evaluation") == list(range(964, 1623))
    assert chosen(all_characters, "test", seed=1) != test
    share = np.mean(np.array(test) < 964)
    assert abs(share - 964 / 1623) < 4 * (0.25 / 423) ** 0.5  # both files take part in both


def test_splits_have_names(all_characters):
    split = omniglot_split(all_characters, "test")
    assert split.class_names == tuple(all_characters.class_names[i] for i in split.images.ravel())
    with pytest.raises(InvalidInputError, match="split must be one of train, .* got 'tests'"):
        omniglot_split(all_characters, "tests")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="pass validation=100"):
        omniglot_split(all_characters, "validation")
    with pytest.raises(InvalidInputError, match="got 1200"):
        omniglot_split(all_characters, "train", validation=1200)

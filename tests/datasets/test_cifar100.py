"""CIFAR-100 in its binary form, and FC100 made from it."""

import gzip
import io
import tarfile

import numpy as np
import pytest

from bilevel.datasets import cifar100, fc100_split
from bilevel.errors import CorruptFileError, InvalidInputError

SUPERCLASS = np.random.default_rng(1).permutation(np.arange(100) % 20)
EACH = {"train.bin": 2, "test.bin": 1}


def contents():
    """Two training images and one test image of each class, in random order."""
    rng = np.random.default_rng(0)
    files = {}
    for name, each in EACH.items():
        fine = rng.permutation(np.arange(100).repeat(each))
        pixels = rng.integers(0, 256, (100 * each, 3072))
        files[name] = np.hstack([SUPERCLASS[fine, None], fine[:, None], pixels]).astype(np.uint8).tobytes()
    files["fine_label_names.txt"] = "".join(f"class_{i}\n" for i in range(100)).encode()
    return files


def archive(files, folder="cifar-100-binary", kind=tarfile.REGTYPE):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.type = len(content), kind
            member.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def read(folder):
    return cifar100.read(folder, train=2, test=1)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "cifar-100").mkdir()
    (tmp_path / "cifar-100" / "cifar-100-binary.tar.gz").write_bytes(archive(contents()))
    return tmp_path


def test_archive_and_folders_give_the_same(folder):
    data = read(folder)
    records = np.frombuffer(contents()["train.bin"], np.uint8).reshape(200, 3074)
    np.testing.assert_array_equal(data.y, records[:, 1])
    np.testing.assert_array_equal(data.X[7, 2, 5, 6], records[7, 2 + 2 * 1024 + 5 * 32 + 6])
    np.testing.assert_array_equal(data.superclass, SUPERCLASS)
    for place in ("cifar-100/cifar-100-binary", "cifar-100-binary"):
        (folder / "cifar-100" / "cifar-100-binary.tar.gz").unlink(missing_ok=True)
        (folder / place).mkdir()
        for name, content in contents().items():
            (folder / place / name).write_bytes(content)
        other = read(folder)
        np.testing.assert_array_equal(other.X, data.X)
        np.testing.assert_array_equal(other.test_y, data.test_y)
        assert set(other.sha256) == {f"{place}/{name}" for name in contents()}
        for file in (folder / place).iterdir():
            file.unlink()
        (folder / place).rmdir()


def test_fc100_pools_the_images_and_parts_the_superclasses(folder):
    data = read(folder)
    parts = {split: fc100_split(data, split) for split in ("train", "validation", "test")}
    assert {split: part.images.shape for split, part in parts.items()} == {
        "train": (60, 3, 3, 32, 32), "validation": (20, 3, 3, 32, 32), "test": (20, 3, 3, 32, 32),
    }  # fmt: skip
    classes = {split: [int(name.split("_")[1]) for name in part.class_names] for split, part in parts.items()}
    assert sorted(i for part in classes.values() for i in part) == list(range(100))
    assert set(SUPERCLASS[classes["test"]]) == {0, 7, 12, 14}
    assert set(SUPERCLASS[classes["validation"]]) == {8, 11, 13, 16}
    for split, part in parts.items():
        for fine, images in zip(classes[split], part.images, strict=True):
            expected = np.concatenate([data.X[data.y == fine], data.test_X[data.test_y == fine]])
            np.testing.assert_array_equal(images, expected)
    with pytest.raises(InvalidInputError, match="got 'val'"):
        fc100_split(data, "val")  # type: ignore[arg-type]


def changed(name, change):
    files = contents()
    files[name] = change(files[name])
    return files


def with_byte(place, value):
    return lambda content: content[:place] + bytes([value]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (archive(changed("train.bin", lambda content: content[:-1])), "614,799 bytes instead of 614,800"),
        (archive(changed("train.bin", lambda content: content + b"0")), "more than 614,800"),
        (archive(changed("train.bin", with_byte(1, 100))), "images of each class"),
        (archive(changed("train.bin", with_byte(0, 20))), "superclasses"),
        (archive(changed("test.bin", lambda content: content[3074:] + content[-3074:])), "images of each class"),
        (archive(changed("fine_label_names.txt", lambda content: content[:50])), "names instead of 100"),
        (archive({"train.bin": contents()["train.bin"]}), "no one file cifar-100-binary/test.bin"),
        (archive(contents(), "../cifar-100-binary"), "no one file cifar-100-binary/train.bin"),
        (archive(contents(), kind=tarfile.SYMTYPE), "no one file cifar-100-binary/train.bin|cannot be unpacked"),
        (archive(contents())[:-500], "cannot be unpacked"),
        (gzip.compress(bytes(300_000_000), 1), "more than the"),
        (gzip.compress(b"text"), "cannot be unpacked"),
        (b"<html>", "cannot be unpacked"),
    ],
    ids=["short", "long", "class", "superclass", "counts", "names", "missing", "dots", "links", "truncated", "bomb",
         "no tar", "web page"],
)  # fmt: skip
def test_hostile_archives_are_named(folder, content, reason):
    (folder / "cifar-100" / "cifar-100-binary.tar.gz").write_bytes(content)
    with pytest.raises(CorruptFileError, match=rf"cifar-100-binary.tar.gz.*: the file .*({reason})"):
        read(folder)
    assert [path.name for path in folder.rglob("*")] == ["cifar-100", "cifar-100-binary.tar.gz"]

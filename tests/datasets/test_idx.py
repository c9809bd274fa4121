"""MNIST and Fashion-MNIST: what the files hold comes back, and what they must not hold is named."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from bilevel.datasets import idx
from bilevel.errors import CorruptFileError, MissingFileError

ROWS = {"train": 40, "t10k": 20}


def idx_bytes(entries):
    header = bytes([0, 0, 8, entries.ndim]) + b"".join(size.to_bytes(4, "big") for size in entries.shape)
    return header + entries.astype(np.uint8).tobytes()


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        name: value
        for prefix, rows in ROWS.items()
        for name, value in (
            (f"{prefix}-images-idx3-ubyte", rng.integers(0, 256, (rows, 28, 28))),
            (f"{prefix}-labels-idx1-ubyte", np.arange(rows) % 10),
        )
    }


@pytest.fixture
def folder(tmp_path, arrays):
    (tmp_path / "mnist").mkdir()
    for name, entries in arrays.items():
        (tmp_path / "mnist" / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(entries)))
    return tmp_path


def read(folder):
    return idx.read(folder, name="mnist", train=40, test=20)


def test_the_entries_come_back(folder, arrays):
    data = read(folder)
    for found, name in zip((data.X, data.y, data.test_X, data.test_y), arrays, strict=True):
        np.testing.assert_array_equal(found, arrays[name])
    file = folder / "mnist" / "train-images-idx3-ubyte.gz"
    assert data.sha256["mnist/train-images-idx3-ubyte.gz"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert len(data.sha256) == 4


def test_unpacked_files_are_used(folder, arrays):
    for file in (folder / "mnist").glob("*.gz"):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    np.testing.assert_array_equal(read(folder).test_X, arrays["t10k-images-idx3-ubyte"])


def test_a_missing_file_is_named_with_what_to_do(folder):
    (folder / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(MissingFileError, match="no mnist/t10k-labels-idx1-ubyte.gz .*`bilevel data fetch mnist`"):
        read(folder)


IMAGES = np.zeros((40, 28, 28))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(idx_bytes(IMAGES))[:-20], "cannot be unpacked"),
        (gzip.compress(idx_bytes(IMAGES)[:-20]), "cut off"),
        (gzip.compress(idx_bytes(IMAGES) + b"0"), "more than the 31,376 bytes"),
        (gzip.compress(bytes(10_000_000), 9), "more than the 31,376 bytes"),
        (gzip.compress(idx_bytes(np.zeros((20, 56, 28)))), "does not begin"),
        (gzip.compress(b"\0\0\x0d\x03" + idx_bytes(IMAGES)[4:]), "does not begin"),
        (b"<html>404</html>", "cannot be unpacked"),
        (b"", "does not begin|cannot be unpacked"),
    ],
    ids=["truncated gzip", "truncated", "too long", "bomb", "other shape", "floats", "web page", "empty"],
)
def test_wrong_files_are_named(folder, content, reason):
    file = folder / "mnist" / "train-images-idx3-ubyte.gz"
    file.write_bytes(content)
    with pytest.raises(CorruptFileError, match=rf"train-images-idx3-ubyte.gz: the file .*({reason}).*Delete it"):
        read(folder)


def test_labels_outside_their_range(folder):
    labels = np.arange(40) % 10
    labels[3] = 10
    (folder / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels)))
    with pytest.raises(CorruptFileError, match="labels 0 to 9"):
        read(folder)


def test_a_huge_file_is_not_read(folder):
    file = folder / "mnist" / "train-images-idx3-ubyte.gz"
    with file.open("wb") as opened:
        opened.truncate(10**12)  # sparse: no room is needed
    with pytest.raises(CorruptFileError, match="has 1,000,000,000,000 bytes, more than"):
        read(folder)


def test_a_file_without_end_is_not_read(folder):
    file = folder / "mnist" / "train-images-idx3-ubyte.gz"
    file.unlink()
    if not Path("/dev/zero").exists():
        pytest.skip("this system has no /dev/zero")
    file.symlink_to("/dev/zero")
    with pytest.raises(CorruptFileError, match="not a regular file"):
        read(folder)

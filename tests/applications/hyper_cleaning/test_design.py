"""The data matrix: every kind gives the products of the dense one, without copies of what is mapped."""

import numpy as np
import pytest
import scipy.sparse
import torch

import bilevel
from bilevel.applications.hyper_cleaning import CleaningProblem, Design, design
from bilevel.applications.hyper_cleaning.design import PickedDesign


def matrix(n=37, d=6, dtype=np.float64):
    values = np.random.default_rng(0).normal(size=(n, d))
    values[values < 0.3] = 0.0
    return values.astype(dtype)


def mapped(tmp_path, values, mode="r"):
    path = tmp_path / "rows.dat"
    values.tofile(path)
    return np.memmap(path, dtype=values.dtype, mode=mode, shape=values.shape)


def changed(array, values):
    array[:] = values
    return array


def picked(values, kind=lambda rows: rows):
    """The values, with other rows between them that are left out."""
    index = np.delete(np.arange(len(values) + 5), [0, 7, 8, 20, len(values) + 4])
    rows = np.full((len(values) + 5, values.shape[1]), 99.0, dtype=values.dtype)
    rows[index] = values
    return PickedDesign(Design.of(kind(rows)), torch.from_numpy(index))


KINDS = {
    "tensor": lambda values, tmp_path: torch.from_numpy(values),
    "array": lambda values, tmp_path: values,
    "columns first": lambda values, tmp_path: np.asfortranarray(values),
    "backwards": lambda values, tmp_path: values[::-1].copy()[::-1],
    "read only": lambda values, tmp_path: np.frombuffer(values.tobytes(), dtype=values.dtype).reshape(values.shape),
    "other byte order": lambda values, tmp_path: values.astype(values.dtype.newbyteorder()),
    "mapped": lambda values, tmp_path: mapped(tmp_path, values),
    "mapped, other byte order": lambda values, tmp_path: mapped(tmp_path, values.astype(values.dtype.newbyteorder())),
    "copied on write": lambda values, tmp_path: changed(mapped(tmp_path, np.zeros_like(values), "c"), values),
    "some rows": lambda values, tmp_path: picked(values),
    "some mapped rows": lambda values, tmp_path: picked(values, lambda rows: mapped(tmp_path, rows)),
    "CSR array": lambda values, tmp_path: scipy.sparse.csr_array(values),
    "CSC matrix": lambda values, tmp_path: scipy.sparse.csc_matrix(values),
}


@pytest.fixture(params=[1 << 23, 400], ids=["one block", "many blocks"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(design, "BLOCK_BYTES", request.param)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_dense_matrix(kind, dtype, tmp_path):
    values = matrix(dtype=dtype)
    A = Design.of(KINDS[kind](values, tmp_path))
    dense = torch.from_numpy(values)
    assert A.shape == dense.shape
    assert A.dtype == dense.dtype
    generator = torch.Generator().manual_seed(0)
    tol = {"atol": 1e-5 if dtype is np.float32 else 1e-12, "rtol": 0}
    for k in (1, 3):
        V = torch.randn(k, A.shape[1], generator=generator, dtype=A.dtype).T
        R = torch.randn(A.shape[0], k, generator=generator, dtype=A.dtype)
        assert torch.allclose(A.matmul(V), dense @ V, **tol)
        assert torch.allclose(A.rmatmul(R), dense.T @ R, **tol)
        parts = list(A.blocks())
        assert torch.equal(torch.cat([torch.arange(A.shape[0])[rows] for rows, _ in parts]), torch.arange(A.shape[0]))
        assert torch.allclose(torch.cat([block.matmul(V) for _, block in parts]), dense @ V, **tol)
        assert torch.allclose(sum(block.rmatmul(R[rows]) for rows, block in parts), dense.T @ R, **tol)
        index = torch.tensor([5, 0, 36, 5])
        assert torch.allclose(A.rows(index).matmul(V), dense[index] @ V, **tol)


@pytest.mark.parametrize("k", [1, 3])
def test_columns_that_a_sparse_vector_does_not_have_are_not_read(k):
    values = np.random.default_rng(0).normal(size=(50, 40))
    V = torch.zeros(40, k, dtype=torch.float64)
    V[3, 0], V[17] = 2.0, -1.0
    wanted = torch.from_numpy(values) @ V
    values[:, [0, 5, 39]] = np.nan
    A = Design.of(np.asfortranarray(values))
    with torch.no_grad():
        assert torch.allclose(A.matmul(V), wanted, atol=1e-14, rtol=0)
        assert torch.allclose(torch.cat([block.matmul(V) for _, block in A.blocks()]), wanted, atol=1e-14, rtol=0)
        assert A.matmul(torch.zeros_like(V)).abs().max() == 0
        assert A.matmul(torch.ones_like(V)).isnan().all()  # many: the whole matrix


def test_derivatives_in_a_sparse_vector_are_whole():
    values = np.asfortranarray(np.random.default_rng(0).normal(size=(50, 40)))
    V = torch.zeros(40, 1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(Design.of(values).matmul(V).sum(), V)
    assert torch.allclose(slope[:, 0], torch.from_numpy(values.sum(0)))


@pytest.mark.parametrize("kind", ["tensor", "array", "columns first", "read only", "mapped"])
def test_nothing_is_copied_that_torch_can_take_as_it_is(kind, tmp_path):
    X = KINDS[kind](matrix(), tmp_path)
    A = Design.of(X)
    address = X.data_ptr() if isinstance(X, torch.Tensor) else X.__array_interface__["data"][0]
    first = next(iter(A.blocks()))[1]
    assert first._array.data_ptr() == address


def test_pages_are_given_back_after_each_block(tmp_path, monkeypatch):
    """And no page of another block: 100 columns of 8 bytes do not fill whole pages."""
    rows = mapped(tmp_path, np.zeros((1000, 100)))
    file, given_back = design.mapped_file(rows[::2]), []
    assert file is not None
    monkeypatch.setattr(design, "BLOCK_BYTES", 80_000)
    monkeypatch.setattr(design, "mapped_file", lambda X: Watched(file, given_back))
    monkeypatch.setattr(np, "frombuffer", lambda watched, dtype: np.ndarray((1,), dtype, buffer=file))
    assert len(list(Design.of(rows).blocks())) == 10
    for k, (first, length) in enumerate(given_back):
        assert 80_000 * k <= first <= 80_000 * k + 4096
        assert 80_000 * (k + 1) - 4096 <= first + length <= 80_000 * (k + 1)


class Watched:
    """A mapped file that remembers which pages were given back."""

    def __init__(self, file, calls):
        self.file, self.calls = file, calls

    def madvise(self, option, first, length):
        self.file.madvise(option, first, length)
        self.calls.append((first, length))


def test_blocks_of_a_sparse_matrix_are_views(monkeypatch):
    monkeypatch.setattr(design, "BLOCK_BYTES", 200)
    X = scipy.sparse.csr_array(matrix())
    A = Design.of(X)
    for _, block in A.blocks():
        assert np.shares_memory(block._matrix.data, X.data)
        assert np.shares_memory(block._matrix.indices, X.indices)


@pytest.mark.parametrize(
    ("stored", "products"),
    [
        (np.uint8, torch.float32), (np.int16, torch.float32), (np.uint16, torch.float32), (np.float16, torch.float32),
        (np.bool_, torch.float32), (np.int32, torch.float64), (np.int64, torch.float64),
    ],
)  # fmt: skip
def test_other_numbers_are_converted_a_mapped_file_block_by_block(stored, products, tmp_path, monkeypatch):
    monkeypatch.setattr(design, "BLOCK_BYTES", 200)
    values = (10 * matrix()).astype(stored)
    expected = torch.from_numpy(values.astype(np.float64)).sum(1)
    sparse = [] if stored is np.float16 else [scipy.sparse.csr_array(values)]  # SciPy has no half floats
    for X in (values, mapped(tmp_path, values), *sparse):
        A = Design.of(X)
        assert A.dtype == products
        assert torch.allclose(A.matmul(torch.ones(6, 1, dtype=products)).squeeze(1).double(), expected)
    assert Design.of(values, dtype=torch.float64).dtype == torch.float64
    A = Design.of(mapped(tmp_path, values))
    assert max(block._array.numel() * block._array.itemsize for _, block in A.blocks()) <= 200


@pytest.mark.parametrize("kind", ["array", "mapped", "mapped, other byte order", "CSR array"])
@pytest.mark.parametrize("noise", ["rows", "class-pairs", "transition"])
def test_problems_on_every_kind_of_data_agree(kind, noise, tmp_path, monkeypatch):
    monkeypatch.setattr(design, "BLOCK_BYTES", 400)
    values, labels = matrix(), np.arange(37) % 3
    (tmp_path / "trusted").mkdir()
    ours = CleaningProblem(
        KINDS[kind](values, tmp_path), labels, KINDS[kind](values[:9], tmp_path / "trusted"), labels[:9], noise=noise,
        evidence=0.1, trusted_in_lower=0.2,
    )  # fmt: skip
    dense = CleaningProblem(values, labels, values[:9], labels[:9], noise=noise, evidence=0.1, trusted_in_lower=0.2)
    twin = bilevel.Problem(ours.upper, ours.lower, ours.constraint, y0=ours.y0)  # through autograd
    solutions = [bilevel.minimize(p, ours.start(), steps=5) for p in (ours, dense, twin)]
    for other in solutions[1:]:
        assert torch.allclose(solutions[0].x, other.x, atol=1e-9)
        assert torch.allclose(solutions[0].y["weight"], other.y["weight"], atol=1e-9)


@pytest.mark.parametrize("kind", ["array", "mapped", "CSR array"])
def test_batches_of_every_kind_of_data(kind, tmp_path):
    values, labels = matrix(), np.arange(37) % 2
    problem = CleaningProblem(KINDS[kind](values, tmp_path), labels, values[:9], labels[:9], batch_size=5)
    dense = CleaningProblem(values, labels, values[:9], labels[:9], batch_size=5)
    x, batch = problem.start(), problem.sampler(torch.Generator().manual_seed(0))
    y = {"weight": torch.full((1, 6), 0.1).double(), "bias": torch.ones(1).double()}
    ours, theirs = problem.lower_grad(x, y, batch), dense.lower_grad(x, y, batch)
    assert torch.allclose(ours["weight"], theirs["weight"], atol=1e-12)


def test_refusals_name_what_is_wrong():
    with pytest.raises(
        bilevel.InvalidType, match="X must be a tensor, a NumPy array or a SciPy sparse matrix, got list"
    ):
        Design.of([[1.0]])
    with pytest.raises(bilevel.InvalidInput, match=r"shape \(n, d\), got shape \(3,\)"):
        Design.of(np.zeros(3))
    with pytest.raises(bilevel.InvalidInput, match=r"got shape \(0, 3\)"):
        Design.of(np.zeros((0, 3)))
    with pytest.raises(bilevel.InvalidType, match="X must hold numbers, got an array of dtype object"):
        Design.of(np.array([["a"]], dtype=object))
    with pytest.raises(bilevel.InvalidType, match="dtype must be torch.float32 or torch.float64, got torch.float16"):
        Design.of(np.zeros((2, 2)), dtype=torch.float16)
    with pytest.raises(bilevel.InvalidType, match="X must be a dense tensor of real numbers, got torch.sparse_coo"):
        Design.of(torch.eye(2).to_sparse_coo())

"""The data matrix A of a linear model: in memory, memory-mapped or sparse, walked through in blocks of rows.

A block is small enough to stay in the processor's cache between the two products of a gradient, A V and A' R.
"""

from __future__ import annotations

import mmap
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidInput, InvalidType

BLOCK_BYTES = 1 << 23
"""The size of one block of rows: a few of them fit into the last cache of a processor."""
COPIED_BYTES = 1 << 25
"""Larger copies of columns are not made: a product with the whole matrix takes no memory."""
FEW = 0.25
"""Up to this share of the columns, taking them out of A is cheaper than a product with all of it."""
SCATTERED = 256
"""Rows from all over a file are taken so many at a time: the system maps many pages around each."""


class Design(ABC):
    """The matrix A of shape (n, d), one row per example.

    Attributes
    ----------
    shape
        (n, d).
    dtype, device
        Of its products.

    Examples
    --------
    >>> import torch
    >>> design = Design.of(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> tuple(design.shape), design.matmul(torch.tensor([[1.0], [0.0]]))
    ((2, 2), tensor([[1.],
            [3.]]))
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(X: Any, *, dtype: torch.dtype | None = None) -> Design:
        """A design from a tensor, a NumPy array or a SciPy sparse matrix, without a copy where none is needed.

        A memory-mapped array is never copied as a whole: where its numbers need converting, that is done block by
        block, each time.

        Parameters
        ----------
        X
            Numbers of shape (n, d), or a design.
        dtype
            float32 or float64; default that of X, and for other numbers float32 if they have at most 16 bits.

        Examples
        --------
        >>> Design.of(np.eye(3)).matmul(torch.ones(3, 1).double()).squeeze()
        tensor([1., 1., 1.], dtype=torch.float64)
        """
        if isinstance(X, Design):
            return X
        if not (hasattr(X, "shape") and hasattr(X, "dtype")):
            raise InvalidType(f"X must be a tensor, a NumPy array or a SciPy sparse matrix, got {type(X).__name__}")
        if len(X.shape) != 2 or 0 in X.shape:
            raise InvalidInput(f"X must have rows and columns, shape (n, d), got shape {tuple(X.shape)}")
        if dtype not in (None, torch.float32, torch.float64):
            raise InvalidType(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        if isinstance(X, Tensor):
            return _of_tensor(X, dtype or dtype_for(X))
        if X.dtype.kind not in "fiub":
            raise InvalidType(f"X must hold numbers, got an array of dtype {X.dtype}: encode its columns first")
        dtype = dtype or dtype_for(X)
        return SparseDesign(X.tocsr(), dtype) if hasattr(X, "tocsr") else _of_array(np.asanyarray(X), dtype)

    @abstractmethod
    def matmul(self, V: Tensor) -> Tensor:
        """A V, shape (n, k), for V of shape (d, k)."""

    @abstractmethod
    def rmatmul(self, R: Tensor) -> Tensor:
        """A' R, shape (d, k), for R of shape (n, k)."""

    @abstractmethod
    def rows(self, index: Tensor) -> Design:
        """The design of the rows `index`, copied."""

    def columns(self, index: Tensor) -> Design | None:
        """The design of the columns `index`, copied; None where columns cannot be had for less than the whole."""
        return None

    def blocks(self) -> Iterator[tuple[slice, Design]]:
        """A cut into blocks of neighbouring rows."""
        n = self.shape[0]
        step = max(1, BLOCK_BYTES * n // max(1, self._bytes))
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            yield rows, self._neighbours(rows)

    def _neighbours(self, rows: slice) -> Design:
        """The design of neighbouring rows."""
        raise NotImplementedError

    @property
    def _bytes(self) -> int:
        """The size of the numbers that the products run through."""
        raise NotImplementedError


class DenseDesign(Design):
    """A as a dense tensor, by rows or by columns; it may lie in a memory-mapped file."""

    def __init__(self, array: Tensor) -> None:
        self._array, self.dtype, self.device = array, array.dtype, array.device
        self.shape = (array.shape[0], array.shape[1])

    # With A on the right both products are several times faster than A @ V and A.T @ R for few columns.

    def matmul(self, V: Tensor) -> Tensor:
        # By columns, those that V does not have are not read; a derivative in V would need them.
        if self._array.stride(0) == 1 < self.shape[0] and not torch.is_grad_enabled():
            used = V.any(1).nonzero()[:, 0]
            if len(used) <= FEW * len(V) and len(used) * self.shape[0] * self.dtype.itemsize <= BLOCK_BYTES // 4:
                return (V[used].T @ self._array.T[used]).T
        return (V.T @ self._array.T).T

    def rmatmul(self, R: Tensor) -> Tensor:
        return (R.T @ self._array).T

    def rows(self, index: Tensor) -> Design:
        return DenseDesign(self._array[index])

    def columns(self, index: Tensor) -> Design | None:
        if len(index) * self.shape[0] * self.dtype.itemsize > COPIED_BYTES:
            return None
        return DenseDesign(self._array.T[index].T)

    def by_columns(self) -> DenseDesign:
        """The same with its columns contiguous: products cost the same, and a few columns need no search; a copy unless
        they are.

        Examples
        --------
        >>> DenseDesign(torch.eye(2, 3)).by_columns().array.stride()
        (1, 2)
        """
        return self if self._array.T.is_contiguous() else DenseDesign(self._array.T.contiguous().T)

    @property
    def array(self) -> Tensor:
        """A itself."""
        return self._array

    def _neighbours(self, rows: slice) -> Design:
        return DenseDesign(self._array[rows])

    @property
    def _bytes(self) -> int:
        return self._array.numel() * self._array.itemsize


class MappedDesign(Design):
    """A as an array in a memory-mapped file, or of other numbers, taken block by block and converted as needed.

    After each block its pages are given back to the system, so that a file of any size takes the memory of one
    block; while there is room, the system keeps them and the next pass reads nothing from the disk.
    """

    device = torch.device("cpu")

    def __init__(self, array: np.ndarray, dtype: torch.dtype) -> None:
        self._array, self.dtype = array, dtype
        self.shape = (int(array.shape[0]), int(array.shape[1]))

    def matmul(self, V: Tensor) -> Tensor:
        return torch.cat([block.matmul(V) for _, block in self.blocks()])

    def rmatmul(self, R: Tensor) -> Tensor:
        return torch.stack([block.rmatmul(R[rows]) for rows, block in self.blocks()]).sum(0)

    def rows(self, index: Tensor) -> Design:
        parts = []
        for some in np.split(index.numpy(), range(SCATTERED, len(index), SCATTERED)):
            parts.append(self._array[some].astype(NUMPY[self.dtype]))
            give_back(self._array)
        return DenseDesign(_tensor(np.concatenate(parts)))

    def blocks(self) -> Iterator[tuple[slice, Design]]:
        for rows, block in super().blocks():
            yield rows, block
            give_back(self._array[rows])

    def _neighbours(self, rows: slice) -> Design:
        return self._converted(self._array[rows])

    def _converted(self, array: np.ndarray) -> Design:
        return DenseDesign(_tensor(np.asarray(array).astype(NUMPY[self.dtype], copy=not _viewable(array))))

    @property
    def _bytes(self) -> int:
        return self._array.size * self.dtype.itemsize


class PickedDesign(Design):
    """Some of the rows of a design, in increasing order and without a copy: few rows should be left out.

    Examples
    --------
    >>> design = Design.of(torch.tensor([[1.0], [2.0], [3.0]]))
    >>> PickedDesign(design, torch.tensor([0, 2])).rmatmul(torch.ones(2, 1))
    tensor([[4.]])
    """

    def __init__(self, design: Design, index: Tensor) -> None:
        self.design, self.index = design, index
        self.shape, self.dtype, self.device = (len(index), design.shape[1]), design.dtype, design.device

    def matmul(self, V: Tensor) -> Tensor:
        return self.design.matmul(V)[self.index]

    def rmatmul(self, R: Tensor) -> Tensor:
        everywhere = R.new_zeros(self.design.shape[0], R.shape[1])
        return self.design.rmatmul(everywhere.index_copy(0, self.index, R))

    def rows(self, index: Tensor) -> Design:
        return self.design.rows(self.index[index])

    def blocks(self) -> Iterator[tuple[slice, Design]]:
        first = 0
        for rows, block in self.design.blocks():
            last = int(torch.searchsorted(self.index, rows.stop))
            if last > first:
                chosen = self.index[first:last] - rows.start
                yield slice(first, last), block if len(chosen) == block.shape[0] else PickedDesign(block, chosen)
            first = last


class SparseDesign(Design):
    """A as a SciPy matrix in compressed rows; its products run in SciPy, on the processor."""

    device = torch.device("cpu")

    def __init__(self, matrix: Any, dtype: torch.dtype) -> None:
        self._matrix, self.dtype = matrix.astype(NUMPY[dtype], copy=False), dtype
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))

    def matmul(self, V: Tensor) -> Tensor:
        return _SparseProduct.apply(self._matrix, V)  # type: ignore[return-value]

    def rmatmul(self, R: Tensor) -> Tensor:
        return _SparseProduct.apply(self._matrix.T, R)  # type: ignore[return-value]

    def rows(self, index: Tensor) -> Design:
        return SparseDesign(self._matrix[index.numpy()], self.dtype)

    def _neighbours(self, rows: slice) -> Design:
        csr = self._matrix
        block = type(csr)((rows.stop - rows.start, self.shape[1]), dtype=csr.dtype)
        first, last = csr.indptr[rows.start], csr.indptr[rows.stop]
        # Views of the arrays: SciPy's slices and constructor would copy them.
        block.data, block.indices = csr.data[first:last], csr.indices[first:last]
        block.indptr = csr.indptr[rows.start : rows.stop + 1] - first
        return SparseDesign(block, self.dtype)

    @property
    def _bytes(self) -> int:
        return self._matrix.data.nbytes + self._matrix.indices.nbytes


class _SparseProduct(torch.autograd.Function):
    """V -> M V for a SciPy matrix M, differentiable as often as one likes: the derivative is a product with M'."""

    @staticmethod
    def forward(ctx: Any, matrix: Any, V: Tensor) -> Tensor:
        ctx.matrix = matrix
        return torch.from_numpy(matrix @ V.detach().numpy())

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        return None, _SparseProduct.apply(ctx.matrix.T, G)  # type: ignore[return-value]


NUMPY: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


def dtype_for(X: Any) -> torch.dtype:
    """Of the products, by the dtype of a tensor or array."""
    is_float = X.dtype.is_floating_point if isinstance(X, Tensor) else X.dtype.kind == "f"
    return torch.float32 if X.dtype.itemsize <= (4 if is_float else 2) else torch.float64


def _of_tensor(X: Tensor, dtype: torch.dtype) -> Design:
    if X.layout is not torch.strided or X.is_complex():
        raise InvalidType(f"X must be a dense tensor of real numbers, got {X.layout} of {X.dtype}; sparse: use SciPy")
    return DenseDesign(X.detach().to(dtype))


def _of_array(X: np.ndarray, dtype: torch.dtype) -> Design:
    if mapped_file(X) is not None:
        return MappedDesign(X, dtype)
    if _viewable(X) and X.dtype == NUMPY[dtype]:
        return DenseDesign(_tensor(np.asarray(X)))
    return MappedDesign(X, dtype)._neighbours(slice(0, len(X)))


def _viewable(X: np.ndarray) -> bool:
    """Whether torch takes the array as it is: not another byte order, steps backwards or between elements."""
    return X.dtype.isnative and all(stride >= 0 and stride % X.itemsize == 0 for stride in X.strides)


def _tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing writes to it
        return torch.from_numpy(array)


def mapped_file(X: np.ndarray) -> mmap.mmap | None:
    """The file of an `np.memmap`, or of a view of one, whose pages can be read again."""
    shared = False
    base: Any = X
    while isinstance(base, np.ndarray):
        # Mode "c" is copied on write, and other maps may be private: given back, their pages would be lost.
        shared = shared or (isinstance(base, np.memmap) and base.mode in ("r", "r+", "w+"))
        base = base.base
    return base if shared and isinstance(base, mmap.mmap) else None


def give_back(X: np.ndarray) -> None:
    """Let the system reuse the pages of an array in a memory-mapped file; they are read again when needed."""
    file = mapped_file(X)
    if file is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    low, high = np.lib.array_utils.byte_bounds(X)
    start = np.frombuffer(file, np.uint8).__array_interface__["data"][0]
    # Only whole pages: the neighbours of a block may be in use.
    first, last = -((start - low) // mmap.PAGESIZE) * mmap.PAGESIZE, (high - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        file.madvise(mmap.MADV_DONTNEED, first, last - first)

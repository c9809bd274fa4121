"""The data matrix A of a linear model: in memory, memory-mapped or sparse, walked through in blocks of rows.

A block is small enough to stay in the processor's cache between the two products of a gradient, A V and A' R.
"""

from __future__ import annotations

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


class Design(ABC):
    """The matrix A of shape (n, d), one row per example.

    Attributes
    ----------
    shape
        (n, d).
    dtype, device
        Of its products.
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
            return _of_tensor(X, dtype or _dtype_for(X))
        if X.dtype.kind not in "fiub":
            raise InvalidType(f"X must hold numbers, got an array of dtype {X.dtype}: encode its columns first")
        dtype = dtype or _dtype_for(X)
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

    @abstractmethod
    def _neighbours(self, rows: slice) -> Design:
        """The design of neighbouring rows."""

    @property
    @abstractmethod
    def _bytes(self) -> int:
        """The size of the numbers that the products run through."""

    def blocks(self) -> Iterator[tuple[slice, Design]]:
        """A cut into blocks of neighbouring rows."""
        n = self.shape[0]
        step = max(1, BLOCK_BYTES * n // max(1, self._bytes))
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            yield rows, self._neighbours(rows)


class DenseDesign(Design):
    """A as a dense tensor, which may lie in a memory-mapped file."""

    def __init__(self, array: Tensor) -> None:
        self._array, self.dtype, self.device = array, array.dtype, array.device
        self.shape = (array.shape[0], array.shape[1])

    # With A on the right both products are several times faster than A @ V and A.T @ R for few columns.

    def matmul(self, V: Tensor) -> Tensor:
        return (V.T @ self._array.T).T

    def rmatmul(self, R: Tensor) -> Tensor:
        return (R.T @ self._array).T

    def rows(self, index: Tensor) -> Design:
        return DenseDesign(self._array[index])

    def _neighbours(self, rows: slice) -> Design:
        return DenseDesign(self._array[rows])

    @property
    def _bytes(self) -> int:
        return self._array.numel() * self._array.itemsize


class ConvertedDesign(Design):
    """A as an array of other numbers, converted block by block: a memory-mapped file of bytes or half floats."""

    device = torch.device("cpu")

    def __init__(self, array: np.ndarray, dtype: torch.dtype) -> None:
        self._array, self.dtype = array, dtype
        self.shape = (int(array.shape[0]), int(array.shape[1]))

    def matmul(self, V: Tensor) -> Tensor:
        return torch.cat([block.matmul(V) for _, block in self.blocks()])

    def rmatmul(self, R: Tensor) -> Tensor:
        return torch.stack([block.rmatmul(R[rows]) for rows, block in self.blocks()]).sum(0)

    def rows(self, index: Tensor) -> Design:
        return self._converted(self._array[index.numpy()])

    def _neighbours(self, rows: slice) -> Design:
        return self._converted(self._array[rows])

    def _converted(self, array: np.ndarray) -> Design:
        return DenseDesign(torch.from_numpy(np.asarray(array).astype(NUMPY[self.dtype])))

    @property
    def _bytes(self) -> int:
        return self._array.size * self.dtype.itemsize


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


def _dtype_for(X: Any) -> torch.dtype:
    """Of the products, by the dtype of a tensor or array."""
    is_float = X.dtype.is_floating_point if isinstance(X, Tensor) else X.dtype.kind == "f"
    return torch.float32 if X.dtype.itemsize <= (4 if is_float else 2) else torch.float64


def _of_tensor(X: Tensor, dtype: torch.dtype) -> Design:
    if X.layout is not torch.strided or X.is_complex():
        raise InvalidType(f"X must be a dense tensor of real numbers, got {X.layout} of {X.dtype}; sparse: use SciPy")
    return DenseDesign(X.detach().to(dtype))


def _of_array(X: np.ndarray, dtype: torch.dtype) -> Design:
    # What torch cannot take as it is: another byte order, steps backwards or between elements.
    viewable = X.dtype.isnative and all(stride >= 0 and stride % X.itemsize == 0 for stride in X.strides)
    if not viewable or X.dtype != NUMPY[dtype]:
        design = ConvertedDesign(X, dtype)
        return design if isinstance(X, np.memmap) else design._neighbours(slice(0, len(X)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing writes to it
        return DenseDesign(torch.from_numpy(np.asarray(X)))

"""The arrays of the IVF store: rows grouped into cells of neighbours, with coarse codes. Only data, no search."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from ..errors import MemoryMismatchError

BLOCK, INTERLEAVED = 8, 4  # rows of a block, and directions whose codes lie together; as in kernels/ivf.c
_PREFIX = "cell_"  # of the arrays' names in a stored memory
_SHAPES: dict[str, tuple[int, torch.dtype]] = {
    "codes": (4, torch.uint8),
    "start": (1, torch.int64),
    "size": (1, torch.int32),
    "row": (1, torch.int32),
    "centres": (4, torch.uint8),
    "spread": (1, torch.float32),
    "step": (1, torch.float32),
    "projection": (2, torch.float32),
}
"""Dimensions and dtype of each array."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Rows grouped into cells; the fields have the names of kernels/ivf.c.

    A cell's rows take whole blocks of `BLOCK` slots, of which the last may be partly filled.

    Parameters
    ----------
    codes : (blocks, coded / INTERLEAVED, BLOCK, INTERLEAVED), uint8: the first directions of each row, 7 bits each.
    start : (cells + 1,), int64: first block of each cell.
    size : (cells,), int32: rows of each cell.
    row : (blocks * BLOCK,), int32: the row in each slot.
    centres : (cells / BLOCK, directions / INTERLEAVED, BLOCK, INTERLEAVED), uint8: coded like rows, all directions.
    spread : (cells,): root mean square distance of a cell's rows from its centre, directions weighted by importance.
    step : (directions,): size of one code.
    projection : (directions, D): maps queries to directions.
    """

    codes: Tensor
    start: Tensor
    size: Tensor
    row: Tensor
    centres: Tensor
    spread: Tensor
    step: Tensor
    projection: Tensor

    @property
    def count(self) -> int:
        """Number of cells, none of them empty."""
        return self.size.shape[0]

    @property
    def coded(self) -> int:
        """Number of directions that rows have codes for."""
        return self.codes.shape[1] * self.codes.shape[3]

    @property
    def directions(self) -> int:
        """Number of directions in all."""
        return self.projection.shape[0]

    @cached_property
    def code_deviation(self) -> float:
        """Standard deviation of a direction's codes; the values that are coded have standard deviation one."""
        return float((1 / self.step).median())

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(array.nbytes for array in self._by_name().values())

    def to_arrays(self) -> dict[str, Tensor]:
        """Name all arrays as in a stored memory."""
        return {_PREFIX + name: array for name, array in self._by_name().items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Tensor], rows: int, width: int) -> Cells:
        """Load from the arrays of a stored memory with states (rows, width), and check that they fit them."""
        cells = cls(**{field.name: arrays[_PREFIX + field.name] for field in fields(cls)})
        if not (cells._have_shapes(width) and cells._are_in_range(rows)):
            raise MemoryMismatchError(
                "the cells of the stored memory do not fit its states; index the text again with --store ivf"
            )
        return cells

    def _have_shapes(self, width: int) -> bool:
        """Whether every array has the dtype and the shape that kernels/ivf.c reads."""
        if any(array.ndim != _SHAPES[name][0] for name, array in self._by_name().items()):
            return False
        blocks, coded, cells, directions = self.codes.shape[0], self.codes.shape[1], self.count, self.directions
        shapes = {
            "codes": (blocks, coded, BLOCK, INTERLEAVED),
            "start": (cells + 1,),
            "size": (cells,),
            "row": (blocks * BLOCK,),
            "centres": (-(-cells // BLOCK), directions // INTERLEAVED, BLOCK, INTERLEAVED),
            "spread": (cells,),
            "step": (directions,),
            "projection": (directions, width),
        }
        fit = all(array.shape == shapes[name] for name, array in self._by_name().items())
        typed = all(array.dtype is _SHAPES[name][1] for name, array in self._by_name().items())
        return fit and typed and cells > 0 and directions % INTERLEAVED == 0 and 0 < self.coded <= directions

    def _are_in_range(self, rows: int) -> bool:
        """Whether every block, slot and row that the arrays name is there, and every number is finite."""
        blocks = (self.size.long() + BLOCK - 1) // BLOCK
        complete = int(self.start[0]) == 0 and int(self.start[-1]) == self.codes.shape[0]
        filled = int(self.size.min()) > 0 and bool((self.start.diff() == blocks).all())
        inside = int(self.row.min()) >= 0 and int(self.row.max()) < rows
        finite = all(bool(numbers.isfinite().all()) for numbers in (self.spread, self.step, self.projection))
        return complete and filled and inside and finite and bool((self.step > 0).all())

    def _by_name(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

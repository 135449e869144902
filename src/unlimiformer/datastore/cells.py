"""The arrays of the IVF store: rows grouped into cells of neighbours, with coarse codes. Only data, no search."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from torch import Tensor

from ..errors import MemoryMismatchError

BLOCK, INTERLEAVED = 8, 4  # rows of a block, and directions whose codes lie together; as in kernels/ivf.c
_PREFIX = "cell_"  # of the arrays' names in a stored memory


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
    def from_arrays(cls, arrays: dict[str, Tensor], rows: int) -> Cells:
        """Load from the arrays of a stored memory with `rows` states, and check that they fit them."""
        cells = cls(**{field.name: arrays[_PREFIX + field.name] for field in fields(cls)})
        slots = cells.codes.shape[0] * BLOCK
        increasing = bool((cells.start.diff() >= 0).all())
        complete = int(cells.start[-1]) * BLOCK == slots == cells.row.shape[0]
        if not increasing or not complete or int(cells.row.max()) >= rows or int(cells.row.min()) < 0:
            raise MemoryMismatchError(
                "the cells of the stored memory do not fit its states; index the text again with --store ivf"
            )
        return cells

    def _by_name(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

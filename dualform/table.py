"""A small table with named columns that prints well, in a terminal and in a notebook."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import MissingExtra, UnknownName
from dualform.strict_json import printable

_MAX_ROWS = 20


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """An answer as named columns of equal length.

        table["score"]                  # a column, as an array
        table.where(query=0).rows()     # rows as dicts
        table.to_pandas()

    `len(table)` is the number of rows.
    """

    _columns: Mapping[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            raise UnknownName("column", name, self._columns)
        return self._columns[name]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return the rows, each as a dict of plain Python values."""
        plain = {name: column.tolist() for name, column in self._columns.items()}
        return (dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True))

    def where(self, /, **values: Any) -> "Table":
        """Return the rows in which every named column has the given value: `table.where(query=0)`."""
        mask = np.ones(len(self), dtype=bool)
        for name, value in values.items():
            mask &= self[name] != self[name] if value != value else self[name] == value  # NaN equals nothing
        return Table({name: column[mask] for name, column in self._columns.items()})

    def without(self, *names: str) -> "Table":
        """Return a table without some columns: `table.without("step")`."""
        return Table({name: column for name, column in self._columns.items() if name not in names})

    def as_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the columns as NumPy arrays."""
        return dict(self._columns)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns as lists of plain Python values."""
        return {name: column.tolist() for name, column in self._columns.items()}

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "all") from None
        return pandas.DataFrame(self._columns)

    def _cells(self) -> list[list[str]]:
        columns = [column[:_MAX_ROWS].tolist() for column in self._columns.values()]
        return [
            [f"{value:.4g}" if isinstance(value, float) else printable(str(value)) for value in row]
            for row in zip(*columns, strict=True)
        ]

    def __repr__(self) -> str:
        cells = [self.columns, *self._cells()]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        if len(self) > _MAX_ROWS:
            lines.append(f"... {len(self) - _MAX_ROWS:,} more rows")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._cells())
        more = f"<p>{len(self) - _MAX_ROWS:,} more rows</p>" if len(self) > _MAX_ROWS else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

"""What squeue prints, cut at words drawn for one call: whatever people write into a field, it stays one field.

No user can know the words, so no name, comment or path can end its field or its row, nor begin another one.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator, Sequence

from burstd.domain.errors import SchedulerUnavailable

_LETTERS = string.ascii_letters + string.digits


class RandomDelimiters:
    """The words of one call: a new one for each."""

    def __init__(self) -> None:
        # Short, as it stands between all fields of all jobs; still more than anybody can guess: 71 bits.
        token = "".join(secrets.choice(_LETTERS) for _ in range(12))
        self.field_delimiter = f"\x1f{token}"
        """Ends each field of a row but the last."""
        self.row_delimiter = f"\x1e{token}"
        """Ends the last."""

    def long_format(self, fields: Sequence[str]) -> dict[str, str]:
        """Has squeue show every field unshortened. One that a version does not know stays empty (it grumbles).

        As environment: a command's words can be read by everybody, its environment cannot.
        """
        ends = self._ends(fields)
        return {"SQUEUE_FORMAT2": ",".join(f"{name}:0{end}" for name, end in zip(fields, ends, strict=True))}

    def short_format(self, fields: Sequence[str]) -> dict[str, str]:
        """The same for fields such as ``%A``."""
        return {"SQUEUE_FORMAT": "".join(name + end for name, end in zip(fields, self._ends(fields), strict=True))}

    def split_rows(self, text: str) -> Iterator[str]:
        """The rows of such an output, one after another. Raises SchedulerUnavailable where it is cut off."""
        end = self.row_delimiter + "\n"
        if text and not text.endswith(end):
            raise SchedulerUnavailable("what Slurm printed ends within a row: the command was cut off")
        return self._rows(text, end)

    def _rows(self, text: str, end: str) -> Iterator[str]:
        start = 0
        while start < len(text):
            stop = text.index(end, start)
            yield text[start:stop]
            start = stop + len(end)

    def split_fields(self, row: str, fields: Sequence[str]) -> dict[str, str]:
        """The values of one row by their fields. Raises SchedulerUnavailable where some are missing."""
        values = row.split(self.field_delimiter)
        if len(values) != len(fields):
            raise SchedulerUnavailable(f"a row that Slurm printed has {len(values)} fields, not {len(fields)}")
        return dict(zip(fields, values, strict=True))

    def _ends(self, fields: Sequence[str]) -> list[str]:
        return [self.field_delimiter] * (len(fields) - 1) + [self.row_delimiter]

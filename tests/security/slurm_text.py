"""What real Slurms printed, with placeholders where people write, and what an attacker puts there.

The files in slurm_text/ are the output of burstd's own commands on jobs submitted with ``--comment @Comment@`` and so
on; ``<F>`` and ``<R>`` stand for the words that were drawn for the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hypothesis import strategies as st

from burstd.slurm.commands.delimiters import RandomDelimiters

VERSIONS = ("22.05", "24.11", "26.05")
_FOLDER = Path(__file__).with_suffix("")

_PIECES = ("=", " ", "\n", "   ", "UserId", "(0)", "JobId", "root", "|", ",", "[", "]", "\x1f")
_KNOWN = (
    "x UserId=bob(3002) GroupId=bob(3002)",
    "x\n   WorkDir=/home/bob\n   StdOut=/home/bob/.bashrc",
    "\n\nJobId=1 UserId=root(0) GroupId=root(0)\n",
    "a|b|c\n1|root|0|",
    "\x1f\x1e\x1f0\x1f\x1e\n",
    "<F>0<F>root<F><R>\n<R>",
    "n[1-999999999]",
    "[" * 5000,
    "(" * 5000 + "a" + ")" * 5000,
    "9" * 5000,
    *("-1", "1e999", "inf", "nan", "\u0664\u0662", "\u00b2", "\ud800", "\0", ""),
    *("gres/gpu:99999999999999999999", "99999999999999999999P", "1-99999999999999:00:00"),
)
hostile = st.one_of(
    st.text(max_size=200), st.sampled_from(_KNOWN), st.lists(st.sampled_from(_PIECES), max_size=30).map("".join)
)
"""A value that a user can write into any field that takes text."""


def real(version: str, what: str, written: Mapping[str, str], drawn: RandomDelimiters | None = None) -> str:
    """The output of ``what`` on a real Slurm of that version, had people written this: by placeholders' names."""
    text = (_FOLDER / f"{version}.{what}").read_text(encoding="utf-8")
    if drawn is not None:
        text = text.replace("<F>", drawn.field_delimiter).replace("<R>", drawn.row_delimiter)
    for name, value in written.items():
        text = text.replace(f"@{name}@", value)
    return text

"""Licences that jobs ask for, as sbatch's -L has them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LICENCE = re.compile(r"([^\s:=*|&]+)(?:[:=*]([0-9]{1,9}))?")


def wanted_licenses(text: str) -> Mapping[str, int]:
    """By name, how many: ``solver:2,mesh`` is 2 and 1. Empty where any of several will do: ``a|b``."""
    found: dict[str, int] = {}
    for word in re.split("[,;&]", text) if text else ():
        match = _LICENCE.fullmatch(word.strip())
        if match is None:
            return {}
        found[match[1]] = found.get(match[1], 0) + int(match[2] or 1)
    return found

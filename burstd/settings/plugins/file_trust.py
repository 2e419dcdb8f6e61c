"""Whether code may be run: nobody may have written it who could not have altered burstd itself."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_BURSTD = Path(__file__)


def untrusted_because(place: Path) -> str:
    """Why a file or folder, by itself, is not to be trusted; empty: it is. Raises OSError where it cannot be seen."""
    own, found = _BURSTD.stat(), place.stat()
    if found.st_uid not in {0, os.geteuid(), own.st_uid}:
        return f"{place} belongs to user id {found.st_uid}; it must belong to root or to the owner of burstd"
    forbidden = 0o022 & ~own.st_mode  # a checkout may be writable for its group: then burstd is as well
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return ""  # as /tmp: others cannot put their own in the place of what is there
    if found.st_mode & forbidden:
        return f"{place} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}); 'chmod go-w' it"
    return ""


def path_untrusted_because(place: Path) -> str:
    """The same of a file and of every folder on the way to it, those that links lead through as well."""
    seen: set[Path] = set()
    paths = [Path(os.path.abspath(place))]  # noqa: PTH100  # resolve() would leave out the links themselves
    while paths:
        path = paths.pop()
        for step in (path, *path.parents):
            if step in seen:
                continue
            seen.add(step)
            try:
                if step.is_symlink():
                    paths.append(step.parent / step.readlink())
                fault = untrusted_because(step)
            except OSError as error:
                return f"{step} cannot be looked at ({error.strerror})"
            if fault:
                return fault
    return ""

"""The site's programs that check each new machine: ``node.check_folder``."""

from __future__ import annotations

import os
import re
from pathlib import Path

from burstd.settings.plugins.file_trust import path_untrusted_because

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MAX_BYTES = 1 << 20
_MAX_PROGRAMS = 64


def read_check_programs(folder: Path | None) -> dict[str, bytes]:
    """By their files' names, in this order, the executable files of a folder; they run as root on machines.

    Raises ValueError, with a sentence: a folder that cannot be read, and files that others can write.
    """
    if folder is None:
        return {}
    found: dict[str, bytes] = {}
    try:
        for file in sorted(folder.iterdir()):
            if not _NAME.fullmatch(file.name) or not file.is_file() or not os.access(file, os.X_OK):
                continue
            if fault := path_untrusted_because(file):
                raise ValueError(fault)
            if file.stat().st_size > _MAX_BYTES:
                raise ValueError(f"{file} has more than {_MAX_BYTES >> 20} MiB: let it call what is in the image")
            found[file.name] = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{error.filename or folder} cannot be read ({error.strerror})") from None
    if len(found) > _MAX_PROGRAMS:
        raise ValueError(f"{folder} has {len(found)} programs, and {_MAX_PROGRAMS} at most are run on each machine")
    return found

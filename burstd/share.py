"""Where the files that come with burstd lie: in the wheel under ``burstd/share/``, in a checkout beside ``burstd/``."""

from __future__ import annotations

from pathlib import Path

_ROOM = Path(__file__).resolve().parent


def share_path(*parts: str) -> Path:
    """The path of a file or directory that comes with burstd, such as ``share_path("config", "burstd.toml")``.

    Raises FileNotFoundError where neither an installed wheel nor a checkout has it.
    """
    for base in (_ROOM / "share", _ROOM.parent):
        path = base.joinpath(*parts)
        if path.exists():
            return path
    name = "/".join(parts)
    raise FileNotFoundError(
        f"{name} is neither in {_ROOM / 'share'} nor in {_ROOM.parent}: burstd is not whole, install it again"
    )

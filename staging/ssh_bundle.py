"""The storage node's program as one file, that Python runs."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from importlib import resources

_MODULES = (
    "burstd.data.serve",
    "burstd.data.folder",
    "burstd.data.frames",
    "burstd.model.stager",
    "burstd.model.errors",
)
_MAIN = "import sys\nfrom burstd.data.serve import main\nsys.exit(main())\n"


@cache
def program() -> bytes:
    """The same bytes wherever it is made from the same sources."""
    files = {"__main__.py": _MAIN.encode()}
    for module in _MODULES:
        *packages, name = module.split(".")
        for depth in range(1, len(packages) + 1):
            files["/".join(packages[:depth]) + "/__init__.py"] = b""
        files[module.replace(".", "/") + ".py"] = (
            resources.files(".".join(packages)).joinpath(f"{name}.py").read_bytes()
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()

"""Programs for other machines: one file each of some of our modules, which their Python runs."""

from __future__ import annotations

import ast
import functools
import io
import zipfile
from importlib.resources import files

_PACKAGE = "burstd"
# Older Pythons must be able to read it.
_MAIN = """\
import sys
if sys.version_info < (3, 11):
    import json
    print(json.dumps({{"error": "the Python of this machine is %d.%d, and 3.11 is the oldest that will do: take an "
                      "image of a newer release" % sys.version_info[:2], "kind": "agent"}}))
    sys.exit(1)
from {module} import {function}
sys.exit({function}())
"""


def build_zipapp(main: str) -> bytes:
    """A zip file that ``python3 FILE`` runs: ``main`` is ``module:function``, which returns the exit status.

    It holds every module of burstd that these import, and their packages as empty ones. The same modules give the same
    bytes.
    """
    module, _, function = main.partition(":")
    content = {"__main__.py": _MAIN.format(module=module, function=function).encode()}
    for name, source in _imported(module).items():
        content[name.replace(".", "/") + ".py"] = source
        package = name.rpartition(".")[0]
        while package:
            content.setdefault(package.replace(".", "/") + "/__init__.py", b"")
            package = package.rpartition(".")[0]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path in sorted(content):
            about = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            about.compress_type = zipfile.ZIP_DEFLATED
            about.external_attr = 0o644 << 16
            archive.writestr(about, content[path])
    return out.getvalue()


@functools.cache
def agent_zipapp() -> bytes:
    """The agent for nodes. Its SHA-256 is its name there."""
    return build_zipapp("burstd.transfer.agent.main:main")


def _imported(module: str) -> dict[str, bytes]:
    """The module, and all of burstd's that are imported from it on, with their sources."""
    found: dict[str, bytes] = {}
    left = [module]
    while left:
        name = left.pop()
        package, *parts = name.split(".")
        file = files(_PACKAGE) / ("/".join(parts) + ".py")
        if name in found or package != _PACKAGE or not file.is_file():
            continue
        found[name] = file.read_bytes()
        for node in ast.walk(ast.parse(found[name])):
            if isinstance(node, ast.ImportFrom) and node.module:
                left += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found

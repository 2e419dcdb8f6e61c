"""Programs for other machines: one file each of some of our modules, which their Python runs."""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Sequence
from importlib.resources import files

AGENT_MODULES = (
    "burstd.data.agent",
    "burstd.data.by_http",
    "burstd.data.by_ssh",
    "burstd.data.cache",
    "burstd.data.collect",
    "burstd.data.directories",
    "burstd.data.fetch",
    "burstd.data.fill",
    "burstd.data.folder",
    "burstd.data.frames",
    "burstd.data.gather",
    "burstd.data.holes",
    "burstd.data.manifest",
    "burstd.data.opening",
    "burstd.data.outgoing",
    "burstd.data.pack",
    "burstd.data.place",
    "burstd.data.ssh_program",
    "burstd.data.transports",
    "burstd.data.userside",
    "burstd.data.walk",
    "burstd.data.wire",
    "burstd.data.window",
    "burstd.data.works",
    "burstd.model.data",
    "burstd.model.errors",
    "burstd.model.stager",
    "burstd.model.text",
)
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


def bundle(main: str, modules: Sequence[str]) -> bytes:
    """A zip file that ``python3 FILE`` runs: ``main`` is ``module:function``, which returns the exit status.

    The same modules give the same bytes. Packages that the modules are in come along as empty ones.
    """
    module, _, function = main.partition(":")
    content = {"__main__.py": _MAIN.format(module=module, function=function).encode()}
    for name in modules:
        package, _, last = name.rpartition(".")
        content[name.replace(".", "/") + ".py"] = (files(package) / f"{last}.py").read_bytes()
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
def agent_bundle() -> bytes:
    """The agent for nodes. Its SHA-256 is its name there."""
    return bundle("burstd.data.agent:main", AGENT_MODULES)

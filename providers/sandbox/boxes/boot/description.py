"""How a box is described to its process 1, and how that process is started: the only caller of ``init.py``."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from providers.sandbox.boxes.boot.init import READY
from providers.sandbox.boxes.errors import BoxFailed
from providers.sandbox.boxes.machine import SYSTEM_PATH, tool_path
from providers.sandbox.boxes.processes import Process

ENVIRONMENT = {"PATH": SYSTEM_PATH, "HOME": "/root", "USER": "root", "LOGNAME": "root", "LANG": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class BindMount:
    """A file or directory of the machine shown in a box, at the same path unless ``target`` is given."""

    source: Path
    target: str = ""
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class BoxFile:
    """A file written into a box before it boots. ``owner``: ``user`` or ``user:group``, the box's names or numbers."""

    path: str
    content: str | bytes
    mode: int = 0o644
    owner: str = "root"


@dataclass(frozen=True, slots=True)
class BoxDescription:
    """What process 1 does: see ``init.py``. Layers are given the topmost first, the root file system last.

    ``upper`` keeps what is written there instead of in memory (then at most ``disk_mib`` MiB). With ``main`` that
    command is run and nothing else; otherwise the script at ``boot`` is started and the box lives on.
    """

    layers: Sequence[Path]
    scratch: Path
    console: Path
    record: Path
    hostname: str = ""
    upper: Path | None = None
    disk_mib: int = 2048
    gpus: int = 0
    binds: Sequence[BindMount] = ()
    files: Sequence[BoxFile] = ()
    boot: str = ""
    main: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))

    def to_json(self) -> str:
        """As ``init.py`` reads it."""
        return json.dumps(
            {
                "layers": [str(layer) for layer in self.layers],
                "scratch": str(self.scratch),
                "console": str(self.console),
                "record": str(self.record),
                "hostname": self.hostname,
                "upper": None if self.upper is None else str(self.upper),
                "disk_mib": self.disk_mib,
                "gpus": self.gpus,
                "binds": [[str(b.source), b.target or str(b.source), b.read_only] for b in self.binds],
                "files": [_file(f) for f in self.files],
                "boot": self.boot,
                "main": list(self.main),
                "environment": dict(self.environment),
            }
        )


def _file(file: BoxFile) -> dict[str, str | int]:
    content = file.content.encode() if isinstance(file.content, str) else file.content
    return {
        "path": file.path,
        "content": base64.b64encode(content).decode(),
        "mode": file.mode,
        "owner": file.owner,
    }


def start_init(
    description: BoxDescription,
    network: Path | None,
    output: IO[bytes],
    *,
    keep: Sequence[int] = (),
    timeout_s: float = 30.0,
) -> subprocess.Popen[bytes]:
    """Starts process 1 in new namespaces (in the network namespace ``network``, or the machine's).

    Returns once the box's root stands. ``output`` takes what is said before that, and all output of ``main``.
    The descriptors ``keep`` stay open in it. The process returned is the parent of process 1 and ends with it.
    Raises BoxFailed.
    """
    file = description.record.with_name("description.json")
    file.touch(mode=0o600)
    file.write_text(description.to_json(), encoding="utf-8")
    description.scratch.mkdir(exist_ok=True)
    reading, writing = os.pipe()
    argv = [] if network is None else [tool_path("nsenter"), f"--net={network}", "--"]
    argv += [tool_path("unshare"), "--mount", "--uts", "--ipc", "--pid", "--fork", "--"]
    # Isolated and without site-packages: it must not depend on anything that goes away with the machine's root.
    argv += [sys.executable, "-I", "-S", str(Path(__file__).with_name("init.py")), str(file), str(writing)]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(writing, *keep),
            env={"PATH": SYSTEM_PATH},
            cwd="/",
        )
        os.close(writing)
        writing = -1
        error = _outcome(reading, timeout_s)
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    if error is None:
        return process
    made = Process.load(description.record)
    if made is not None:
        made.kill()
    process.kill()
    process.wait()
    raise BoxFailed(f"the box could not be made: {error}", "see the kernel's log")


def _outcome(descriptor: int, timeout_s: float) -> str | None:
    """None when process 1 says that it is ready, else what went wrong."""
    said = b""
    deadline = time.monotonic() + timeout_s
    while select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(descriptor, 4096)
        said += chunk
        if said == READY:
            return None
        if not chunk:
            return said.decode(errors="replace") or "its first process ended"
    return said.decode(errors="replace") or f"nothing happened for {timeout_s:.0f} s"

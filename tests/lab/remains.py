"""What labs of burstd's have left on this machine: nothing, when all went well."""

from __future__ import annotations

import subprocess
from pathlib import Path

MARK = "burstd-"


def remains(mark: str = MARK) -> list[str]:
    """Namespaces, bridges, links, mounts and processes that bear a lab's name, as words for a person."""
    found = []
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    found += [f"network namespace {line.split()[0]}" for line in names.splitlines() if line.startswith(mark)]
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    found += [f"link {line.split()[1]}" for line in links.splitlines() if mark in line]
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    found += [f"mount {line.split()[1]}" for line in mounts if f"/{mark}cluster" in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if f"/{mark}cluster" in words:
            found.append(f"process {process.name} ({words[:60].strip()})")
    return found

"""What a lab has left on this machine: nothing, when all went well."""

from __future__ import annotations

import subprocess
from pathlib import Path


def remains(network: str, state: Path) -> list[str]:
    """Namespaces, links, mounts and processes of a lab, by its network's name and its folder, as words for a person."""
    found = [f"folder {state}"] if state.exists() else []
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    found += [f"network namespace {line.split()[0]}" for line in names.splitlines() if network in line]
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    found += [f"link {line.split()[1]}" for line in links.splitlines() if network in line]
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    found += [f"mount {line.split()[1]}" for line in mounts if str(state) in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if str(state) in words:
            found.append(f"process {process.name} ({words[:60].strip()})")
    return found

"""Where this machine gets Debian from: its own apt sources and apt settings, never a host name of ours."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from providers.sandbox.boxes.errors import NoMirror

MIRROR_VARIABLE = "BURSTD_DEBIAN_MIRROR"
_SUITES = {
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
}
_PASSED_SETTINGS = ("Acquire::Check-", "Acquire::http", "Acquire::https", "Acquire::Retries")
_ONE_LINE = re.compile(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(.+)$")


@dataclass(frozen=True, slots=True)
class AptSource:
    """One archive of a sources file."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]

    def is_debian_main(self) -> bool:
        """Whether a whole Debian release is served there (not only its security or backports part)."""
        return "main" in self.components and any(s in _SUITES for s in self.suites)


def sources(etc_apt: Path) -> Iterator[AptSource]:
    """Every enabled binary archive in sources.list and sources.list.d, in apt's order."""
    files = [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]
    for file in files:
        if not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if file.suffix == ".list":
            yield from _one_line_style(text)
        elif file.suffix == ".sources":
            yield from _deb822_style(text)


def _one_line_style(text: str) -> Iterator[AptSource]:
    for line in text.splitlines():
        match = _ONE_LINE.match(line.strip())
        if match:
            uri, suite, components = match.groups()
            yield AptSource(uri, (suite,), tuple(components.split("#")[0].split()))


def _deb822_style(text: str) -> Iterator[AptSource]:
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[name] = fields.get(name, "") + " " + line.strip()
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        for uri in fields.get("uris", "").split():
            yield AptSource(uri, tuple(fields.get("suites", "").split()), tuple(fields.get("components", "").split()))


def mirror(etc_apt: Path = Path("/etc/apt")) -> str:
    """The URI of the Debian archive that this machine uses. $BURSTD_DEBIAN_MIRROR wins. Raises NoMirror."""
    chosen = os.environ.get(MIRROR_VARIABLE)
    if chosen:
        return chosen
    for source in sources(etc_apt):
        if source.is_debian_main() and not source.uri.startswith(("cdrom:", "mirror+file:")):
            return source.uri
    raise NoMirror(
        f"no Debian archive is configured in {etc_apt}", f"set {MIRROR_VARIABLE} to the URI of a Debian mirror"
    )


def settings() -> list[str]:
    """The machine's apt settings on fetching (proxy, checks of dates), as lines of apt.conf."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
    return [
        line for line in dump.splitlines() if line.startswith(_PASSED_SETTINGS) and not line.rstrip(";").endswith('""')
    ]

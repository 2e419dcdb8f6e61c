"""Who on this host does what for burstd, and what each of them can do: tried in processes with their rights."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from burstd.cli.checks import rights_probe
from burstd.cli.checks.rights_probe import Request, subjects_of
from burstd.settings import Settings
from burstd.slurm.config.check import SlurmConfFinding

_SLURM_USER = re.compile(r"\((\d+)\)$")
_PROBE_TIMEOUT_S = 180.0
"""A store and clouds that do not answer are waited for in it."""
_UNITS = (Path("/etc/systemd/system"), Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
_PROGRAMS = ("ResumeProgram", "SuspendProgram", "ResumeFailProgram", "PrologSlurmctld")


def rights_findings(
    settings: Settings, file: Path, config: Mapping[str, str], clouds: Sequence[str]
) -> Iterator[SlurmConfFinding]:
    """What burstd's user cannot do with its files, store, workers and clouds, and SlurmUser with burstd's programs.

    ``config``: what slurmctld says of its settings. ``clouds``: providers to be asked for their offers.
    """
    slurm_uid = _slurm_uid(config)
    requests: dict[int, Request] = {}
    own: Request = {"settings": str(file.absolute()), "clouds": list(clouds), "given": _given_by_systemd(settings)}
    requests[_burstd_uid(settings, slurm_uid)] = own
    if slurm_uid is not None:
        programs = {name: [path] for name in _PROGRAMS if "/burstd-" in (path := config.get(name, ""))}
        conf = config.get("SLURM_CONF", "") or str(settings.slurm.conf or "/etc/slurm/slurm.conf")
        if settings.staging.enabled:
            programs |= _programs_of_lua(Path(conf).parent / "burst_buffer.lua")
        of_slurm: Request = requests.setdefault(slurm_uid, {})
        of_slurm["programs"], of_slurm["spool"] = programs, str(settings.daemon.spool_dir)
    for uid, request in requests.items():
        if uid == os.geteuid():
            yield from rights_probe.probe(request)
        elif os.geteuid() == 0:
            yield from _probe_as(uid, request)
        else:
            yield SlurmConfFinding(
                subjects_of(request), f"tried by root or {user_text(uid)}", user_text(os.geteuid()),
                "whether it can be used is not known", "run burstctl check as root", recommended=True,
            )  # fmt: skip


def file_findings(settings: Settings, file: Path) -> list[SlurmConfFinding]:
    """What burstd's user lacks of the settings file and the files that it names, where root asks."""
    uid = _burstd_uid(settings, None)
    if os.geteuid() != 0 or uid == 0:
        return []
    request: Request = {"settings": str(file.absolute()), "given": _given_by_systemd(settings), "files_only": True}
    return _probe_as(uid, request)


def user_text(uid: int) -> str:
    """``user slurm``, or ``user id 64030`` where there is no such account."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user id {uid}"


def _burstd_uid(settings: Settings, slurm_uid: int | None) -> int:
    """Who owns burstd's state; before its first start SlurmUser, whom the unit names."""
    try:
        return settings.daemon.state_dir.stat().st_uid
    except OSError:
        return os.geteuid() if slurm_uid is None else slurm_uid


def _slurm_uid(config: Mapping[str, str]) -> int | None:
    found = _SLURM_USER.search(config.get("SlurmUser", ""))
    return int(found[1]) if found else None


def _given_by_systemd(settings: Settings) -> list[str]:
    """The munge key, where the unit shows burstd what only root and munge may read."""
    key = str(settings.node.munge_key)
    units = [unit for folder in _UNITS for unit in folder.glob("burstd.service*/*.conf")]
    for unit in [*units, *(folder / "burstd.service" for folder in _UNITS)]:
        with suppress(OSError):
            if re.search(rf"(?m)^LoadCredential=[^#]*:{re.escape(key)}$", unit.read_text("utf-8", "replace")):
                return [key]
    return []


def _programs_of_lua(file: Path) -> dict[str, list[str]]:
    """Where burst_buffer.lua looks for burstd-stage; nothing where it does not say."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    client = re.search(r'(?m)^local client = "(.+)"', text)
    folders = re.search(r"(?m)^local folders = \{(.*)\}", text)
    paths = (
        [client[1]] if client else [f"{p}/burstd-stage" for p in re.findall('"(.+?)"', folders[1] if folders else "")]
    )
    return {str(file): paths} if paths else {}


def _probe_as(uid: int, request: Request) -> list[SlurmConfFinding]:
    """Has a process with this user's rights try; it begins as root, so that it may load burstd from anywhere."""
    try:
        entry = pwd.getpwuid(uid)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        user: dict[str, Any] = {"uid": uid, "gid": entry.pw_gid, "groups": groups, "home": entry.pw_dir}
    except KeyError:
        user = {"uid": uid, "gid": uid, "groups": [], "home": "/"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", rights_probe.__name__], input=json.dumps({"user": user, "request": request}),
            capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True,
            # Not root's own credentials of clouds.
            env={"PATH": os.defpath, "HOME": user["home"], "LANG": "C.UTF-8"},
        )  # fmt: skip
        return [SlurmConfFinding(**row) for row in json.loads(done.stdout)]
    except subprocess.TimeoutExpired:
        why = f"no end within {_PROBE_TIMEOUT_S:.0f} s"
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip().splitlines() or [f"exit status {error.returncode}"])[-1]
    except OSError as error:
        why = str(error)
    breaks = "whether it can be used is not known"
    wanted = f"a process with the rights of {user_text(uid)}"
    return [SlurmConfFinding(subjects_of(request), wanted, why, breaks, "run burstctl check as that user")]

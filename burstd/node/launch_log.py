"""Why a job did not start on a machine, by its slurmd's log.

The words are those of Slurm 22.05 to 26.05 (slurmd's req.c, slurmstepd's io.c and mgr.c), as seen on each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from burstd.domain.launch_failure import Blame, LaunchFault

_QUOTED = 200
"""Characters of a line that a message quotes."""
_FILE = re.compile(r"Could not open (stdout|stderr|stdin) file (.*)")
_QUOTED_FILE = re.compile(r"'(.*)': '([^']*)'(?:\. Recursive path creation failed.*)?")
_FILES = {"stdout": "output", "stderr": "error output", "stdin": "input"}
_FULL = "No space left on device"
_BROKEN = frozenset(
    {
        "Transport endpoint is not connected", "Input/output error", "Stale file handle", "Read-only file system",
        "Connection timed out",
    }
)  # fmt: skip
_NO_USER = re.compile(r"(?:uid|UID) ([0-9]{1,10}) not found|User not found on host")
_PROLOG_SAID = re.compile(r"prolog failed: rc:(-?[0-9]{1,5}) output:(.*)")
_NO_PROLOG = re.compile(r"[Pp]rolog: Unable to create list of paths \[(.{1,200}?)\]")
_STEPD = re.compile(r"slurmstepd failed to send return code|Can not read return code from slurmstepd")
_REFUSES_US = re.compile(r"Invalid job credential|Munge decode failed: .*|has authentication error")
_ERROR = re.compile(r"(?:error|fatal): (.*)")
_LAUNCH = re.compile(r"Launching batch|launch task")
_ANY_JOB = re.compile(r"\[[0-9]+\.|\[job [0-9]+\]|JobId=[0-9]|batch job [0-9]")
_FULL_DISK = LaunchFault("its disk is full", "give the machine a larger disk, or see what fills it", Blame.UNUSABLE)


def launch_fault(lines: Sequence[str], number: str, *, held: bool) -> LaunchFault | None:
    """Why the job with Slurm's number ``number`` did not start; None: the log has nothing of it.

    ``held``: Slurm holds it, as no process could be started for it. Else slurmstepd ran, and could not open its output.
    Then only slurmstepd's own lines count, and of these the end, as a user chooses the path.
    """
    if not held:
        return _output_fault([line for line in lines if line.startswith(f"[{number}.")])
    own = _of_job(lines, number)
    if not own:
        return None
    text = "\n".join(own)
    if _FULL in text:
        return _FULL_DISK
    if "prolog failed" in text:
        return _prolog_fault(text)
    if found := _NO_USER.search(text):
        who = f"uid {found[1]}" if found[1] else "the job's user"
        return LaunchFault(
            f"{who} is not known there", "make the image ask the directory that the head asks", Blame.UNHEALTHY
        )
    errors = [found[1] for line in own if (found := _ERROR.search(line))]
    said = [error[:_QUOTED] for error in errors if not _STEPD.search(error)]
    if errors and not said:
        return LaunchFault("slurmstepd does not start there", "see slurmd's log on the node", Blame.UNHEALTHY)
    if found := _REFUSES_US.search(text):
        return LaunchFault(
            f"munge or the clock is wrong there ('{found[0][:_QUOTED]}')", "see munge.service and chrony in the image",
            Blame.UNHEALTHY,
        )  # fmt: skip
    cause = f"slurmd says '{said[-1]}'" if said else "slurmd's log does not say why"
    return LaunchFault(cause, "see slurmd's log on the node", Blame.UNCLEAR)


def _output_fault(own: Sequence[str]) -> LaunchFault | None:
    found = next((found for line in own if (found := _FILE.search(line))), None)
    if found is None:
        errors = [found[1][:_QUOTED] for line in own if (found := _ERROR.search(line))]
        cause = f"slurmstepd says '{errors[-1]}'" if errors else "slurmd's log does not say why"
        return LaunchFault(cause, "see slurmd's log on the node", Blame.JOB) if own else None
    quoted = _QUOTED_FILE.fullmatch(found[2])
    path, error = (quoted[1], quoted[2]) if quoted else found[2].rpartition(": ")[::2]
    what = f"the job's {_FILES[found[1]]} {path[:_QUOTED]} cannot be opened there ({error[:_QUOTED]})"
    if error == _FULL:
        # The path may be in a tree that all nodes share: no machine in its place would be better.
        return LaunchFault(what, "make room there, or let --output and --error name another directory", Blame.UNCLEAR)
    if error in _BROKEN:
        return LaunchFault(what, "its file system is broken there: see the mounts of the node", Blame.UNCLEAR)
    folder = path.rpartition("/")[0][:_QUOTED] or "/"
    why = f"{folder} is none that its user may write to"
    return LaunchFault(what, f"let --output and --error name a directory that the node has: {why}", Blame.JOB)


def _of_job(lines: Sequence[str], number: str) -> list[str]:
    """What is of this job: lines that name it, those up to the next launch, and what its Prolog said before.

    slurmd's own lines about slurmstepd name no job.
    """
    named = re.compile(rf"\[{re.escape(number)}\.|\[job {re.escape(number)}\]|(?:JobId=|job ){re.escape(number)}\b")
    mine = [i for i, line in enumerate(lines) if named.search(line)]
    prologs = [i for i in mine if "prolog failed" in lines[i]]
    if prologs:
        last = prologs[-1]
        return [line for line in lines[max(0, last - 3) : last + 1] if "rolog" in line]
    last = max((i for i in mine if _LAUNCH.match(lines[i])), default=-1)
    own = [lines[i] for i in mine if i > last]
    if last >= 0:
        until = next((i for i, line in enumerate(lines) if i > last and _LAUNCH.match(line)), len(lines))
        own = [lines[last], *own, *(line for line in lines[last + 1 : until] if not _ANY_JOB.search(line))]
    return own


def _prolog_fault(text: str) -> LaunchFault:
    if found := _NO_PROLOG.search(text):
        cause = f"the Prolog {found[1]} is not there"
        return LaunchFault(cause, "put it into the image, or take it out of slurm.conf", Blame.UNHEALTHY)
    said = _PROLOG_SAID.search(text)
    words = f": {said[2].strip()[:_QUOTED]}" if said and said[2].strip() else ""
    status = f" (exit status {said[1]}{words})" if said else ""
    return LaunchFault(f"the Prolog fails there{status}", "mend what Prolog= of slurm.conf runs", Blame.UNHEALTHY)

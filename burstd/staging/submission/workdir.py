"""The working directory as an input: whether it may be sent, what of it is, and how large it may be."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Sequence

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore import GitIgnorePatternError

from burstd.domain.mounts import NO_WORKDIR_DIRECTORIES, contains
from burstd.domain.staging import WorkdirRules
from burstd.domain.units import size_text
from burstd.transfer.privsep.client import Account, SourceSize, UserWorker, UserWorkerError, printable
from burstd.transfer.trees.ignore import MAX_REGEX_CHARS, MAX_RULES

IGNORE_FILE = ".burstignore"
MAX_IGNORE_BYTES = 16 << 10
_MAX_PATTERN_CHARS = 1000
_ALWAYS_IGNORED = (".burst-*",)
"""Files that burstd has not finished."""
_SHOWN_PARTS = 3


def workdir_location_fault(path: str, home: str) -> str:
    """Why a job's working directory cannot be staged, by its path; empty: it can."""
    location = posixpath.normpath(path)
    if not path.startswith("/") or not location.isprintable() or location.startswith("//"):
        return f"{printable(path)!r} is no absolute path that can be printed"
    if location != (path.rstrip("/") or "/"):
        # The kernel follows a link before ".."; burstd would send one directory and deliver into another.
        return f"{printable(path)} has '.', '..' or '//' in it: name it as {location} with sbatch --chdir"
    if contains(location, posixpath.normpath(home)):
        what = "your home directory, with its keys and passwords" if location == home else "above your home directory"
        return f"{location} is {what}: {_ELSEWHERE}"
    for directory in NO_WORKDIR_DIRECTORIES:
        if contains(directory, location) or contains(location, directory):
            return f"{directory} of a node is its own, so {location} cannot be copied there: {_ELSEWHERE}"
    return ""


_ELSEWHERE = "submit the job in a directory of its own, or name one with sbatch --chdir"


def check_workdir(worker: UserWorker, path: str, who: Account) -> None:
    """Raises UserWorkerError, with a sentence, where the directory cannot be staged for this user."""
    if fault := workdir_location_fault(path, who.home):
        raise UserWorkerError(path, errno.EINVAL, fault)
    (there,) = worker.file_facts(path, [""])
    try:
        (home,) = worker.file_facts(who.home, [""])
    except UserWorkerError:
        return
    if there is not None and home is not None and (there.dev, there.ino) == (home.dev, home.ino):
        raise UserWorkerError(path, errno.EINVAL, workdir_location_fault(who.home, who.home))


def read_ignore_rules(worker: UserWorker, path: str, rules: WorkdirRules) -> list[tuple[bool, str]]:
    """What of the directory is not staged: the site's lines, then those of its ignore file.

    Raises UserWorkerError, with a sentence, where the file cannot be used.
    """
    lines: list[str] = []
    try:
        (fd,) = worker.open_files(path, [IGNORE_FILE])
    except UserWorkerError as error:
        if error.errno != errno.ENOENT:
            raise
    else:
        with os.fdopen(fd, "rb") as file:
            text = file.read(MAX_IGNORE_BYTES + 1)
        if len(text) > MAX_IGNORE_BYTES:
            raise _ignore_fault(path, f"is larger than {size_text(MAX_IGNORE_BYTES)}")
        lines = os.fsdecode(text).splitlines()
    try:
        return compile_ignore_lines([*_ALWAYS_IGNORED, *rules.ignore, *lines])
    except ValueError as error:
        raise _ignore_fault(path, str(error)) from None


def compile_ignore_lines(lines: Sequence[str]) -> list[tuple[bool, str]]:
    """Lines in the syntax of .gitignore as rows of IgnoreRules. Raises ValueError, with a part of a sentence."""
    # Before they are compiled, which holds up the whole daemon.
    patterns = [line for line in lines if line.strip() and not line.startswith("#")]
    if len(patterns) > MAX_RULES:
        raise ValueError(f"has more than {MAX_RULES} patterns")
    if any(len(line) > _MAX_PATTERN_CHARS for line in patterns):
        raise ValueError(f"has a pattern that is longer than {_MAX_PATTERN_CHARS} characters")
    try:
        spec = GitIgnoreSpec.from_lines(patterns)
    except GitIgnorePatternError as error:
        raise ValueError(f"has a line that is no pattern: {error}") from None
    rows = [
        (pattern.include, str(pattern.regex.pattern))
        for pattern in spec.patterns
        if pattern.include is not None and pattern.regex is not None
    ]
    if any(len(regex) > MAX_REGEX_CHARS for _, regex in rows):
        raise ValueError("has a pattern that is too long")
    return rows


def _ignore_fault(path: str, what: str) -> UserWorkerError:
    where = f"{path}/{IGNORE_FILE}"
    return UserWorkerError(where, errno.EINVAL, f"{printable(where)} {what}")


def workdir_size_fault(path: str, found: SourceSize, rules: WorkdirRules) -> str:
    """Why a directory of this size is not staged, with what to do; empty: it is small enough."""
    if found.size <= rules.max_bytes and found.entries <= rules.max_files:
        return ""
    more = "" if found.complete else " and more"
    largest = ", ".join(
        f"{printable(name)} ({size_text(size)} in {entries})" for name, size, entries in found.largest[:_SHOWN_PARTS]
    )
    return (
        f"the working directory {printable(path)} has {size_text(found.size)} in {found.entries} files and directories"
        f"{more}; the most is {size_text(rules.max_bytes)} in {rules.max_files}. The largest are {largest}. Name in "
        f"{IGNORE_FILE} what the job does not need, or stage it with a line of its own (#BURST stage_in)"
    )


def paths_inside(directory: str, paths: Sequence[str]) -> dict[str, str]:
    """Of absolute paths those that lie in a directory, each with its path in it."""
    above = posixpath.normpath(directory)
    normal = {path: posixpath.normpath(path) for path in paths if path.startswith("/")}
    return {path: where[len(above) + 1 :] for path, where in normal.items() if where.startswith(f"{above}/")}

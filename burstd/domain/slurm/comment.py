"""A job's comment in Slurm (``squeue -o %k``), which its user and burstd share.

A comment of the user's is his alone, but one that begins with ``burst:`` speaks to burstd (see the policy broker):
there burstd's line follows behind his words. Where he has left none the comment is burstd's::

    burstd: waits: no slot of pool gpu is free
    burst: nvidia-gpu=3 mem=300 -- burstd: node gpu1 is booting, about 2 min
"""

from __future__ import annotations

STATUS_PREFIX = "burstd: "
"""How burstd's line begins."""
REQUEST_PREFIX = "burst:"
"""How a user's comment begins that speaks to burstd, in upper or lower case."""
IDLE_ALLOWED = "idle=allow"
"""The user's word by which GPUs of a job may be idle: it requires nothing of a machine."""
_BETWEEN = f" -- {STATUS_PREFIX}"


def split_comment(comment: str) -> tuple[str, str]:
    """What the user wrote, and burstd's line without its beginning; each may be empty."""
    if comment.startswith(STATUS_PREFIX):
        return "", comment.removeprefix(STATUS_PREFIX)
    if not is_for_burstd(comment):
        return comment, ""
    users, _, status = comment.rpartition(_BETWEEN) if _BETWEEN in comment else (comment, "", "")
    return users, status


def join_comment(users: str, status: str) -> str:
    """The comment with both. Words of the user's that do not speak to burstd stay alone; no line: his words."""
    if not users:
        return STATUS_PREFIX + status if status else ""
    return f"{users}{_BETWEEN}{status}" if status and is_for_burstd(users) else users


def allows_idle_gpus(comment: str) -> bool:
    """True where the user's words have ``idle=allow``: the job may leave its GPUs idle."""
    return any(word.lower() == IDLE_ALLOWED for word in _words(comment))


def has_unknown_idle_word(comment: str) -> bool:
    """True where the user's words have another value of ``idle``, which means nothing."""
    return any(word.lower().startswith("idle=") and word.lower() != IDLE_ALLOWED for word in _words(comment))


def requirements_text(comment: str) -> str:
    """The words behind ``burst:`` that say what machine the job needs; empty: there are none."""
    return " ".join(word for word in _words(comment) if word.lower() != IDLE_ALLOWED)


def _words(comment: str) -> list[str]:
    return split_comment(comment)[0][len(REQUEST_PREFIX) :].split() if is_for_burstd(comment) else []


def is_for_burstd(comment: str) -> bool:
    """True for a comment that speaks to burstd."""
    return comment[: len(REQUEST_PREFIX)].lower() == REQUEST_PREFIX

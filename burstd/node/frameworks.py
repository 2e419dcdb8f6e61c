"""Shows that what jobs may ask for as a feature works on a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files

from burstd.domain.cloud.quoting import one_line
from burstd.domain.framework import Framework
from burstd.domain.plugins.shell import CommandShell, CommandTimedOut
from burstd.node.errors import CommandFailed
from burstd.node.expected import CheckFailure
from burstd.node.facts import MachineFacts

FRAMEWORKS = "frameworks"
"""The check's name."""
_ANSWER_S = 15.0


def framework_failures(session: CommandShell, frameworks: Sequence[Framework], *, gpus: bool) -> Iterator[CheckFailure]:
    """Those that do not work for an ordinary user; ``gpus``: images get the machine's GPUs.

    Raises CommandFailed where the machine does not end a check, ConnectionLost.
    """
    script = files("burstd.node").joinpath("scripts", "framework.sh").read_text(encoding="utf-8")
    for framework in frameworks:
        arguments = [
            framework.name, framework.checksum, f"{framework.limit_s:g}", "gpu" if gpus else "", framework.image,
            framework.check, *framework.modules,
        ]  # fmt: skip
        try:
            done = session.script(script, *arguments, timeout_s=framework.limit_s + _ANSWER_S)
        except CommandTimedOut:
            raise CommandFailed(
                f"the check of framework {framework.name} does not end within {framework.limit_s:.0f} s",
                rc=-1,
                err="",
                cause=FRAMEWORKS,
            ) from None
        if done.rc != 0:
            lines = [line for line in done.out.splitlines() if line.strip()]
            found = f"'{one_line(lines[-1] if lines else done.last_line, 400)}' (exit status {done.rc})"
            yield CheckFailure(
                FRAMEWORKS, f"success of '{framework.check}' in {framework}", found,
                f"Bring it into the image, or take {framework.name} out of the pool's frameworks",
            )  # fmt: skip


def unproven_frameworks(facts: MachineFacts, frameworks: Sequence[Framework]) -> Iterator[CheckFailure]:
    """Those that were not shown to work on a machine that was validated, as they were declared later."""
    if facts.uid != 0:
        return  # Nothing is kept there of what was shown.
    for framework in frameworks:
        if facts.frameworks.get(framework.name) != framework.checksum:
            remedy = "Drain the node (burstctl node drain NODE): the machine after it is tested"
            yield CheckFailure(FRAMEWORKS, f"{framework} tested", "declared, or changed, after it opened", remedy)

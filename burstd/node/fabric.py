"""How fast two machines reach each other: one end of a program waits on the first, the other runs on the second.

What perftest's programs print is at https://github.com/linux-rdma/perftest, that of nccl-tests at
https://github.com/NVIDIA/nccl-tests.
"""

from __future__ import annotations

import re
import secrets
import shlex
from importlib.resources import files
from pathlib import PurePosixPath

from burstd.domain.cloud.offer import FabricTest
from burstd.domain.cloud.quoting import one_line
from burstd.domain.plugins.shell import CommandTimedOut, CompletedCommand, Shell
from burstd.node.errors import ValidationFailed

FABRIC_TEST = "fabric_test"
_PERFTEST = re.compile(r"ib_(write|read|send)_bw")
_NUMBER = r"(\d{1,12}(?:\.\d{1,12})?)"
_PERFTEST_ROW = re.compile(rf"^[ \t]*\d+[ \t]+\d+[ \t]+[\d.]+[ \t]+{_NUMBER}(?:[ \t]|$)", re.MULTILINE)
"""Bytes, iterations, peak, average, and more that is not read; in Gbit/s."""
_NCCL_TESTS = re.compile(rf"^# Avg bus bandwidth\s*:\s*{_NUMBER}", re.MULTILINE)
_OTHER = re.compile(rf"{_NUMBER} GB/s\s*\Z")
_PORTS = range(18515, 28515)
"""From perftest's own on. A test that a burstd before this one began may still have its port."""
_SECONDS = 5
"""Of each measurement by perftest."""
_START_S = 15.0
_ANSWER_S = 5.0
_NOT_FOUND = 127


def measure(first: Shell, second: Shell, address: str, test: FabricTest) -> float:
    """GB/s between the two, of which ``address`` is the first.

    Raises ValidationFailed where the program is not there, fails, takes too long or gives no figure; ConnectionLost.
    """
    words = shlex.split(test.command)
    perftest = _PERFTEST.fullmatch(PurePosixPath(words[0]).name) is not None
    port = secrets.choice(_PORTS)
    more = ["-F", "--report_gbits", "-D", str(_SECONDS), "-p", str(port)] if perftest else []
    common = (f"{test.limit_s:g}", str(port), address)
    script = files("burstd.node").joinpath("scripts", "fabric_test.sh").read_text(encoding="utf-8")
    try:
        started = first.script(script, "listen" if perftest else "start", *common, *words, *more, timeout_s=_START_S)
        _require_success(started, test)
        more += [address] if perftest else []
        done = second.script(script, "run", *common, *words, *more, timeout_s=test.limit_s + _ANSWER_S)
    except CommandTimedOut as error:
        raise ValidationFailed(f"the test of the fabric does not end: {error}", cause=FABRIC_TEST) from None
    _require_success(done, test)
    found = (_PERFTEST_ROW if perftest else _NCCL_TESTS).findall(done.out) or _OTHER.findall(done.out)
    if not found:
        raise ValidationFailed(
            f"'{test.command}' gives no figure: '{one_line(done.last_line)}'", cause=FABRIC_TEST
        )  # fmt: skip
    return float(found[-1]) / 8 if perftest else float(found[-1])


def _require_success(done: CompletedCommand, test: FabricTest) -> None:
    if done.rc == _NOT_FOUND:
        program = shlex.split(test.command)[0]
        why = f"there is no {program}: install it in the image, or take fabric_test out of the pool"
        raise ValidationFailed(why, cause=FABRIC_TEST)
    if done.rc != 0:
        why = f"'{test.command}' failed: '{one_line(done.last_line)}' (exit status {done.rc})"
        raise ValidationFailed(why, cause=FABRIC_TEST)

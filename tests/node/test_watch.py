"""How a machine learns that its cloud takes it back, or that a GPU has a fault; programs play Slurm and the cloud."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

import pytest

from burstd.domain.health import HealthRules, Verdict, verdict_table, xid_verdict
from burstd.domain.slurm.node import Node
from burstd.node.own_nodes import own_watch_script
from burstd.planner.lifecycle.spot_notices import notes_of_job, parse_reason

ENDS = "interruption, ends 2026-11-21T12:02:00Z"
AT = "interruption 1795262520"
_SINFO = 'test ! -e "$0.broken" || exit 1; cat "$0.says"'
# The update is what sinfo shows from then on; the first ones may be refused.
_SCONTROL = """
echo "$@" >>"$0.calls"
left=$(cat "$0.refusals"); echo $((left - 1)) >"$0.refusals"
[ "$left" -le 0 ] || exit 1
for word; do case $word in Reason=*) echo "draining|${word#Reason=}" >"${0%scontrol}sinfo.says" ;; esac; done
"""
# Each round's sleep moves the cloud's word on by a line, and Slurm may forget; at the last the loop is ended.
_SLEEP = """
echo "$1" >>"$0.calls"
case $1 in *.*) exit ;; esac
[ ! -e "$0.awaits" ] || until [ -e "$(cat "$0.awaits")" ]; do /bin/sleep 0.05; done
[ ! -e "$0.forgets" ] || cp "$0.forgets" "${0%sleep}sinfo.says"
sed -i 1d "$0.notices"
[ -s "$0.notices" ] || kill "$PPID"
"""


class WatchedMachine:
    """One machine whose cloud says these words, one each round; ``sick``: what is known of its GPUs."""

    def __init__(self, folder: Path, said: Sequence[str], node: str, refusals: int = 0, sick: str = "") -> None:
        self._folder = folder
        self._watch = folder / "watch"
        self._watch.mkdir()
        if sick:
            (self._watch / "unhealthy").write_text(sick + "\n", encoding="utf-8")
        for name, text in (("sinfo", _SINFO), ("scontrol", _SCONTROL), ("sleep", _SLEEP)):
            (folder / name).write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
            (folder / name).chmod(0o755)
        (folder / "sinfo.says").write_text(node + "\n", encoding="utf-8")
        (folder / "scontrol.refusals").write_text(str(refusals), encoding="utf-8")
        (folder / "scontrol.calls").touch()
        (folder / "sleep.calls").touch()
        (folder / "sleep.notices").write_text("\n".join([*said, ""]), encoding="utf-8")
        (self._watch / "notice.sh").write_text(f"head -n 1 {folder}/sleep.notices\n", encoding="utf-8")
        loop = files("burstd.node").joinpath("scripts", "watch.sh").read_text(encoding="utf-8")
        self._loop = loop.replace("PATH=/usr/sbin", f"PATH={folder}:/usr/sbin")
        assert self._loop != loop

    def run(self, *more: str, ends_with: int = -signal.SIGTERM) -> None:
        """Until the cloud has nothing more to say. ``more``: arguments of the loop; ``ends_with``: its status."""
        words = ["sh", "-c", self._loop, "sh", "cl1", str(self._watch), *more]
        loop = subprocess.Popen(words, env=dict(os.environ), start_new_session=True)
        try:
            assert loop.wait(60) == ends_with
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(loop.pid, signal.SIGKILL)

    def _pauses(self) -> list[str]:
        return (self._folder / "sleep.calls").read_text(encoding="utf-8").split()

    @property
    def rounds(self) -> list[int]:
        """How long it waited after each round, in seconds."""
        return [int(pause) for pause in self._pauses() if "." not in pause]

    @property
    def by_chance(self) -> list[float]:
        """How long it waited so as not to come with all others."""
        return [float(pause) for pause in self._pauses() if "." in pause]

    @property
    def reasons(self) -> list[str]:
        """What Slurm was told."""
        lines = (self._folder / "scontrol.calls").read_text(encoding="utf-8").splitlines()
        assert all(line.startswith("update NodeName=cl1 State=") for line in lines)
        return [line.partition("Reason=")[2] or line.partition("State=")[2] for line in lines]


@pytest.mark.parametrize(
    ("said", "node", "told"),
    [
        (["", "", AT], "allocated|none", [f"burstd: {ENDS}"]),
        (["interruption 1795262520.7"], "idle|none", [f"burstd: {ENDS}"]),
        (["interruption soon"], "idle|none", ["burstd: interruption"]),
        (["rebalance", "rebalance"], "mixed|none", ["burstd: rebalance hint"]),
        (["rebalance", AT, AT], "mixed|none", ["burstd: rebalance hint", f"burstd: {ENDS}"]),
        ([AT], "draining|bad disk", [f"bad disk; burstd: {ENDS}"]),
        ([AT], "drained*|bad disk; burstd: rebalance hint", [f"bad disk; burstd: {ENDS}"]),
        ([AT], "idle|burstd: interruption, ends 2026-01-01T00:00:00Z", [f"burstd: {ENDS}"]),
        ([AT], f"draining|burstd: {ENDS}", []),
        (["rebalance"], f"draining|burstd: {ENDS}", []),
        (["", "what?"], "idle|none", []),
        ([AT, AT], "idle~|none", []),
        ([AT], "idle%|none", []),
        ([AT], "mixed#|none", [f"burstd: {ENDS}"]),
        ([AT], "mixed!|none", [f"burstd: {ENDS}"]),
    ],
)
def test_what_a_machine_tells_slurm(tmp_path: Path, said: list[str], node: str, told: list[str]) -> None:
    played = WatchedMachine(tmp_path, said, node)
    played.run()
    assert played.reasons == told
    assert all(parse_reason(reason) for reason in told)


@pytest.mark.parametrize(
    ("said", "forgotten", "times"),
    [(AT, "allocated|none", 4), ("rebalance", "allocated|none", 1), (AT, "idle#|none", 1), (AT, "idle~|none", 1)],
)
def test_a_slurm_that_forgot_an_interruption_is_told_again(
    tmp_path: Path, said: str, forgotten: str, times: int
) -> None:
    played = WatchedMachine(tmp_path, [said] * 4, "allocated|none")
    (tmp_path / "sleep.forgets").write_text(forgotten + "\n", encoding="utf-8")
    played.run()
    assert len(played.reasons) == times
    assert played.rounds == [30 if said == AT else 5] * 4


def test_slurm_is_told_until_it_has_heard(tmp_path: Path) -> None:
    played = WatchedMachine(tmp_path, [AT] * 7, "allocated|none", refusals=5)
    played.run()
    assert played.reasons == [f"burstd: {ENDS}"] * 6
    assert played.rounds == [5, 10, 20, 30, 30, 30, 30]


def test_a_slurm_that_is_not_there_ends_nothing(tmp_path: Path) -> None:
    played = WatchedMachine(tmp_path, [AT] * 3, "")
    (tmp_path / "sinfo.broken").touch()
    played.run()
    assert played.reasons == []
    assert played.rounds == [5, 10, 20]


@pytest.mark.slow
def test_machines_that_hear_of_their_end_at_once_do_not_come_at_once(tmp_path: Path) -> None:
    """A pause at the start, and one each time before slurmctld is told something new."""
    played = WatchedMachine(tmp_path, ["", *[AT] * 40], "allocated|none", refusals=38)
    played.run()
    assert len(played.by_chance) == 1 + 39
    assert len(set(played.by_chance)) > 10
    assert max(played.by_chance) < 4


@pytest.mark.parametrize(
    "name",
    [
        "conditions.sh",
        "fabric_test.sh",
        "framework.sh",
        "gpu_states.sh",
        "kernel_log.sh",
        "reuse.sh",
        "watch.sh",
        "watching.sh",
    ],
)
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say(name: str) -> None:
    script = files("burstd.node").joinpath("scripts", name).read_text(encoding="utf-8")
    said = subprocess.run(["shellcheck", "-s", "sh", "-"], input=script, capture_output=True, text=True, check=False)
    assert said.stdout == ""


def xid(number: int, gpu: str = "0000:2b:00.0", jobs: str = "jobs are requeued") -> str:
    return f"burstd: unhealthy, Xid {number} on GPU {gpu} at 2026-11-24T05:53:00Z, {jobs}"


SICK, ILL = xid(79), xid(48, jobs="jobs end first")


@pytest.mark.parametrize(
    ("said", "node", "sick", "told"),
    [
        ([""], "allocated|none", SICK, [SICK]),
        ([""] * 3, "idle|none", ILL, [ILL]),
        ([""], "draining|looks bad", SICK, [f"looks bad; {SICK}"]),
        ([""], f"draining|looks bad; {ILL}", SICK, [f"looks bad; {SICK}"]),
        ([""], f"draining|{SICK}", ILL, []),
        ([""], f"draining|{xid(79, 'ff:00.0')}", SICK, []),
        ([""], f"draining|burstd: {ENDS}", SICK, []),
        ([""], "draining|looks bad; burstd: rebalance hint", ILL, [f"looks bad; {ILL}"]),
        ([""], f"idle|{SICK}", SICK, [SICK]),
        ([""], "idle~|none", SICK, []),
        ([AT], "allocated|none", SICK, [f"burstd: {ENDS}"]),
        (["", AT], "allocated|none", SICK, [SICK, f"burstd: {ENDS}"]),
        (["rebalance", "rebalance"], "allocated|none", SICK, [SICK]),
        (["rebalance"], f"draining|{ILL}", "what is this?", []),
    ],
)
def test_what_a_machine_with_a_fault_tells_slurm(
    tmp_path: Path, said: list[str], node: str, sick: str, told: list[str]
) -> None:
    played = WatchedMachine(tmp_path, said, node, sick=sick)
    played.run()
    assert played.reasons == told
    assert all(parse_reason(reason) for reason in told)


def test_a_fault_is_told_until_slurm_has_heard_and_holds_it(tmp_path: Path) -> None:
    """At once: only what many machines hear at one instant waits by chance."""
    played = WatchedMachine(tmp_path, [""] * 5, "allocated|none", refusals=2, sick=SICK)
    played.run()
    assert (played.reasons, played.rounds) == ([SICK] * 3, [5, 10, 30, 30, 30])
    assert len(played.by_chance) == 1, "the one at the start"


def test_a_mild_fault_is_told_every_half_minute_and_worse_at_once(tmp_path: Path) -> None:
    played = WatchedMachine(tmp_path, [*[""] * 13, AT], "allocated|none", sick=ILL)
    (tmp_path / "sleep.forgets").write_text("allocated|none\n", encoding="utf-8")
    played.run()
    assert (played.reasons, played.rounds) == ([ILL] * 3 + [f"burstd: {ENDS}"], [5] * 13 + [30])


FULL = "burstd: unusable, /var is full at 2026-11-24T05:53:00Z, jobs end first"


@pytest.mark.parametrize(
    ("node", "sick", "told"),
    [
        ("allocated|none", SICK, [SICK.replace("are requeued", "end first")]),
        ("allocated|none", FULL, [FULL]),
        ("draining|looks bad", FULL, [f"looks bad; {FULL}"]),
        (f"draining|{FULL}", "", ["UNDRAIN"]),
        (f"drained*|{FULL}", "", ["UNDRAIN"]),
        (f"draining|looks bad; {FULL}", "", []),
        (f"draining|{ILL}", "", []),
        (f"idle|{FULL}", "", []),
        ("draining|looks bad", "", []),
        ("idle|none", "", []),
    ],
)
def test_what_a_node_of_the_site_tells_slurm(tmp_path: Path, node: str, sick: str, told: list[str]) -> None:
    """Its jobs are never requeued, and only what it has said itself, and can go away by itself, is taken back."""
    played = WatchedMachine(tmp_path, [""] * 3, node, sick=sick)
    (tmp_path / "watch/looked").touch()
    played.run("own")
    assert played.reasons == told
    assert played.rounds == [5] * 3


def test_a_person_may_overrule_what_a_node_of_the_site_says(tmp_path: Path) -> None:
    played = WatchedMachine(tmp_path, [""] * 9, "allocated|none", sick=ILL)
    (tmp_path / "watch/looked").touch()
    (tmp_path / "sleep.forgets").write_text("allocated|none\n", encoding="utf-8")
    played.run("own")
    assert played.reasons == [ILL]


def test_a_name_that_slurm_does_not_know_ends_the_watch_with_the_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    played = WatchedMachine(tmp_path, [""] * 3, "", sick=FULL)
    (tmp_path / "sinfo.says").write_text("", encoding="utf-8")
    played.run("own", ends_with=78)
    assert "Slurm knows no node cl1: add the node's name in Slurm to ExecStart=" in capfd.readouterr().err
    assert (played.reasons, played.rounds) == ([], [])


def test_a_node_of_the_site_waits_for_a_slurm_that_is_not_there(tmp_path: Path) -> None:
    played = WatchedMachine(tmp_path, [""] * 3, "idle|none", sick=FULL)
    (tmp_path / "sinfo.broken").touch()
    played.run("own")
    assert (played.reasons, played.rounds) == ([], [15] * 3)


def test_what_is_taken_back_is_in_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    played = WatchedMachine(tmp_path, [""], f"draining|{FULL}")
    (tmp_path / "watch/looked").touch()
    played.run("own")
    assert capfd.readouterr().out == f"undrained, no longer {FULL.removeprefix('burstd: ')}\n"


def test_nothing_is_taken_back_before_the_first_look(tmp_path: Path) -> None:
    played = WatchedMachine(tmp_path, [""] * 3, f"draining|{FULL}")
    played.run("own")
    assert played.reasons == []


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_for_nodes_of_the_site_is_whole(tmp_path: Path) -> None:
    script = own_watch_script(HealthRules({31: Verdict.DRAIN}))
    said = subprocess.run(["shellcheck", "-s", "sh", "-"], input=script, capture_output=True, text=True, check=False)
    assert said.stdout == ""
    runs = script.replace("exec /bin/sh", "echo")
    environment = {**os.environ, "RUNTIME_DIRECTORY": str(tmp_path)}
    done = subprocess.run(["sh", "-s", "op1"], input=runs, env=environment, capture_output=True, text=True, check=True)
    folder = tmp_path / "watch"
    assert done.stdout == f"{folder}/watch.sh op1 {folder} own\n"
    assert "31=drain" in (folder / "verdicts").read_text()
    assert (folder / "kernel_log.sh").read_text(encoding="utf-8") == _FOLLOWER


@pytest.mark.parametrize(
    ("comment", "written"),
    [("", True), ("burstd: job 7: Xid 13 on GPU 0000:2b:00.0", True), ("ask ada before you touch this", False)],
)
def test_jobs_notes_are_the_node_s_comment(tmp_path: Path, comment: str, *, written: bool) -> None:
    """One call a minute, beside the first look at what is there; a person's comment stays."""
    played = WatchedMachine(tmp_path, [""] * 5, comment)
    notes = [f"job {job}: Xid 31 on GPU 0000:2b:00.0" for job in (1, 2, 3, 3, 4, 5, 6)]
    (tmp_path / "watch/notes").write_text("\n".join([*notes, ""]), encoding="ascii")
    played.run()
    calls = (tmp_path / "scontrol.calls").read_text(encoding="utf-8").splitlines()
    text = ";".join(f"job {job}: Xid 31 on GPU 0000:2b:00.0" for job in (2, 3, 4, 5, 6))
    assert calls == ([f"update NodeName=cl1 Comment=burstd: {text}"] if written else [])
    assert notes_of_job([Node("cl1", "IDLE", comment=f"burstd: {text}")], "4") == ["Xid 31 on GPU 0000:2b:00.0 of cl1"]


def test_a_machine_that_only_has_gpus_watches_them(tmp_path: Path) -> None:
    """From the kernel's log to Slurm, without a script of a provider."""
    played = WatchedMachine(tmp_path, ["", ""], "allocated|none")
    watch = tmp_path / "watch"
    (watch / "notice.sh").write_text("", encoding="ascii")
    (watch / "verdicts").write_text(verdict_table(HealthRules()), encoding="ascii")
    (watch / "conditions.sh").touch()
    (watch / "kernel_log.sh").write_text(_FOLLOWER, encoding="utf-8")
    (tmp_path / "sleep.awaits").write_text(str(watch / "unhealthy"), encoding="utf-8")
    os.mkfifo(f"{tmp_path}-kernel-log")
    log = os.open(f"{tmp_path}-kernel-log", os.O_RDWR)
    os.write(log, FELL_OFF.encode())
    played.run()
    os.close(log)
    assert played.reasons == [SICK]


_FOLLOWER = files("burstd.node").joinpath("scripts", "kernel_log.sh").read_text(encoding="utf-8")
TIME = "2026-11-24T05:53:00,474451+00:00 "
FELL_OFF = f"{TIME}NVRM: Xid (PCI:0000:2b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
RECOVERY = "154, GPU recovery action changed from 0x0 (None) to"


class KernelLog:
    """The follower of a kernel's log, which is a FIFO."""

    def __init__(self, folder: Path, rules: HealthRules) -> None:
        self._folder = folder
        (folder / "verdicts").write_text(verdict_table(rules), encoding="ascii")
        os.mkfifo(folder / "log")
        self._printed = folder / "printed"
        with self._printed.open("wb") as printed:
            words = ["sh", "-c", _FOLLOWER, "sh", str(folder), str(folder / "log")]
            self._process = subprocess.Popen(words, stdout=printed, start_new_session=True)
        self._said = 0

    def say(self, *lines: str | bytes) -> None:
        """Writes these lines into the log, and returns when all of them have been read."""
        self._said += 1
        last = f"NVRM: Xid (PCI:ff:ff): {90000 + self._said}, the last\n"
        with (self._folder / "log").open("wb") as log:
            log.write(b"".join([*(line.encode() if isinstance(line, str) else line for line in lines), last.encode()]))
        deadline = time.monotonic() + 60
        while f"Xid {90000 + self._said} " not in self._printed.read_text(encoding="utf-8", errors="replace"):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    @property
    def notes(self) -> list[str]:
        """What was printed of harmless Xids."""
        lines = self._printed.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.startswith("Xid ") and not line.startswith("Xid 9000")]

    @property
    def reason(self) -> str:
        """For which the node is to be drained; empty: for none."""
        file = self._folder / "unhealthy"
        return file.read_text(encoding="utf-8").rstrip("\n") if file.exists() else ""

    def end(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def kernel_log(tmp_path: Path) -> Iterator[Callable[..., KernelLog]]:
    made: list[KernelLog] = []

    def make(rules: HealthRules | None = None) -> KernelLog:
        made.append(KernelLog(tmp_path, rules or HealthRules()))
        return made[-1]

    yield make
    for log in made:
        log.end()


def line(text: str, gpu: str = "PCI:0000:2b:00") -> str:
    return f"{TIME}NVRM: Xid ({gpu}): {text}\n"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([FELL_OFF], xid(79)),
        ([FELL_OFF] * 3, xid(79)),
        ([f"[   12.345678] {FELL_OFF.removeprefix(TIME)}"], r"xid 79 now"),
        ([FELL_OFF.removeprefix(TIME)], r"xid 79 now"),
        ([f"{TIME}[ T1234] {FELL_OFF.removeprefix(TIME)}"], xid(79)),
        ([f"{TIME}NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus.\n"], xid(79)),
        ([f"{TIME}NVRM: GPU at PCI:0000:2b:00: GPU has fallen off the bus.\n"], xid(79)),
        ([line("48, pid=1, name=x, DBE"), FELL_OFF, line("95")], xid(79)),
        ([line("109, pid=7, name=x, Ch 8", "PCI:0001:00:00")], xid(109, "0001:00:00.0", "jobs end first")),
        ([line("63, pid=1, Row Remapper")], xid(63, jobs="jobs end first")),
        ([line(f"{RECOVERY} 0x1 (GPU Reset Required)")], xid(154, jobs="jobs end first")),
        ([line(f"{RECOVERY} 0x2 (Node Reboot Required)")], xid(154)),
        ([line(f"{RECOVERY} 0x3 (Drain P2P)")], xid(154, jobs="jobs end first")),
        ([line("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")], ""),
        ([line("13, pid=1"), line("31"), line("43"), line("45"), line("94"), line("7777")], ""),
        ([line("79, x", "PCI:0000:2b:00; reboot")], ""),
        ([line("79, x", "PCI:")], ""),
        ([line("999999999979, x")], ""),
        ([line("79", "PCI:0000:2b:00:11:22:33")], ""),
        ([f"{TIME}NVRM: Xid (PCI:[42]: segfault at 79\n"], ""),
        ([f"{TIME}evil[7]: NVRM: Xid (PCI:0000:2b:00): 79, \n", f"{TIME}x] NVRM: Xid (PCI:0000:2b:00): 79, \n"], ""),
        ([b"\xff\x00\xfe\n", b"\n" * 50, b"NVRM: Xid (PCI:\n", "x" * 100_000 + "\n", FELL_OFF], xid(79)),
    ],
)
def test_what_the_kernel_says_of_a_gpu(
    kernel_log: Callable[..., KernelLog], lines: list[str | bytes], reason: str
) -> None:
    log = kernel_log()
    log.say(*lines)
    if reason == "xid 79 now":
        assert re.fullmatch(xid(79).replace("2026-11-24T05:53:00Z", "[0-9T:Z-]{20}"), log.reason)
    else:
        assert log.reason == reason
    assert not log.reason or parse_reason(log.reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2", "nvme0n1"),
        ("blk_update_request: I/O error, dev sda, sector 2048", "sda"),
        ("blk_update_request: critical medium error, dev sdb, sector 7 op 0x0:(READ) flags 0x0", "sdb"),
        ("Buffer I/O error on dev dm-3, logical block 0, lost async page write", "dm-3"),
        ("EXT4-fs error (device vda1): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0", "vda1"),
        ('XFS (nvme1n1p2): metadata I/O error in "xfs_buf_ioend" at daddr 0x2 len 1 error 5', "nvme1n1p2"),
        ("XFS (md0): Corruption detected. Unmount and run xfs_repair", "md0"),
        ("XFS (sda3): Filesystem has been shut down due to log error (0x2).", "sda3"),
        ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff", "nvme0"),
        ("nvme nvme1: Removing after probe failure status: -19", "nvme1"),
        ("I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2", ""),
        ("I/O error, dev loop3, sector 0 op 0x0:(READ) flags 0x800 phys_seg 0 prio class 2", ""),
        ("Buffer I/O error on dev fd0, logical block 0, async page read", ""),
        ("blk_update_request: critical target error, dev sda, sector 0 op 0x3:(DISCARD)", ""),
        ("EXT4-fs error (device loop0): ext4_lookup:1785: inode #12: comm x: deleted inode referenced", ""),
        ("EXT4-fs (sda1): error count since last fsck: 4", ""),
        ("XFS (sda1): Mounting V5 Filesystem", ""),
        ("XFS (sda1): Unmounting Filesystem", ""),
        ("nvme nvme0: 32/0/0 default/read/poll queues", ""),
        ("a.out[7]: I/O error, dev sda, sector 2048", ""),
        ("x] y: EXT4-fs error (device sda1): it is not so", ""),
    ],
)
def test_what_the_kernel_says_of_a_disk(kernel_log: Callable[..., KernelLog], text: str, reason: str) -> None:
    log = kernel_log()
    log.say(f"{TIME}{text}\n")
    what = f"burstd: unhealthy, I/O error of {reason} at 2026-11-24T05:53:00Z, jobs end first"
    assert log.reason == (what if reason else "")
    assert not reason or parse_reason(log.reason)


KILLED = "Killed process 812 ({}) total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB, UID:{} pgtables:1kB"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"Out of memory: {KILLED.format('slurmd', 0)}", True),
        (f"Memory cgroup out of memory: {KILLED.format('slurmd', 0)}", True),
        (f"Memory cgroup out of memory: {KILLED.format('slurmd', 1000)}", False),
        (f"Memory cgroup out of memory: {KILLED.format('slurmstepd', 0)}", False),
        (f"Out of memory: {KILLED.format('python3', 1000)}", False),
        (f"x[7]: Out of memory: {KILLED.format('slurmd', 0)}", False),
    ],
)
def test_the_end_of_slurmd(kernel_log: Callable[..., KernelLog], text: str, *, found: bool) -> None:
    log = kernel_log()
    log.say(f"{TIME}{text}\n")
    what = "burstd: unusable, slurmd was killed for want of memory at 2026-11-24T05:53:00Z, jobs end first"
    assert log.reason == (what if found else "")


def test_an_error_of_a_disk_by_the_site_s_own_table(kernel_log: Callable[..., KernelLog]) -> None:
    log = kernel_log(HealthRules(findings={"io_error": Verdict.NOTE, "slurmd_killed": Verdict.REQUEUE}))
    log.say(*[f"{TIME}I/O error, dev sda, sector {sector}\n" for sector in range(1000)])
    assert log.reason == ""
    log.say(f"{TIME}Out of memory: {KILLED.format('slurmd', 0)}\n")
    assert log.reason.endswith("jobs are requeued")


_HEALTHY = (
    "usb 1-1: new high-speed USB device number {n} using xhci_hcd",
    "nfs: server home not responding, still trying",
    "nfs: server home OK",
    "EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode. Quota mode: none.",
    "XFS (dm-0): Ending clean mount",
    "nvme nvme0: Shutdown timeout set to 8 seconds",
    "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/system.slice/slurmstepd.scope/job_{n},task=python3,pid=8,uid=1000",
    f"Memory cgroup out of memory: {KILLED.format('python3', 1000)}",
    "NVRM: Xid (PCI:0000:2b:00): 13, pid={n}, name=a.out, Graphics SM Warp Exception",
    "NVRM: Xid (PCI:0000:2b:00): 31, pid={n}, name=python3, Ch 00000008, intr 00000000. MMU Fault",
    "NVRM: Xid (PCI:0000:2b:00): 43, pid={n}, name=python3, Ch 00000008",
    "NVRM: Xid (PCI:0000:2b:00): 45, pid={n}, name=python3, Ch 00000008",
    "a.out[{n}]: segfault at 0 ip 0000 sp 0000 error 4 in a.out[400000+1000]",
    "I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "nvidia-nvswitch0: open (major=511)",
    "perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
)


def test_two_days_of_a_healthy_kernel_s_log_drain_nothing(kernel_log: Callable[..., KernelLog]) -> None:
    """A line every ten seconds; then one that counts, so that it is known to have listened."""
    log = kernel_log()
    start = datetime(2026, 11, 22, tzinfo=UTC)
    lines = []
    for number in range(2 * 86400 // 10):
        at = (start + timedelta(seconds=10 * number)).strftime("%Y-%m-%dT%H:%M:%S,000000+00:00")
        lines.append(f"{at} {_HEALTHY[number % len(_HEALTHY)].format(n=5_000_000 + number)}\n")
    log.say(*lines)
    assert log.reason == ""
    log.say(FELL_OFF)
    assert log.reason == SICK


def test_harmless_xids_by_the_thousand_are_one_note_each(kernel_log: Callable[..., KernelLog]) -> None:
    log = kernel_log()
    log.say(*[line(f"{number}, pid=4194305, name=a.out, Ch 1") for number in (13, 31, 43)] * 1000)
    assert log.reason == ""
    assert log.notes == [
        f"Xid {number} on GPU 0000:2b:00.0, job -: {number}, pid=4194305, name=a.out, Ch 1" for number in (13, 31, 43)
    ]


def test_a_flood_makes_it_neither_deaf_nor_forgetful(kernel_log: Callable[..., KernelLog]) -> None:
    log = kernel_log()
    log.say(*[f"{TIME}usb 1-1: nothing to do with GPUs {i}\n" for i in range(50_000)])
    log.say(*[line(f"31, pid={5_000_000 + i}, name=a.out") for i in range(3000)], FELL_OFF)
    assert log.reason == SICK
    assert log.notes[0].startswith("Xid 31 on GPU 0000:2b:00.0, job -")
    assert len(log.notes) < 30, "what is forgotten on the way is said again"


def test_the_site_s_own_table_stands_before_nvidia_s(kernel_log: Callable[..., KernelLog]) -> None:
    log = kernel_log(HealthRules({79: Verdict.NOTE, 31: Verdict.DRAIN, 154: Verdict.IGNORE}))
    log.say(FELL_OFF, line(f"{RECOVERY} 0x2 (Node Reboot Required)"))
    assert (log.reason, len(log.notes)) == ("", 1)
    log.say(line("31"))
    assert log.reason == xid(31, jobs="jobs end first")


@pytest.mark.parametrize("own", [{}, {79: Verdict.NOTE, 13: Verdict.REQUEUE, 45: Verdict.NOTE, 154: Verdict.IGNORE}])
def test_a_node_decides_as_burstd_does(own: dict[int, Verdict]) -> None:
    """Every number, and every text of 154."""
    function = re.search(r"^judge\(\) \{\n.*?^\}\n", _FOLLOWER, re.MULTILINE | re.DOTALL)
    assert function is not None
    actions = ["None", "GPU Reset Required", "Node Reboot Required", "Drain P2P", "Drain and Reset", "OS Reboot", "?"]
    texts = [f"{RECOVERY} 0x7 ({action})" for action in actions] + ["154", "154, to nothing"]
    asked = [(154, text) for text in texts] + [(number, f"{number}, pid=1") for number in range(1, 200)]
    script = f"{function[0]}while read -r xid text; do judge; echo $verdict; done"
    said = subprocess.run(
        ["sh", "-c", f"table=' {verdict_table(HealthRules(own))} '\n{script}"],
        input="".join(f"{number} {text}\n" for number, text in asked), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.split() == [xid_verdict(number, text, own) for number, text in asked]

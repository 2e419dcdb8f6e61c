"""What a node at work finds on its GPUs, disks and mounts; programs play nvidia-smi, df and the rest."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import pytest

from burstd.domain.health import FINDINGS, HealthRules, Verdict, finding_verdict, verdict_table
from burstd.node.checks import gpu_faults
from burstd.node.facts import parse_facts
from burstd.planner.lifecycle.spot_notices import parse_reason
from tests.node.test_gpu_states import AMPERE, HEAD, VOLTA, WELL

SCRIPTS = files("burstd.node").joinpath("scripts")
SCRIPT = "".join(SCRIPTS.joinpath(name).read_text(encoding="utf-8") for name in ("gpu_states.sh", "conditions.sh"))
AT = r" at 2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
DISK = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda1 100000000 1 {left} 1% {path}\n"
INODES = "Filesystem Inodes IUsed IFree IUse% Mounted on\n/dev/sda1 1000 1 {left} 1% {path}\n"
_DF = """
case $1 in -Pk) kind=blocks ;; -Pi) kind=inodes ;; esac
cat "$0.$kind"
"""
# Each pause between two rounds is one step of the play; the last one ends the loop. Pauses within a round cost nothing.
_SLEEP = """
[ "$1" = 77 ] || { /bin/sleep 0.2; exit; }
cat "$FOLDER/condition" >>"$0.reasons" 2>/dev/null || echo >>"$0.reasons"
rounds=$(($(cat "$0.rounds") + 1))
echo "$rounds" >"$0.rounds"
[ "$rounds" -lt "$(cat "$0.last")" ] || kill "$PPID"
"""
_SMI = 'read -r round <"${0%nvidia-smi}sleep.rounds"; [ -e "$0.$round" ] || round=last; . "$0.$round"'


def xml(*gpus: str) -> str:
    return f"cat <<'END'\n{HEAD}{''.join(gpus)}</nvidia_smi_log>\nEND\n"


WELL_GPU = AMPERE.format_map(WELL)
OTHER = WELL_GPU.replace(":19:", ":1A:")


def ampere(**fields: str) -> str:
    return xml(AMPERE.format_map(WELL | fields))


class Conditions:
    """A machine with these answers of nvidia-smi, one each round; the last holds."""

    def __init__(self, folder: Path, answers: Sequence[str], rules: HealthRules | None = None) -> None:
        self.folder = folder
        for name, text in (("nvidia-smi", _SMI), ("sleep", _SLEEP), ("df", _DF)):
            (folder / name).write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
            (folder / name).chmod(0o755)
        for number, answer in enumerate(answers):
            (folder / f"nvidia-smi.{number}").write_text(answer, encoding="utf-8")
        (folder / "nvidia-smi.last").write_text(answers[-1], encoding="utf-8")
        (folder / "df.blocks").write_text(DISK.format(left=9_000_000, path="/"), encoding="utf-8")
        (folder / "df.inodes").write_text(INODES.format(left=900, path="/"), encoding="utf-8")
        (folder / "mounts").touch()
        (folder / "dev").touch()
        rules = rules or HealthRules()
        table = verdict_table(HealthRules(rules.xids, rules.findings, 77))
        (folder / "verdicts").write_text(table, encoding="ascii")
        script = SCRIPT.replace("PATH=/usr/sbin", f"PATH={folder}:/usr/sbin")
        # A character device that every machine has.
        self.script = script.replace("/dev/nvidia[0-9]*", "/dev/nul[l]").replace("within=20", "within=1")
        assert self.script.count("/dev/nul[l]") == 1
        self.printed = ""

    def run(self, rounds: int) -> list[str]:
        """The reasons after each round, without their ``burstd: ``; empty: none."""
        (self.folder / "sleep.rounds").write_text("0", encoding="ascii")
        (self.folder / "sleep.last").write_text(str(rounds), encoding="ascii")
        (self.folder / "sleep.reasons").write_text("", encoding="ascii")
        words = ["sh", "-c", self.script, "sh", str(self.folder)]
        environment = {**os.environ, "FOLDER": str(self.folder)}
        loop = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            assert loop.wait(120) == -signal.SIGTERM
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(loop.pid, signal.SIGKILL)
        assert loop.stdout is not None
        self.printed = loop.stdout.read()
        reasons = (self.folder / "sleep.reasons").read_text(encoding="utf-8").splitlines()
        assert all(parse_reason(reason) for reason in reasons if reason)
        return [reason.removeprefix("burstd: ") for reason in reasons]


@pytest.mark.parametrize(
    ("answers", "texts"),
    [
        ([xml(WELL_GPU)], [""] * 3),
        ([ampere(errors="2")], ["GPU 0000:19:00.0 has 4 uncorrectable memory errors"] * 2),
        ([xml(WELL_GPU), ampere(failed="Yes")], ["", "GPU 0000:19:00.0 has bad memory that cannot be replaced"]),
        ([ampere(pending="Yes")], ["GPU 0000:19:00.0 has bad memory in use until it is reset"]),
        ([ampere(recovery="GPU Reset")], ["GPU 0000:19:00.0 needs 'GPU Reset'"]),
        ([xml(VOLTA)], ["GPU 0000:3B:00.0 has 3 uncorrectable memory errors"]),
        ([xml(WELL_GPU, OTHER), xml(WELL_GPU)], ["", "", "nvidia-smi shows 1 of 2 GPUs"]),
        ([xml(WELL_GPU, OTHER), xml(WELL_GPU), xml(WELL_GPU, OTHER)], [""] * 4),
        ([xml(WELL_GPU), "echo 'GPU is lost'; exit 15"], [""] * 3 + ["nvidia-smi does not answer"]),
        ([xml(WELL_GPU), "exec sleep 1000000"], [""] * 3 + ["nvidia-smi does not answer"]),
        ([xml(WELL_GPU), "exit 9", "exit 9", xml(WELL_GPU), "exit 9", "exit 9"], [""] * 6),
        (["head -c 10000000 /dev/zero | tr '\\0' x"], ["", "", "nvidia-smi does not answer"]),
        ([ampere(slowed="Active")], [""] * 14 + ["GPU 0000:19:00.0 is slowed (hw_slowdown, hw_thermal_slowdown)"] * 2),
        ([*[ampere(slowed="Active")] * 14, xml(WELL_GPU)], [""] * 16),
    ],
)  # fmt: skip
def test_what_nvidia_smi_shows(tmp_path: Path, answers: list[str], texts: list[str]) -> None:
    reasons = Conditions(tmp_path, [a.replace("sleep 1000000", "/bin/sleep 1000") for a in answers]).run(len(texts))
    for reason, text in zip(reasons, texts, strict=True):
        assert re.fullmatch(rf"unhealthy, {re.escape(text)}{AT}, jobs end first", reason) if text else not reason


def test_words_and_time_of_a_fault_stay(tmp_path: Path) -> None:
    """Slurm is told once."""
    reasons = Conditions(tmp_path, [ampere(errors="2"), ampere(errors="9"), ampere(errors="9", failed="Yes")]).run(3)
    assert len(set(reasons)) == 1


def test_an_nvidia_smi_that_cannot_be_killed_is_left_alone(tmp_path: Path) -> None:
    """It is not started again while it hangs, and the disks are looked at all the same."""
    hangs = f"echo x >>{tmp_path}/starts; trap '' TERM; read -r x <{tmp_path}/never"
    played = Conditions(tmp_path, [hangs])
    os.mkfifo(tmp_path / "never")
    # As a process in the kernel's D state: not even SIGKILL ends it.
    played.script = played.script.replace('timeout -k 1 "$1" nvidia-smi', "nvidia-smi")
    (tmp_path / "df.blocks").write_text(DISK.format(left=10, path="/"), encoding="utf-8")
    reasons = played.run(3)
    assert (tmp_path / "starts").read_text().split() == ["x"]
    assert "unhealthy, nvidia-smi does not answer" in reasons[-1]
    assert " is full" in played.printed


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("df.blocks", DISK.format(left=65536, path="/"), ""),
        ("df.blocks", DISK.format(left=65535, path="/"), "/[a-z]+ is full"),
        ("df.inodes", INODES.format(left=0, path="/"), "/[a-z]+ has no inode left"),
        ("df.inodes", INODES.format(left="-", path="/"), ""),
        ("df.blocks", "df: /tmp: Input/output error\n", ""),
        ("mounts", "/ overlay\n", ""),
    ],
)
def test_disks(tmp_path: Path, file: str, text: str, reason: str) -> None:
    played = Conditions(tmp_path, [xml(WELL_GPU)])
    (tmp_path / file).write_text(text.replace("/ overlay", _root_mount()), encoding="utf-8")
    reasons = played.run(3)
    assert reasons[:2] == ["", ""]
    assert re.fullmatch(rf"unusable, {reason}{AT}, jobs end first", reasons[2]) if reason else not reasons[2]


def _root_mount() -> str:
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return next(f"/ {line.split()[2]}" for line in lines if line.split()[1] == "/")


def test_what_was_mounted_and_is_not_any_more(tmp_path: Path) -> None:
    played = Conditions(tmp_path, [xml(WELL_GPU)])
    place = tmp_path / "soft ware"
    place.mkdir()
    (tmp_path / "mounts").write_text(f"{str(place).replace(' ', chr(92) + '040')} nfs4\n", encoding="utf-8")
    reasons = played.run(2)
    assert reasons[0] == ""
    assert re.fullmatch(rf"unusable, .*/soft ware is not mounted any more{AT}, jobs end first", reasons[1])
    place.rmdir()
    (tmp_path / "counts").unlink()
    assert "/soft ware is broken at" in played.run(2)[-1]


def test_a_fault_that_is_gone_is_gone(tmp_path: Path) -> None:
    played = Conditions(tmp_path, [ampere(pending="Yes"), xml(WELL_GPU)])
    assert [bool(reason) for reason in played.run(3)] == [True, False, False]


def test_the_site_s_own_verdicts(tmp_path: Path) -> None:
    rules = HealthRules(findings={"gpu_errors": Verdict.NOTE, "gpu_remap_failed": Verdict.REQUEUE})
    played = Conditions(tmp_path, [ampere(errors="1"), ampere(errors="1", failed="Yes")], rules)
    reasons = played.run(3)
    assert reasons[0] == ""
    assert reasons[1].endswith("jobs are requeued")
    assert played.printed.splitlines() == [
        "unhealthy: GPU 0000:19:00.0 has 2 uncorrectable memory errors",
        "unhealthy: GPU 0000:19:00.0 has bad memory that cannot be replaced",
    ]


@pytest.mark.parametrize("own", [{}, {"gpu_slow": "requeue", "gpu_lost": "ignore", "disk_full": "note"}])
def test_a_node_decides_as_burstd_does(tmp_path: Path, own: Mapping[str, Verdict]) -> None:
    """Every finding, until it has lasted."""
    function = re.search(r"^judge\(\) \{\n.*?^\}\n", SCRIPT, re.MULTILINE | re.DOTALL)
    assert function is not None
    table = verdict_table(HealthRules(findings={name: Verdict(verdict) for name, verdict in own.items()}))
    words = {"end first": {"drain", "close_when_idle"}, "are requeued": {"requeue"}, "": {"note", "ignore"}}
    for name, finding in FINDINGS.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "all").write_text(f"{name} it is so\n", encoding="ascii")
        loop = f"for i in $(seq {finding.times}); do judge $folder/all; cat $folder/condition 2>/dev/null || echo; done"
        script = f"folder={folder} table='{table}'\n{function[0]}{loop}"
        said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
        reasons = [line for line in said.splitlines() if not line.startswith("un")]
        assert len(reasons) == finding.times
        for times, reason in enumerate(reasons, 1):
            assert finding_verdict(name, times, own) in words[reason.partition(", jobs ")[2]]


@pytest.mark.parametrize("gpu", [ampere(errors="2", failed="Yes", pending="Yes", recovery="GPU Reset"), xml(VOLTA)])
def test_a_node_calls_a_fault_as_the_gate_does(tmp_path: Path, gpu: str) -> None:
    played = Conditions(tmp_path, [gpu])
    played.run(1)
    facts = parse_facts((tmp_path / "gpu_states").read_text() + "end=1\n", asked=0, answered=0)
    assert facts is not None
    state = facts.gpu_states[0]
    gate = [f"GPU {state.address[4:]} {text}" for check, text in gpu_faults(state) if check != "gpu_pcie"]
    assert sorted(line.partition(": ")[2] for line in played.printed.splitlines()) == sorted(gate)


@pytest.mark.slow
def test_hours_of_a_healthy_machine_drain_nothing(tmp_path: Path) -> None:
    """Judged every minute: a GPU is hot for ten, nvidia-smi is late twice in a row, a disk is full for two.

    That comes again after a hundred minutes; nothing is remembered of a fault that is over.
    """
    function = re.search(r"^judge\(\) \{\n.*?^\}\n", SCRIPT, re.MULTILINE | re.DOTALL)
    assert function is not None
    (tmp_path / "found").write_text("", encoding="ascii")
    for name, text in (
        ("hot", "gpu_slow GPU 0000:19:00.0 is slowed (hw_thermal_slowdown)\n"),
        ("late", "gpu_silent nvidia-smi does not answer\nmount_silent /home does not answer\n"),
        ("full", "disk_full /tmp is full\ngpu_stranger process 7 of no job is on GPU 0000:19:00.0\n"),
    ):
        (tmp_path / name).write_text(text, encoding="ascii")
    loop = """
        minute=0
        while [ "$minute" -lt 300 ]; do
            case $minute in *[1]?) what=hot ;; *[5][01]) what=late ;; *[7][34]) what=full ;; *) what=found ;; esac
            judge "$folder/$what"
            [ ! -e "$folder/condition" ] || { cat "$folder/condition"; exit 1; }
            minute=$((minute + 1))
        done"""
    script = f"folder={tmp_path} table='{verdict_table(HealthRules())}'\n{function[0]}{loop}"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout
    assert said.stdout.count("unhealthy: GPU") == 3

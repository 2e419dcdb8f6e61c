"""B3: the host keys that burstd has learned are lost. Machines at work are entered again, and never on trust."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.slurm.job import JobState
from burstd.node.errors import HostKeyMismatch, HostKeyUnknown, HostKeyUnobtainable
from burstd.node.ssh.host_keys import HostKeyFiles, HostKeyPolicy, HostKeys
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.node.validator import SlurmNodeValidator, ValidatorConfig
from tests.crash.conftest import quiet, template
from tests.crash.world import World
from tests.db.samples import planned
from tests.doubles.sshd import ADDRESS, Sshd
from tests.virtual.job import JobSpec
from tests.virtual.validator import SimValidator

__all__ = ["quiet", "template"]

OPEN = replace(planned(), state=S.IN_SERVICE, instance_id="i-1", address=ADDRESS)
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBgFpYsIvbJXrDmYrUvVbN7S5m+uPaVMqNQ1ROFrUfW2"


def shown(key: str) -> str:
    return f"boot\n-----BEGIN SSH HOST KEY KEYS-----\n{key} root@m1\n-----END SSH HOST KEY KEYS-----\nm1 login: "


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """It is on this host, where no machine of a cloud may be."""
    monkeypatch.setattr("burstd.node.validator.check_address", lambda _: None)
    with closing(Sshd()) as made:
        yield made


@pytest.fixture
def enter(tmp_path: Path, machine: Sshd) -> Callable[..., SlurmNodeValidator]:
    ensure_ssh_key(tmp_path / "key")

    def made(console: str | None, trust: HostKeyPolicy = HostKeyPolicy.CONSOLE) -> SlurmNodeValidator:
        site = ValidatorConfig(tmp_path / "key", tmp_path / "host_keys", tmp_path / "none", "", ssh_port=machine.port,
                    host_key_policies={OPEN.offer.provider: trust})  # fmt: skip
        consoles = {} if console is None else {OPEN.offer.provider: {"i-1": console}.__getitem__}
        return SlurmNodeValidator(site, slurm_version=lambda: (22, 5), wall=time.time, consoles=consoles)

    return made


@pytest.mark.parametrize("trust", HostKeyPolicy)
def test_a_lost_host_key_is_read_from_the_console_again(
    enter: Callable[..., SlurmNodeValidator], machine: Sshd, tmp_path: Path, trust: HostKeyPolicy
) -> None:
    prover = enter(shown(machine.host_key), trust)
    prover.connect(OPEN).close()
    kept = HostKeyFiles(tmp_path / "host_keys").load_keys(OPEN.id)
    assert kept is not None
    assert kept.keys == {machine.host_key}
    assert not prover.alarms()


@pytest.mark.parametrize("trust", HostKeyPolicy)
def test_another_machine_at_the_address_is_not_entered(
    enter: Callable[..., SlurmNodeValidator], trust: HostKeyPolicy
) -> None:
    with pytest.raises(HostKeyMismatch):
        enter(shown(OTHER), trust).connect(OPEN)


@pytest.mark.parametrize("trust", HostKeyPolicy)
@pytest.mark.parametrize(("console", "error"), [(None, HostKeyUnobtainable), ("m1 login: ", HostKeyUnknown)])
def test_without_it_on_the_console_an_alarm_names_the_remedy(
    enter: Callable[..., SlurmNodeValidator],
    machine: Sshd,
    tmp_path: Path,
    trust: HostKeyPolicy,
    console: str | None,
    error: type[Exception],
) -> None:
    prover = enter(console, trust)
    with pytest.raises(error, match="back from a backup"):
        prover.connect(OPEN)
    prover.probe(OPEN)
    (alarm,) = prover.alarms()
    assert OPEN.slot in alarm
    assert str(tmp_path / "host_keys") in alarm
    HostKeyFiles(tmp_path / "host_keys").save_keys(
        OPEN.id, HostKeys(HostKeyPolicy.CONSOLE, frozenset({machine.host_key}))
    )
    prover.connect(OPEN).close()
    assert not prover.alarms()


def test_the_alarm_ends_with_the_machine(enter: Callable[..., SlurmNodeValidator]) -> None:
    prover = enter(None)
    prover.probe(OPEN)
    assert prover.alarms()
    prover.retain_only(())
    assert not prover.alarms()


@pytest.mark.crash
def test_a_machine_that_is_adopted_at_work_is_entered_at_once(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[str] = []

    def reach(_: SimValidator, claim: Claim) -> None:
        reached.append(claim.slot)

    monkeypatch.setattr(SimValidator, "probe", reach)
    monkeypatch.setattr(SimValidator, "alarms", lambda _: [f"{slot} cannot be entered" for slot in reached])
    w = World(tmp_path, template=template, alpha="sim")
    w.slurm.submit(JobSpec(run_s=2000, cpus_per_node=4))
    w.run(150)
    assert [job.state for job in w.slurm.jobs()] == [JobState.RUNNING]
    (slot,) = (claim.slot for claim in w.claims())
    w.kill()
    w.lose_record()
    w.start()
    w.run(150)
    assert [(claim.slot, claim.state) for claim in w.claims()] == [(slot, S.IN_SERVICE)]
    assert reached == [slot]
    assert f"{slot} cannot be entered" in w.alarm

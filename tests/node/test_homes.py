"""Whose home directory a new machine is asked for, and what is known of it then."""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.missing_home import MissingHome
from burstd.domain.plugins.shell import CompletedCommand, Shell
from burstd.domain.slurm.shape import Shape
from burstd.domain.slurm.slurmd_conf import SlurmdConf
from burstd.node import validator as module
from burstd.node.checks import head_homes
from burstd.node.validator import HOMES_KNOWN_S, SlurmNodeValidator, ValidatorConfig
from tests.node.test_validate import FACTS, KEY, Recorder

POOL = Pool("cpu", ("n1",), (), Shape(2, 1000))
OFFER = Offer("sky", "here", "a", "small", spot=False, shape=POOL.shape, price=Decimal(1))
CLAIM = Claim(
    "c", "lab", "cpu", "n1", OFFER, Cause.DEMAND, ClaimState.BOOTING, 0.0, 0.0, instance_id="i", users=("ada",)
)
MISSING = [MissingHome("cpu", "ada", "/home/ada", "n1")]


class Bench:
    def __init__(self, folder: Path, prologs: Mapping[str, str], **config: Any) -> None:
        (folder / "munge.key").write_bytes(KEY)
        self.now = 1000.0
        self.shell = Recorder([])
        self.conf = SlurmdConf(("head:6817",), prologs)
        self.validator = SlurmNodeValidator(
            ValidatorConfig(folder, folder, folder / "munge.key", "", users=(), compare_job_users=False, **config),
            slurm_version=lambda: (22, 5), wall=lambda: self.now, credential=lambda _uid: "credential",
            shells={"sky": lambda _instance, _timeout_s: cast("Shell", self.shell)},
            slurmd_conf=lambda: self.conf,
        )  # fmt: skip

    def validate(self, said: str) -> str:
        said += "slurmctld=head:6817 ok\n"
        facts = FACTS.replace("clock=1000.0", f"clock={self.now}").replace("end=1", f"{said}end=1")
        self.shell.answers = [CompletedCommand(0, facts, ""), CompletedCommand(0, "", "")]
        return self.validator.validate(CLAIM, POOL, None, lambda: None)


@pytest.fixture(autouse=True)
def head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "head_homes", lambda users: dict.fromkeys(users, "/home/ada"))


@pytest.mark.parametrize(
    ("prologs", "config", "asked", "missing"),
    [
        ({}, {}, True, MISSING),
        ({"/etc/epilog": "Epilog"}, {}, True, MISSING),
        ({"/etc/prolog": "Prolog"}, {}, False, []),
        ({}, {"skip_checks": frozenset({"homes"})}, False, []),
        ({}, {"may_differ": frozenset({"homes"})}, True, []),
        ({}, {"mount_trees": {"cpu": ("/opt/software",)}, "skip_checks": frozenset({"mounts"})}, True, MISSING),
        ({}, {"mount_trees": {"cpu": ("/home/{user}",)}, "skip_checks": frozenset({"mounts"})}, False, []),
        ({}, {"mount_trees": {"cpu": ("{home}",)}, "skip_checks": frozenset({"mounts"})}, False, []),
    ],
)  # fmt: skip
def test_a_home_that_nothing_brings_is_missing(
    prologs: dict[str, str], config: dict[str, Any], asked: bool, missing: list[MissingHome], tmp_path: Path
) -> None:
    bench = Bench(tmp_path, prologs, **config)
    programs = "".join(f"prolog={path}\n" for path in prologs)
    said = bench.validate(f"home=- /home/ada\n{programs}")
    assert ("home=/home/ada" in bench.shell.asked[0][0]) is asked
    assert ("/home/ada, the home directory of ada, is expected" in said) is asked
    assert bench.validator.missing_homes() == missing


def test_what_is_known_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {})
    bench.validate("home=- /home/ada\n")
    assert bench.validator.missing_homes() == MISSING
    bench.validate("home=ok /home/ada\n")
    assert bench.validator.missing_homes() == []
    bench.validate("home=- /home/ada\n")
    assert bench.validator.missing_homes() == [], "another machine of the pool has it"
    bench.now += HOMES_KNOWN_S
    bench.validate("home=- /home/ada\n")
    assert bench.validator.missing_homes() == MISSING
    bench.now += HOMES_KNOWN_S
    assert bench.validator.missing_homes() == []
    bench.validate("home=- /home/ada\n")
    assert bench.validator.missing_homes() == MISSING
    bench.validator.forget_homes()
    assert bench.validator.missing_homes() == []


def test_no_home_is_asked_for_that_slurm_may_bring(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {})
    for conf in (SlurmdConf(), replace(bench.conf, pam=True)):
        bench.conf = conf
        bench.validate("home=- /home/ada\n")
        assert "home=/home/ada" not in bench.shell.asked[-2][0]
        assert bench.validator.missing_homes() == []


def test_a_home_that_the_head_may_not_look_for_counts_as_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = {name: tmp_path / name for name in ("here", "hidden", "nowhere")}
    homes["here"].mkdir()
    homes["hidden"].symlink_to(homes["hidden"])  # which root, too, cannot follow
    monkeypatch.setattr(pwd, "getpwnam", lambda name: SimpleNamespace(pw_dir=str(homes[name])))
    assert head_homes(homes) == {name: str(homes[name]) for name in ("here", "hidden")}

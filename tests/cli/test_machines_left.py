"""What keeps the package from being removed: machines and volumes on record, or a record that cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from burstd.cli.setup.machines_left import left_in_clouds, main
from burstd.db import Store
from burstd.domain.claim import ClaimState
from burstd.domain.volume import VolumeState
from tests.db.samples import ManualClock, planned
from tests.db.test_volumes import PLANNED


def _code(folder: Path) -> int:
    settings = folder / "burstd.toml"
    settings.write_text(f'cluster = "lab"\n[daemon]\nstate_dir = "{folder}"\n', encoding="utf-8")
    return main(settings)


def test_what_is_left_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _code(tmp_path) == 0  # burstd has never run
    with Store.open(tmp_path / "burstd.db", ManualClock()) as store:
        assert _code(tmp_path) == 0
        store.adopt_claim(replace(planned(), state=ClaimState.BOOTING, instance_id="i-17"))
        store.make_claims([planned("c2", "gpu002")])
        store.make_volume(PLANNED)
        store.make_volume(replace(PLANNED, id="v2", name="weights"))
        store.transition_volume(
            "v2", VolumeState.PLANNED, VolumeState.CREATING, "its job has a machine", provider="north"
        )
        assert capsys.readouterr().err == ""
        assert _code(tmp_path) == 1
    assert capsys.readouterr().err == (
        "  gpu001: sandbox i-17, booting\n  gpu002: sandbox no instance yet, planned\n"
        "  volume weights of ann: north no disk yet\n"
    )


@pytest.mark.parametrize(
    ("provider", "instance_id", "command"),
    [
        ('kind = "aws"\nregion = "eu-1"', "i-17", "aws ec2 terminate-instances --region eu-1 --instance-ids i-17"),
        ('kind = "aws"', "i-17", "aws ec2 terminate-instances --region REGION --instance-ids i-17"),
        (
            'kind = "azure"\nresource_group = "hpc"', "lab-gpu1-a",
            "az vm delete --yes --force-deletion true --resource-group hpc --name lab-gpu1-a",
        ),
        ('kind = "google"\nproject = "p"', "a/7", "gcloud compute instances delete --project p --zone a burstd-c1"),
        ('kind = "openstack"', "a; reboot", "openstack server delete 'a; reboot'"),
        ('kind = "openshift"\nnamespace = "hpc"', "pod-1", "kubectl delete pod --namespace hpc pod-1"),
        ('kind = "sandbox"', "b-1", ""),
        ('kind = "aws"', "", ""),
    ],
)  # fmt: skip
def test_commands_end_what_burstd_does_not(tmp_path: Path, provider: str, instance_id: str, command: str) -> None:
    settings = tmp_path / "burstd.toml"
    text = f'cluster = "lab"\n[daemon]\nstate_dir = "{tmp_path}"\n[providers.sandbox]\n{provider}\n'
    settings.write_text(text, encoding="utf-8")
    with Store.open(tmp_path / "burstd.db", ManualClock()) as store:
        if instance_id:
            store.adopt_claim(replace(planned(), state=ClaimState.BOOTING, instance_id=instance_id))
        else:
            store.make_claims([planned()])
        assert left_in_clouds(settings).ends == tuple(filter(None, [command]))


@pytest.mark.parametrize("content", [b"no database", b""])
def test_a_record_that_cannot_be_read_is_no_empty_one(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "burstd.db").write_bytes(content)
    assert _code(tmp_path) == 1
    assert capsys.readouterr().err.startswith("burstd's record cannot be read: ")

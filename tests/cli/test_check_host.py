"""Whether nodes can find slurmctld: what burstctl check says of SlurmctldHost and of conf_server, word for word."""

from __future__ import annotations

import pytest

from burstd.cli.checks.host import has_address, resolved, slurmctld_findings
from burstd.slurm.config.check import SlurmConfFinding

NAMES = {
    "head": ["127.0.1.1"],
    "login": ["10.0.0.10", "fd00::10"],
    "far": ["192.0.2.7"],
    "192.0.2.7": ["192.0.2.7"],
    "10.0.0.10": ["10.0.0.10"],
    "127.0.0.1": ["127.0.0.1"],
    "fd00::10": ["fd00::10"],
}


@pytest.mark.parametrize(
    ("host", "conf_server", "where", "fault", "advice"),
    [
        ("head(10.0.0.10)", "10.0.0.10:6817", "", "", False),
        ("login", "login,fd00::10", "", "", False),
        ("far", "far", "", "", False),
        ("head", "", "", "", False),
        ("head(127.0.0.1)", "", "slurm.conf", "127.0.0.1, which every machine has for itself", False),
        ("hed", "", "slurm.conf", "hed, which cannot be resolved here", False),
        ("login", "far:6817", "burstd.toml", "far is 192.0.2.7, which this host does not have", True),
        ("login", "192.0.2.7", "burstd.toml", "192.0.2.7, which this host does not have", True),
        ("login", "127.0.0.1", "burstd.toml", "127.0.0.1, which every machine has for itself", False),
        ("login", "hed", "burstd.toml", "hed, which cannot be resolved here", False),
    ],
)
def test_where_nodes_look_for_slurmctld(host: str, conf_server: str, where: str, fault: str, *, advice: bool) -> None:
    config = {"SlurmctldHost[0]": host, "SlurmctldPort": "6817"}
    local = {"10.0.0.10", "fd00::10"}
    found = [*slurmctld_findings(config, conf_server, lambda name: NAMES.get(name, []), local.__contains__)]
    wanted, remedy = {
        "slurm.conf": (
            "an address that machines of the cloud reach",
            f"write SlurmctldHost={host.partition('(')[0]}(ADDRESS) with the head's address and restart slurmctld",
        ),
        "burstd.toml": (
            "an address of this host, or of a SlurmctldHost",
            "correct conf_server in [slurm] of burstd.toml; a port that another host forwards here will do too",
        ),
        "": ("", ""),
    }[where]
    subject = f"SlurmctldHost={host}" if where == "slurm.conf" else "slurm.conf_server"
    lost = "a machine boots, does not find slurmctld, and does not become a node"
    assert found == ([SlurmConfFinding(subject, wanted, fault, lost, remedy, advice)] if where else [])


def test_what_this_host_knows() -> None:
    assert resolved("127.0.0.1") == ["127.0.0.1"]
    assert resolved("no such host") == []
    assert has_address("127.0.0.1")
    assert not has_address("192.0.2.7")

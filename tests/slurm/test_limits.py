"""Limits of QOS and associations, as slurmctld of 22.05 and 26.05 prints them."""

from __future__ import annotations

import pytest

from burstd.slurm.commands.limits import parse_limits

OF_TWO_VERSIONS = pytest.mark.parametrize("uid", ["3001", "ada(3001)"])
TEXT = """\
Current Association Manager state
Association Records
ClusterName=lab Account=root UserName= Partition= ParentAccount= GrpJobs=N(1) GrpTRES=cpu=N(1),mem=N(1000) MaxJobs=
ClusterName=lab Account=dept UserName= Partition= ParentAccount=root(1) GrpJobs=N(1) GrpTRES=cpu=N(1),gres/gpu=8(3)
ClusterName=lab Account=lhc UserName= Partition= ParentAccount=dept(7) GrpJobs=5(1) GrpWall=N(0.00) GrpTRES=cpu=4(1)
ClusterName=lab Account=lhc UserName=ada(3001) ParentAccount= GrpJobs=N(1) GrpSubmitJobs=9(3) MaxJobs=2(1) \
MaxJobsAccrue=3 MaxWallPJ=60 MaxTRESPJ=cpu=16,gres/gpu=2 MaxTRESPN= MinPrioThresh=
ClusterName=lab Account=lhc UserName=bob(3002) ParentAccount= MaxJobs=1(1)
ClusterName=lab Account=cms UserName=ada(3001) ParentAccount= MaxJobs=7(0)
QOS Records
QOS=normal(1) UsageRaw=0.000000 GrpJobs=N(1) GrpTRES=cpu=N(1),gres/gpu=3(0) MaxWallPJ=120 MaxTRESPJ= Priority=0 \
Account Limits= lhc={MaxJobsPA=6(1) MaxTRESPA=cpu=N(1)} cms={MaxJobsPA=8(1)} \
User Limits= 3001={MaxJobsPU=1(1) MaxTRESPU=cpu=1(1),mem=N(1000)} 13001={MaxJobsPU=4(1)}
QOS=long(2) GrpJobs=1(0) Account Limits=No Accounts User Limits=No Users
"""


@OF_TWO_VERSIONS
def test_those_in_force_for_a_job_with_what_is_used_of_them(uid: str) -> None:
    assert parse_limits(TEXT.replace(" 3001={", f" {uid}={{"), "ada", 3001, "lhc", {"normal", ""}) == [
        "MaxJobs=2 of ada in lhc (1 used)",
        "MaxWallPJ=60 of ada in lhc",
        "MaxTRESPJ=cpu=16 of ada in lhc",
        "MaxTRESPJ=gres/gpu=2 of ada in lhc",
        "GrpJobs=5 of lhc (1 used)",
        "GrpTRES=cpu=4 of lhc (1 used)",
        "GrpTRES=gres/gpu=8 of dept (3 used)",
        "GrpTRES=gres/gpu=3 of QOS normal (0 used)",
        "MaxWallPJ=120 of QOS normal",
        "MaxJobsPA=6 of QOS normal (1 used)",
        "MaxJobsPU=1 of QOS normal (1 used)",
        "MaxTRESPU=cpu=1 of QOS normal (1 used)",
    ]


@pytest.mark.parametrize("text", ["", "QOS Records", "ClusterName=lab Account=lhc UserName=ada ParentAccount=lhc(1)"])
def test_none(text: str) -> None:
    assert parse_limits(text, "ada", 3001, "lhc", {"normal"}) == []


def test_accounts_that_are_their_own_parents_are_read_once() -> None:
    text = "ClusterName=lab Account=lhc UserName= ParentAccount=lhc(1) GrpJobs=5(1)\n"
    assert parse_limits(text, "ada", 3001, "lhc", ()) == ["GrpJobs=5 of lhc (1 used)"]

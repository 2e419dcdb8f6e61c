"""[projects] and [fair_share]: what they come to, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from burstd.domain.project import BurstOverQuota, NodeGroup
from burstd.settings import SettingsError, build_pools, parse_settings
from burstd.settings.projects import projects_of
from burstd.slurm.hostlist import expand

_HEAD = 'cluster = "hpc"\n[providers.sky]\nkind = "sandbox"\n'
_POOL = """
[pools.gpu]
nodes = "g[1-2]"
partitions = ["burst"]
cpus = 8
memory = "16G"
offers = [{ provider = "sky" }]
"""


def test_children_have_their_parents_partitions_and_pools_have_the_pairs_of_leaves() -> None:
    settings = parse_settings(
        _HEAD
        + _POOL
        + """
[projects.physics]
quota = 4
partitions = ["burst"]
[projects.atlas]
parent = "physics"
account = "atlas"
quota = 2.5
weight = "1/3"
burst_over_quota = "budget"
[projects.elsewhere]
account = "other"
partitions = ["main"]
"""
    )
    projects = projects_of(settings.projects)
    atlas = projects["atlas"]
    assert (atlas.quota, atlas.weight, atlas.partitions) == (Fraction(5, 2), Fraction(1, 3), ("burst",))
    assert atlas.burst_over_quota is BurstOverQuota.BUDGET
    assert projects["physics"].account == ""
    assert build_pools(settings, expand)["gpu"].partitions == ("burst", "q-atlas", "o-atlas")


def test_a_pool_has_the_pairs_of_projects_whose_features_it_has() -> None:
    text = _HEAD + _POOL + 'features = ["a100", "cloud"]\n'
    for name, features in (("new", '["a100"]'), ("old", '["v100"]')):
        text += f'[projects.{name}]\nquota = 2\npartitions = ["burst"]\nfeatures = {features}\n'
        text += f'[projects.{name}-team]\nparent = "{name}"\naccount = "{name}"\n'
    settings = parse_settings(text)
    assert projects_of(settings.projects)["new-team"].node_group == NodeGroup(frozenset({"burst"}), frozenset({"a100"}))
    assert build_pools(settings, expand)["gpu"].partitions == ("burst", "q-new-team", "o-new-team")


_A = '[projects.a]\naccount = "a"\npartitions = ["burst"]\n'
_B = '[projects.b]\nparent = "a"\naccount = "b"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_A + "quota = -1", "line 7: projects.a.quota: must not be negative (it is -1)"),
        (_A + "weight = -0.5", "projects.a.weight: must not be negative"),
        (_A + 'quota = "many"', "projects.a.quota: must be a number of GPUs, such as 4, 0.5 or '1/3' (it is 'many')"),
        (_A + "quota = true", "projects.a.quota: must be a number of GPUs"),
        (_A + 'quota = "1/0"', "projects.a.quota: must be a number of GPUs"),
        (_A + "quota = 4\nlimit = 2", "the limit of 2 GPUs is below the quota of 4: raise it"),
        (_A + 'parent = "b"', "projects.a.parent: no project is called 'b'; known: none"),
        (
            '[projects.a]\nparent = "b"\n[projects.b]\nparent = "c"\n[projects.c]\nparent = "a"',
            "projects.a.parent: makes a loop: a -> b -> c -> a; leave it out of one of them",
        ),
        ('[projects.a]\npartitions = ["burst"]', "projects.a.account: must be set: the Slurm account whose jobs"),
        ('[projects.a]\naccount = "a"', "projects.a.partitions: must be set: the partitions whose nodes"),
        ('[projects.a]\naccount = "A"', "projects.a.account: must be a Slurm account, which is written in lower case"),
        ("[projects.a]\naccount = 'a\\'", "projects.a.account: must be a Slurm account"),
        ('[projects.a]\naccount = "a#b"', "projects.a.account: must be a Slurm account"),
        ("""[projects.a]\npartitions = ['x"..os.execute("id").."']""", "projects.a.partitions"),
        (
            _A + '[projects.b]\naccount = "a"\npartitions = ["burst"]',
            "projects.a.account: a is the account of project b too; give each its own",
        ),
        (
            _A + '[projects.b]\naccount = "b"\nparent = "a"',
            "projects.a.account: jobs run in projects without children, and this one has b; leave it out",
        ),
        (
            _A + '[projects.b]\naccount = "b"\npartitions = ["burst", "main"]',
            "projects.a.partitions: has burst in common with project b, but not all: projects share all nodes or none",
        ),
        (
            _A + '[projects.b]\naccount = "b"\npartitions = ["burst"]\nfeatures = ["a100"]',
            "projects.a.features: has nodes of burst, and project b those of burst with a100, which are some",
        ),
        (
            _A + 'features = ["a100"]\n[projects.b]\naccount = "b"\npartitions = ["burst"]\nfeatures = ["a100", "big"]',
            "projects.a.features: has nodes of burst with a100, and project b those of burst with a100 and big",
        ),
        (
            '[projects.a]\npartitions = ["burst"]\n' + _B + 'features = ["a100"]',
            "projects.b.features: are of nodes of partitions: set partitions as well, or leave features out",
        ),
        (
            '[projects.a]\npartitions = ["burst"]\n' + _B + 'partitions = ["burst"]\nfeatures = ["a100"]',
            "projects.b.features: must be those of its parent a: set them there, and leave them out here",
        ),
        (_A + 'features = ["a100&v100"]', "must be the name of a feature"),
        (
            '[projects.a]\nquota = 2\npartitions = ["burst"]\n[projects.b]\nparent = "a"\naccount = "b"\nquota = 3',
            "projects.a.quota: its children have 3 GPUs of quota together, more than its own 2: raise it, or leave it",
        ),
        ('[projects."Big Team"]\naccount = "b"', "a project's name is 1 to 28 of a-z, 0-9"),
        ("[fair_share]\nusage_factor = -1", "fair_share.usage_factor:"),
    ],
)
def test_what_cannot_be_is_named_with_its_place_and_remedy(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_settings(_HEAD + text)
    assert said in str(refused.value)

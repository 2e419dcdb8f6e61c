"""``[mounts]``: which trees, for whom, in which pools."""

from __future__ import annotations

import pytest

from burstd.domain.mounts import MountedTree, MountRule, public_trees, user_trees
from burstd.settings import SettingsError, parse_settings

HEAD = 'cluster = "x"\n'


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ("path = 'home'", "mounts.trees.t.path: the tree 'home' needs an absolute path"),
        ("path = '/home/'", "the tree '/home/' needs an absolute path without '.', '..' and spare slashes"),
        ("path = '/home/../etc'", "needs an absolute path without '.', '..'"),
        ("path = '/'", "the tree / would hide or change /bin of the node: name another path"),
        ("path = '/etc/slurm'", "the tree /etc/slurm would hide or change /etc of the node"),
        ("path = '/scratch/{uid}'", "may hold {user} or {home} once, and no other braces"),
        ("path = '/scratch/{home}'", "{home} is an absolute path: it must stand at the beginning"),
        ("path = '/sw'\npublic = true", "a public tree is served as nobody, who must not write: add read_only = true"),
        ("path = '/w/{user}'\npublic = true\nread_only = true", "a public tree has the same path for everybody"),
        ("path = '/a'\nkind = 'nfs'", "mounts.trees.t.kind: must be 'sshfs' or 'cvmfs', not 'nfs'"),
        ("path = '/cvmfs'\nkind = 'cvmfs'", 'repositories go with kind = "cvmfs", which needs one at least'),
        ("path = '/a'\nrepositories = ['x']", 'repositories go with kind = "cvmfs"'),
        (
            "path = '/home'\n[mounts.trees.own]\npath = '/home/{user}'",
            "mounts.trees: the trees /home and /home/user lie within each other: name the outer one only",
        ),
        ("path = '/a'\npools = []", "mounts.trees.t.pools: names no pool: name some, or leave it out for all pools"),
        ("path = '/a'\npools = ['gpus']", "line 4: mounts.trees.t.pools: no pool is called 'gpus'"),
    ],
)
def test_what_is_wrong_is_named(tree: str, says: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse_settings(f"{HEAD}[mounts.trees.t]\n{tree}\n")
    assert says in str(error.value)


def test_each_user_gets_the_trees_of_his_pool() -> None:
    rules = parse_settings(
        HEAD + "[mounts.trees]\nhome = { path = '{home}' }\nscratch = { path = '/scratch/{user}' }\n"
        "project = { path = '/project', read_only = true }\n"
        "software = { path = '/usr/local/sw', read_only = true, public = true }\n"
    ).mounts.rules()
    assert user_trees(rules, "gpu", "ada", "/users/phys/ada") == (
        MountedTree("/users/phys/ada", optional=True),
        MountedTree("/scratch/ada", optional=True),
        MountedTree("/project", read_only=True),
    )
    assert public_trees(rules, "gpu") == (MountedTree("/usr/local/sw", read_only=True),)
    assert [rule.exclusive_user for rule in rules] == [False, False, True, False]
    one = MountRule("t", "/t", pools=("gpu",))
    assert (one.is_shown_in("gpu"), one.is_shown_in("cpu")) == (True, False)


def test_cvmfs_is_read_and_not_mounted() -> None:
    mounts = parse_settings(
        HEAD + "[mounts.trees.eessi]\npath = '/cvmfs'\nkind = 'cvmfs'\nrepositories = ['software.eessi.io']\n"
    ).mounts
    assert mounts.rules() == ()
    assert mounts.sentinels("gpu") == ("/cvmfs/software.eessi.io",)

"""Which trees can be shown together."""

from __future__ import annotations

import pytest

from burstd.domain.mounts import MountedTree, check_trees


def trees(*paths: str) -> list[MountedTree]:
    return [MountedTree(path, read_only=False) for path in paths]


@pytest.mark.parametrize("paths", [("/home/ada",), ("/home/ada", "/home/adam", "/project"), ("/opt/soft ware",)])
def test_trees_that_stand_beside_each_other(paths: tuple[str, ...]) -> None:
    check_trees(trees(*paths))


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ((), "no tree is named"),
        (("home",), "needs an absolute path"),
        (("/home/../etc",), "needs an absolute path"),
        (("/home/",), "needs an absolute path"),
        (("//home",), "needs an absolute path"),
        (("/home/a\nb",), "cannot be printed"),
        (("/",), "would hide or change /bin of the node"),
        (("/usr",), "would hide or change /usr/bin of the node"),
        (("/etc/skel",), "would hide or change /etc of the node"),
        (("/home", "/project", "/home/ada"), "/home and /home/ada lie within each other: name the outer one only"),
        (("/home", "/home"), "lie within each other"),
    ],
)
def test_trees_that_cannot_be_shown(paths: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_trees(trees(*paths))

from __future__ import annotations

from typing import Any

import pytest

from burstd.domain.errors import BadRequest, CloudUnavailable
from providers.openstack.launch.images import OpenStackImage, OpenStackImages
from tests.providers.openstack.project import FakeProject, Thing, image, settings

UUID = "0b4a6a4e-3f0e-4b7e-9a8a-1f5f2d1c9e77"
OTHER = "1b4a6a4e-3f0e-4b7e-9a8a-1f5f2d1c9e77"
SHELF: list[Thing] = [
    image("debian-12", UUID, created_at="2030-01-01", architecture="x86_64", min_disk=4, size=(5 << 30) + 1),
    image("debian-13", created_at="2030-03-01", status="queued"),
    image("node-a", created_at="2030-01-01", role="node", slurm="24.05"),
    image("node-b", created_at="2030-02-01", role="node", slurm="24.05", virtual_size=20 << 30),
    image("node-c", created_at="2030-03-01", role="node", slurm="23.11"),
    image("node-e", created_at="2030-05-01", owner="neighbour", visibility="shared", role="node"),
    image("twice", "t1"),
    image("twice", "t2", created_at="2031-01-01"),
    image("a:b"),
    image("ours-and-theirs"),
    image("ours-and-theirs", "o2", owner="cloud", visibility="public"),
    image("published", owner="cloud", visibility="public"),
]


def images(*, clock: Any = lambda: 0.0, page: int = 3, **more: Any) -> tuple[OpenStackImages, FakeProject]:
    of = settings(page=page, **more)
    project = FakeProject(of)
    project.images = [dict(one) for one in SHELF]
    return OpenStackImages(of, project, clock), project


FOUND = [
    (UUID, UUID),
    ("debian-12", UUID),
    ("newest:node-*", "i-node-c"),
    ("newest:node-[ab]", "i-node-b"),
    ("property:role=node", "i-node-c"),
    ("property:role=node,slurm=24.05", "i-node-b"),
    ("newest:twice", "t2"),
    ("twice", "t2"),
    ("published", "i-published"),
    ("newest:*-12", UUID),
    ("a:b", "i-a:b"),
    ("", UUID),
]


@pytest.mark.parametrize(("word", "found"), FOUND)
def test_what_a_word_means(word: str, found: str) -> None:
    image_finder, _ = images(image="debian-12")
    assert image_finder.find_image(word).id == found


NEVER = [
    (OTHER, "is not there"),
    ("debian-13", "no active image that this project sees is 'debian-13'"),
    ("node-e", "images of project neighbour only: add it to image_owners"),
    ("newest:windows-*", "newest:windows-*"),
    ("property:role=head", "property:role=head"),
    ("property:role", "property:KEY=VALUE"),
    ("property:=x", "property:KEY=VALUE"),
    ("newest:debian-13", "no active image"),
    ("", "set image"),
]


@pytest.mark.parametrize(("word", "says"), NEVER)
def test_what_a_word_cannot_mean(word: str, says: str) -> None:
    image_finder, _ = images(image="")
    with pytest.raises(BadRequest, match=says.replace("*", r"\*")):
        image_finder.find_image(word)


@pytest.mark.parametrize(
    ("word", "owners", "versions"),
    [
        ("", ("self",), [UUID]),
        (UUID, ("self",), [UUID]),
        ("twice", ("self", "public"), ["t2", "t1"]),
        ("newest:node-*", ("self", "public"), ["i-node-c", "i-node-b", "i-node-a"]),
        ("property:role=node", ("neighbour",), ["i-node-e"]),
        ("ours-and-theirs", ("self", "public"), ["i-ours-and-theirs"]),
        ("ours-and-theirs", ("public", "self"), ["o2"]),
        ("published", ("self", "public"), ["i-published"]),
    ],
)
def test_the_versions_of_a_word_newest_first(word: str, owners: tuple[str, ...], versions: list[str]) -> None:
    """Never a neighbour's: any project may share an image of any name."""
    image_finder, _ = images(image="debian-12", image_owners=owners)
    assert list(image_finder.versions(word)) == versions


def test_an_id_whose_image_is_not_ready() -> None:
    image_finder, project = images()
    project.images[0]["status"] = "deactivated"
    with pytest.raises(BadRequest, match="is deactivated"):
        image_finder.find_image(UUID)


def test_what_a_launch_needs_to_know() -> None:
    image_finder, _ = images()
    assert image_finder.find_image(UUID) == OpenStackImage(UUID, "debian-12", 6, "x86_64", "2030-01-01")
    assert image_finder.find_image("node-b").min_disk_gib == 20, "a packed image needs the room that it has unpacked"


def test_what_was_found_is_kept_for_five_minutes() -> None:
    now = [0.0]
    image_finder, project = images(clock=lambda: now[0])
    image_finder.find_image("newest:node-*")
    asked = len(project.said)
    project.images.append(image("node-d", created_at="2030-04-01"))
    now[0] = 299.0
    assert image_finder.find_image("newest:node-*").id == "i-node-c"
    assert len(project.said) == asked
    now[0] = 300.0
    assert image_finder.find_image("newest:node-*").id == "i-node-d"


def test_a_silent_glance_does_not_make_it_forget() -> None:
    now = [0.0]
    image_finder, project = images(clock=lambda: now[0])
    image_finder.find_image("debian-12")
    now[0] = 300.0
    project.lists["/images"] = [CloudUnavailable("no answer")]
    assert image_finder.find_image("debian-12").id == UUID
    project.images.clear()
    assert image_finder.find_image("debian-12").id == UUID, "it is not asked again at once"
    now[0] = 360.0
    with pytest.raises(BadRequest):
        image_finder.find_image("debian-12")


def test_a_list_that_breaks_off_is_no_answer() -> None:
    image_finder, project = images(page=1)
    whole = project.query

    def broken_query(service: str, path: str, what: str, **query: Any) -> Any:
        if "marker" in query:
            raise CloudUnavailable("no answer")
        return whole(service, path, what, **query)

    project.query = broken_query  # type: ignore[method-assign]
    with pytest.raises(CloudUnavailable):
        image_finder.find_image("newest:debian-12")

from __future__ import annotations

from typing import Any

import pytest

from burstd.domain.cloud.instance import Leftover
from burstd.domain.errors import BadRequest, CloudUnavailable, NotFound
from providers.openstack.client.errors import OpenStackConflict
from providers.openstack.servers import metadata
from providers.openstack.servers.leftovers import OpenStackLeftovers
from tests.providers.openstack.project import PROJECT, settings
from tests.providers.openstack.script import Answer, ScriptedCalls

NOW = 1_000_000.0


def port(name: str, server: str = "", cluster: str = "ours") -> dict[str, Any]:
    description = metadata.owner_description(cluster, f"c-{name}")
    return {"id": name, "device_id": server, "description": description, "project_id": PROJECT}


def floating(name: str, port_id: str | None, cluster: str = "ours") -> dict[str, Any]:
    description = metadata.owner_description(cluster, f"c-{name}")
    return {"id": name, "port_id": port_id, "description": description, "project_id": PROJECT}


def volume(name: str, server: str = "", cluster: str = "ours", status: str = "available") -> dict[str, Any]:
    attached = [{"server_id": server}] if server else []
    metadata = {"burstd-cluster": cluster, "burstd-claim": f"c-{name}"}
    return {"id": name, "status": status, "attachments": attached, "metadata": metadata}


def server(status: str = "ACTIVE", cluster: str = "ours") -> dict[str, Any]:
    return {"id": "s1", "status": status, "metadata": {"burstd-cluster": cluster}}


def group(name: str, age: float = 7200, members: int = 0, cluster: str = "ours") -> dict[str, Any]:
    return {"id": name, "name": metadata.group_name(cluster, name, NOW - age), "members": ["s"] * members}


def leftovers(
    answers: dict[str, Answer], *, volumes: bool = True, **more: Any
) -> tuple[OpenStackLeftovers, ScriptedCalls]:
    of = settings(side_by_side=1, **more)
    nothing: dict[str, Answer] = {
        "GET /ports": {"ports": []}, "GET /floatingips": {"floatingips": []}, "GET /volumes/detail": {"volumes": []},
        "GET /os-server-groups": {"server_groups": []},
        "GET /servers/detail": {"servers": [{"id": "s1", "metadata": {}}]},
    }  # fmt: skip
    script = ScriptedCalls({**nothing, **answers}, of, volumes=volumes)
    return OpenStackLeftovers("cloud", "ours", of, script, lambda: NOW), script


def left(kind: str, name: str, server: str = "") -> Leftover:
    return Leftover(kind, name, "cloud", "" if kind == "server-group" else f"c-{name}", server)


ALL: dict[str, Answer] = {
    "GET /ports": {"ports": [port("p1", "s1"), port("p2"), port("p3", "s-gone"), port("p4", cluster="ours2"),
                             {"id": "p5", "device_id": "", "description": "", "project_id": PROJECT},
                             port("p6") | {"project_id": "p2"}]},
    "GET /floatingips": {"floatingips": [floating("f1", "p1"), floating("f2", "p2"), floating("f3", None),
                                         floating("f4", "p-somebodys"), floating("f5", None, "ours2"),
                                         floating("f6", None) | {"project_id": "p2"}]},
    "GET /volumes/detail": {"volumes": [volume("v1", "s1"), volume("v2"), volume("v3", cluster="ours2")]},
    "GET /os-server-groups": {"server_groups": [group("g1"), group("g2", members=1), group("g3", age=10),
                                                group("g4", cluster="ours2"), group("g6", age=-7200),
                                                {"id": "g5", "name": "mine", "members": []}]},
}  # fmt: skip


def test_what_is_left_and_what_is_in_use() -> None:
    leftover_list, script = leftovers(ALL)
    assert list(leftover_list.list_leftovers()) == [
        left("floating-ip", "f1", "s1"), left("floating-ip", "f2"), left("floating-ip", "f3"),
        left("floating-ip", "f4", "p-somebodys"),
        left("port", "p1", "s1"), left("port", "p2"), left("port", "p3"),
        left("volume", "v1", "s1"), left("volume", "v2"),
        left("server-group", "g1"), left("server-group", "g6"),
    ]  # fmt: skip
    assert script.said[-1] == "GET /servers/detail", "last, so that a server is in the list whose port is"
    assert len(script.said) == 5
    assert [query.get("project_id") for query in script.queries] == [PROJECT, PROJECT, None, None, None]


@pytest.mark.parametrize(("cluster", "user"), [("ours", "s1"), ("ours2", "")])
def test_what_was_made_for_a_server_that_does_not_use_it_yet(cluster: str, user: str) -> None:
    """Nor any more: its build has failed."""
    made = {"id": "s1", "metadata": {"burstd-cluster": cluster, "burstd-claim": "c-p1"}}
    leftover_list, _ = leftovers({"GET /ports": {"ports": [port("p1")]}, "GET /servers/detail": {"servers": [made]}})
    assert list(leftover_list.list_leftovers()) == [left("port", "p1", user)]


def test_what_a_cloud_lacks_is_not_asked_for() -> None:
    leftover_list, script = leftovers({"GET /floatingips": NotFound("no routers here")}, volumes=False)
    assert list(leftover_list.list_leftovers()) == []
    assert script.said == ["GET /ports", "GET /floatingips", "GET /os-server-groups"]


@pytest.mark.parametrize("what", [*ALL, "GET /servers/detail"])
def test_half_a_list_is_none(what: str) -> None:
    leftover_list, _ = leftovers({**ALL, what: CloudUnavailable("no answer")})
    with pytest.raises(CloudUnavailable):
        list(leftover_list.list_leftovers())


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "port": (port("x"), port("x", cluster="ours2"), "/ports", "ports"),
    "floating-ip": (floating("x", None), floating("x", None, "ours2"), "/floatingips", "floatingips"),
    "volume": (volume("x"), volume("x", cluster="ours2"), "/volumes", "volume"),
    "server-group": (group("x"), group("x", cluster="ours2"), "/os-server-groups", "server_group"),
}


def lookup_answers(kind: str, thing: dict[str, Any]) -> dict[str, Answer]:
    _, _, path, key = KINDS[kind]
    return {f"GET {path}": {key: [thing]}} if key.endswith("s") else {f"GET {path}/x": {key: thing}}


@pytest.mark.parametrize("kind", KINDS)
def test_removing(kind: str) -> None:
    owned, theirs, path, _ = KINDS[kind]
    leftover_list, script = leftovers(lookup_answers(kind, owned))
    leftover_list.remove([left(kind, "x")])
    assert script.changed() == [f"DELETE {path}/x"]
    leftover_list, script = leftovers({**lookup_answers(kind, theirs), "GET /ports": {"ports": [port("mine")]}})
    if kind == "port":
        script.answers["GET /ports"] = {"ports": [port("mine"), theirs]}
    with pytest.raises(BadRequest, match=f"{kind} x"):
        leftover_list.remove([left("port", "mine"), left(kind, "x")])
    assert script.changed() == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_gone_is_no_error(kind: str) -> None:
    owned, _, path, _ = KINDS[kind]
    leftover_list, script = leftovers({**lookup_answers(kind, owned), f"DELETE {path}/x": NotFound("none")})
    leftover_list.remove([left(kind, "x")])
    gone, script = leftovers({"GET /volumes/x": NotFound("none"), "GET /os-server-groups/x": NotFound("none")})
    gone.remove([left(kind, "x")])
    assert script.changed() == []


def test_floating_ips_go_before_ports_and_one_that_fails_keeps_no_other() -> None:
    leftover_list, script = leftovers({
        "GET /ports": {"ports": [port("p1", "s1"), port("p2"), port("p3", "s-gone")]},
        "GET /floatingips": {"floatingips": [floating("f1", "p2")]},
        "GET /servers/s1": {"server": server()}, "GET /servers/s-gone": NotFound("none"),
        "DELETE /floatingips/f1": CloudUnavailable("no answer"),
    })  # fmt: skip
    with pytest.raises(CloudUnavailable):
        leftover_list.remove([left("port", "p1"), left("port", "p2"), left("port", "p3"), left("floating-ip", "f1")])
    assert [one for one in script.said if one.startswith("DELETE")] == [
        "DELETE /floatingips/f1", "DELETE /ports/p2", "DELETE /ports/p3",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["port", "floating-ip"])
def test_another_projects_is_not_ours(kind: str) -> None:
    """Whose network it is sees its ports, and may delete them."""
    owned, _, _, _ = KINDS[kind]
    leftover_list, script = leftovers(lookup_answers(kind, owned | {"project_id": "p2"}))
    with pytest.raises(BadRequest, match=f"another project's: {kind} x"):
        leftover_list.remove([left(kind, "x")])
    assert script.changed() == []


def test_a_port_that_nova_did_not_let_go_of() -> None:
    """Neutron refuses to delete it as long as it says that it is a machine's."""
    free = {"port": {"device_id": "", "device_owner": ""}}
    leftover_list, script = leftovers({"GET /ports": {"ports": [port("x", "s1")]}, "GET /servers/s1": NotFound("none")})
    leftover_list.remove([left("port", "x")])
    assert script.said[-2:] == ["PUT /ports/x", "DELETE /ports/x"]
    assert script.queries[-2:] == [free, None]
    leftover_list, script = leftovers(
        {"GET /ports": {"ports": [port("x", "s1")]}, "GET /servers/s1": {"server": server()}}
    )
    with pytest.raises(OpenStackConflict, match="s1"):
        leftover_list.remove([left("port", "x")])
    leftover_list, script = leftovers(
        {"GET /ports": {"ports": [port("x", "s1")]}, "GET /servers/s1": {"server": {"id": "s1"}}}
    )
    with pytest.raises(CloudUnavailable):
        leftover_list.remove([left("port", "x")])
    assert script.changed() == [], "it is there, in a cell that is down"


USED: dict[str, Any] = {
    "port": {"GET /ports": {"ports": [port("x", "s1")]}},
    "volume": {
        "GET /volumes/x": {"volume": volume("x", "s1", status="in-use")},
        "GET /attachments": {"attachments": [{"id": "a1", "instance": "s1", "volume_id": "x"}]},
    },
}


@pytest.mark.parametrize("kind", USED)
@pytest.mark.parametrize("cluster", ["ours", "ours2"])
def test_a_server_that_the_cloud_keeps_for_a_while_is_ended_for_good(kind: str, cluster: str) -> None:
    """What it uses goes the next time."""
    remaining = {"GET /servers/s1": {"server": server("SOFT_DELETED", cluster)}}
    leftover_list, script = leftovers({**USED[kind], **remaining})
    with pytest.raises(OpenStackConflict, match="s1"):
        leftover_list.remove([left(kind, "x")])
    assert script.changed() == (["POST /servers/s1/action"] if cluster == "ours" else [])
    assert (script.queries[-1] == {"forceDelete": None}) == (cluster == "ours")


VOLUMES = [("available", True), ("error", True), ("deleting", None), ("error_deleting", False), ("in-use", False),
           ("creating", False)]  # fmt: skip


@pytest.mark.parametrize(("status", "removed"), VOLUMES)
def test_volumes_by_their_state(status: str, removed: bool | None) -> None:
    """In use, and nobody says by whom, it stays."""
    leftover_list, script = leftovers({
        "GET /volumes/x": {"volume": volume("x", status=status)},
        "GET /attachments": {"attachments": [{"id": "a1", "instance": None, "volume_id": "x"}]},
    })  # fmt: skip
    if removed is False:
        with pytest.raises(OpenStackConflict, match=status):
            leftover_list.remove([left("volume", "x")])
    else:
        leftover_list.remove([left("volume", "x")])
    assert bool(script.changed()) == bool(removed)


@pytest.mark.parametrize("status", ["reserved", "attaching", "in-use", "detaching"])
def test_a_volume_that_a_server_took_along_into_nothing(status: str) -> None:
    gone = {"id": "a1", "instance": "s-gone", "volume_id": "x"}
    attached = [gone, {**gone, "id": "a2", "instance": "s1"}, {**gone, "id": "a3", "volume_id": "somebody's"}]
    answers: dict[str, Answer] = {
        "GET /volumes/x": {"volume": volume("x", status=status)}, "GET /attachments": {"attachments": attached},
        "GET /servers/s-gone": NotFound("none"), "GET /servers/s1": {"server": server()},
    }  # fmt: skip
    leftover_list, script = leftovers(answers)
    with pytest.raises(OpenStackConflict, match="s1"):
        leftover_list.remove([left("volume", "x")])
    assert script.changed() == []
    del attached[1]
    leftover_list.remove([left("volume", "x")])
    assert script.said[-2:] == ["DELETE /attachments/a1", "DELETE /volumes/x"]


@pytest.mark.parametrize("said", [group("x", members=1), group("x", age=10)])
def test_a_group_that_a_launch_may_need_is_left_alone(said: dict[str, Any]) -> None:
    leftover_list, script = leftovers({"GET /os-server-groups/x": {"server_group": said}})
    leftover_list.remove([left("server-group", "x")])
    assert script.changed() == []


def test_a_kind_that_there_is_not() -> None:
    leftover_list, script = leftovers({})
    with pytest.raises(BadRequest, match="snapshot"):
        leftover_list.remove([left("port", "x"), left("snapshot", "y")])
    assert script.said == []

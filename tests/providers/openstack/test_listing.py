from __future__ import annotations

from typing import Any

import pytest

from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.errors import CloudUnavailable, NotFound, OutcomeUnknown, ProviderError
from providers.openstack.client.errors import OpenStackConflict
from providers.openstack.servers import metadata
from providers.openstack.servers.listing import ServerListing
from tests.providers.openstack.project import PROJECT, settings
from tests.providers.openstack.script import Answer, ScriptedCalls

LIST = "GET /servers/detail"
PENDING, RUNNING, STOPPING, ERROR = (
    InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPING, InstanceState.ERROR,
)  # fmt: skip
DOWN = {"id": "s9", "status": "UNKNOWN", "tenant_id": "p", "created": "2030-01-01T00:00:00Z", "links": []}


def server(number: int = 1, status: str = "ACTIVE", cluster: str = "ours", **more: Any) -> dict[str, Any]:
    return {
        "id": f"s{number}", "name": f"ours-c{number}", "status": status, "created": "2001-09-09T01:46:40Z",
        "metadata": {"burstd-cluster": cluster, "burstd-claim": f"c{number}", "site": "here"},
        "flavor": {"original_name": "small"}, "OS-EXT-AZ:availability_zone": "z1", "OS-EXT-STS:task_state": None,
        "addresses": {}, **more,
    }  # fmt: skip


def page(*servers: dict[str, Any], more: bool = False) -> dict[str, Any]:
    links = [{"rel": "next", "href": f"http://x/servers/detail?marker={servers[-1]['id']}"}] if more else []
    return {"servers": list(servers), "servers_links": links}


def listing(
    of_list: Answer, answers: dict[str, Answer] | None = None, **more: Any
) -> tuple[ServerListing, ScriptedCalls]:
    of = settings(**more)
    script = ScriptedCalls({LIST: of_list, **(answers or {})}, of)
    return ServerListing("cloud", "ours", of, script), script


def one(said: dict[str, Any], **more: Any) -> Instance:
    (found,) = listing(page(said), **more)[0].instances()
    return found


def test_what_is_known_of_a_server() -> None:
    assert one(server()) == Instance(
        id="s1", provider="cloud", state=RUNNING, claim_id="c1", name="ours-c1", zone="z1", instance_type="small",
        tags={"burstd-cluster": "ours", "burstd-claim": "c1", "site": "here"}, launched=1_000_000_000.0,
    )  # fmt: skip


STATES = [
    ("BUILD", None, PENDING), ("BUILD", "spawning", PENDING), ("ACTIVE", None, RUNNING), ("REBOOT", None, RUNNING),
    ("ACTIVE", "deleting", STOPPING), ("BUILD", "deleting", STOPPING), ("ERROR", "deleting", STOPPING),
    ("SOFT_DELETED", None, STOPPING), ("DELETED", None, InstanceState.TERMINATED), ("ERROR", None, ERROR),
    ("SHUTOFF", None, ERROR), ("PAUSED", None, ERROR), ("SHELVED_OFFLOADED", None, ERROR),
    ("UNKNOWN", None, InstanceState.UNKNOWN), ("SOMETHING_NEW", None, InstanceState.UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize(("status", "task", "state"), STATES)
def test_states(status: str, task: str | None, state: InstanceState) -> None:
    said: dict[str, Any] = {"OS-EXT-STS:task_state": task}
    found = one(server(status=status, **said))
    assert found.state is state
    assert bool(found.error) == (state is ERROR)


FAULTS = [
    ("No valid host was found. There are not enough hosts available.", "capacity"),
    ("Exceeded maximum number of retries. Exhausted all hosts available for retrying build failures for instance x.",
     "capacity"),
    ("Quota exceeded for instances: Requested 1, but already used 10 of 10 instances", "quota"),
    ("Build of instance x aborted: Failed to allocate the network(s), not rescheduling.", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "cause"), FAULTS)
def test_why_a_launch_was_refused_late(text: str, cause: str) -> None:
    found = one(server(status="ERROR", fault={"code": 500, "message": text}))
    assert (found.state, found.error, found.cause) == (ERROR, text, cause)


def test_whose_they_are() -> None:
    found = listing(page(server(1), server(2, cluster="ours2"), server(3, metadata={}), server(4)))[0].instances()
    assert [one.id for one in found] == ["s1", "s4"]


V4 = {"addr": "10.0.0.4", "version": 4, "OS-EXT-IPS:type": "fixed"}
V6 = {"addr": "fd00::4", "version": 6, "OS-EXT-IPS:type": "fixed"}
OUT = {"addr": "192.0.2.4", "version": 4, "OS-EXT-IPS:type": "floating"}
OTHER = {"addr": "10.9.0.4", "version": 4, "OS-EXT-IPS:type": "fixed"}
ADDRESSES: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"back": [OTHER], "front": [OUT, V6, V4]}, "10.0.0.4"),
    ({"front": [V6]}, "fd00::4"),
    ({"known-by-id": [V4], "back": [OTHER]}, "10.0.0.4"),
]


@pytest.mark.parametrize(("addresses", "found"), ADDRESSES)
def test_its_address_is_the_one_in_the_first_network(addresses: dict[str, Any], found: str) -> None:
    assert one(server(addresses=addresses)).address == found


def floating(claim: str, address: str, fixed: str | None = "10.0.0.4", **more: Any) -> dict[str, Any]:
    return {
        "description": metadata.owner_description(more.pop("cluster", "ours"), claim),
        "project_id": PROJECT,
        "port_id": "p",
        "floating_ip_address": address,
        "fixed_ip_address": fixed,
        **more,
    }


def test_a_floating_ip_is_its_address() -> None:
    listed = {"floatingips": [
        floating("c1", "192.0.2.1"), floating("c2", "192.0.2.2", None, port_id=None),
        floating("c3", "192.0.2.3", cluster="ours2"), floating("c4", "192.0.2.4", project_id="p2"),
        floating("c5", "192.0.2.5", description=""),
    ]}  # fmt: skip
    said = [server(number, addresses={"back": [OTHER], "front": [V4]}) for number in range(1, 6)]
    server_listing, script = listing(page(*said), {"GET /floatingips": listed}, floating_network="out")
    assert [one.address for one in server_listing.instances()] == ["192.0.2.1", "", "", "", ""]
    assert script.queries[0]["project_id"] == PROJECT


def test_a_second_machine_of_a_claim_has_not_the_address_of_the_first() -> None:
    """Else the first one's job would keep it alive."""
    listed = {"floatingips": [floating("c1", "192.0.2.1")]}
    first, second = server(1, addresses={"front": [V4]}), {**server(1, addresses={"front": [OTHER]}), "id": "s2"}
    server_listing, _ = listing(page(first, second), {"GET /floatingips": listed}, floating_network="out")
    assert [(one.claim_id, one.address) for one in server_listing.instances()] == [("c1", "192.0.2.1"), ("c1", "")]


def test_nova_is_asked_for_all_of_the_project_without_a_limit() -> None:
    """With a filter or a limit it leaves out the servers of a cell that is down."""
    server_listing, script = listing(page(server()))
    list(server_listing.instances())
    assert script.queries == [{}]
    server_listing, script = listing(page(server()), page=2)
    list(server_listing.instances())
    assert script.queries == [{"limit": 2}]


def test_a_list_with_a_cell_down_is_no_list() -> None:
    server_listing, _ = listing(page(DOWN, server()))
    with pytest.raises(CloudUnavailable, match="s9"):
        list(server_listing.instances())


BOTH = [page(server(1), server(2), more=True), page(server(3))]
LOOKED_UP: list[tuple[Answer, list[str]]] = [
    ({"server": server(3)}, ["s1", "s2", "s3"]),
    (NotFound("none"), ["s1", "s2"]),
    ({"server": server(3, cluster="ours2")}, ["s1", "s2"]),
    ({"server": DOWN}, []),
    (CloudUnavailable("no answer"), []),
]


@pytest.mark.parametrize("lists", [[BOTH[0], page(server(9, cluster=""))], [page(server(2), server(1))]])
@pytest.mark.parametrize(("said", "found"), LOOKED_UP)
def test_what_a_list_lacks_is_looked_up_before_it_counts_as_gone(
    said: Answer, found: list[str], lists: list[Answer]
) -> None:
    """One page may be cut short, too."""
    server_listing, script = listing([*BOTH, *lists, page(server(1), server(2))], {"GET /servers/s3": said})
    assert [one.id for one in server_listing.instances()] == ["s1", "s2", "s3"]
    if found:
        assert sorted(one.id for one in server_listing.instances()) == found
        assert script.said.count("GET /servers/s3") == 1
        assert sorted(one.id for one in server_listing.instances()) == found
        assert script.said.count("GET /servers/s3") == 1 + ("s3" in found), "once it is gone it is gone"
    else:
        with pytest.raises(CloudUnavailable):
            list(server_listing.instances())


def test_what_is_gone_is_looked_up_once() -> None:
    remaining = {"server": server(3, "SOFT_DELETED")}
    server_listing, script = listing([page(server(3)), page()], {"GET /servers/s3": remaining})
    assert [[one.state for one in server_listing.instances()] for _ in range(3)] == [[RUNNING], [STOPPING], []]
    assert script.said.count("GET /servers/s3") == 1


def test_what_is_on_its_way_out_is_not_looked_up() -> None:
    going = server(3, **{"OS-EXT-STS:task_state": "deleting"})
    server_listing, script = listing([BOTH[0], page(going), BOTH[0], page()])
    list(server_listing.instances())
    assert [one.id for one in server_listing.instances()] == ["s1", "s2"]
    assert "GET /servers/s3" not in script.said


def test_a_server_that_moves_while_pages_are_read_is_listed_once() -> None:
    server_listing, _ = listing([page(server(1, "BUILD"), server(2), more=True), page(server(1), server(3))])
    assert [(one.id, one.state) for one in server_listing.instances()] == [
        ("s1", PENDING),
        ("s2", RUNNING),
        ("s3", RUNNING),
    ]


CONSOLES: list[tuple[Answer, str | type[ProviderError]]] = [
    ({"output": "login:"}, "login:"),
    ({"output": None}, ""),
    (OpenStackConflict("not ready"), ""),
    (NotFound("none"), NotFound),
    (OutcomeUnknown("no answer"), CloudUnavailable),
]


@pytest.mark.parametrize(("said", "found"), CONSOLES)
def test_consoles(said: Answer, found: str | type[ProviderError]) -> None:
    server_listing, _ = listing(page(), {"POST /servers/a%2Fb/action": said})
    if isinstance(found, str):
        assert server_listing.console("a/b") == found
    else:
        with pytest.raises(found) as raised:
            server_listing.console("a/b")
        assert type(raised.value) is found

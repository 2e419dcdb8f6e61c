from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from burstd.domain.cloud.instance import TAG_CLAIM, Instance, InstanceState
from burstd.domain.errors import (
    BadRequest,
    CloudUnavailable,
    InsufficientCapacity,
    NoSuchImage,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from burstd.domain.plugins.provider import LaunchOutcome, LaunchRequest
from providers.openstack.launch.floating_ips import FloatingIps
from providers.openstack.launch.images import OpenStackImages
from providers.openstack.launch.launch import ServerLauncher
from providers.openstack.launch.networks import ProjectNetworks
from providers.openstack.launch.ports import Ports
from providers.openstack.launch.server_groups import ServerGroups
from providers.openstack.launch.volumes import RootVolumes
from providers.openstack.servers import metadata
from tests.providers.openstack.project import CLUSTER, PROJECT, FakeProject, Killed, many, request, settings

ALL = {
    "networks": ["front", "back"],
    "floating_network": "out",
    "root": {"gib": 20},
    "gang_policy": "anti-affinity",
    "side_by_side": 1,
}


class StubFlavorCatalog:
    """A catalogue of two flavors and one zone."""

    def flavor(self, name: str) -> Any:
        return SimpleNamespace(id=f"f-{name}") if name in ("small", "large") else None

    def knows_zone(self, zone: str) -> bool:
        return zone == "z1"


def launching(project: FakeProject, **more: Any) -> ServerLauncher:
    of = settings(**more)
    networks = ProjectNetworks(of, project)
    time = iter(range(1_000_000))
    return ServerLauncher(
        "openstack",
        CLUSTER,
        of,
        project,
        StubFlavorCatalog(),  # type: ignore[arg-type]
        OpenStackImages(of, project),
        ServerGroups(CLUSTER, of, project),
        Ports(CLUSTER, of, project, networks),
        FloatingIps(CLUSTER, of, project, networks),
        RootVolumes(CLUSTER, of, project, clock=lambda: float(next(time)), pause=lambda _: None),
        clock=lambda: 1000.0,
    )


def causes(outcomes: Mapping[str, LaunchOutcome]) -> list[str]:
    return ["" if isinstance(o.result, Instance) else o.result.cause for o in outcomes.values()]


def error(outcomes: Mapping[str, LaunchOutcome], claim: str = "c1") -> ProviderError:
    found = outcomes[claim].result
    assert isinstance(found, ProviderError)
    return found


def left(project: FakeProject) -> dict[str, int]:
    return {kind: len(things) for kind, things in project.things.items() if things}


def test_what_a_server_is_made_of() -> None:
    project = FakeProject()
    asked = request("c1", gang="7")
    found = (
        launching(
            project, **ALL, security_groups=["nodes"], key_name="ops", config_drive=True, metadata={"site": "here"}
        )
        .launch_servers([asked])["c1"]
        .result
    )
    assert isinstance(found, Instance)
    assert (found.state, found.claim_id, found.name, found.zone) == (InstanceState.PENDING, "c1", "ours-c1", "z1")
    assert (found.instance_type, found.launched, found.id in project.things["servers"]) == ("small", 1000.0, True)
    (server,) = project.things["servers"].values()
    ports = {port["network_id"]: port for port in project.things["ports"].values()}
    (volume,) = project.things["volumes"].values()
    (floating,) = project.things["floatingips"].values()
    (group,) = project.things["os-server-groups"].values()
    assert server["networks"] == [{"port": ports["n-front"]["id"]}, {"port": ports["n-back"]["id"]}]
    assert server["metadata"] == {**asked.tags, "site": "here"}
    assert (server["tags"], server["key_name"], server["config_drive"]) == (["burstd-cluster=ours"], "ops", True)
    assert (server["flavorRef"], server["availability_zone"], "imageRef" in server) == ("f-small", "z1", False)
    assert base64.b64decode(server["user_data"]).decode() == asked.user_data
    (disk,) = server["block_device_mapping_v2"]
    assert (disk["uuid"], disk["delete_on_termination"]) == (volume["id"], True)
    assert (volume["size"], volume["imageRef"], volume["metadata"]) == (20, "i-debian", asked.tags)
    assert floating["port_id"] == ports["n-front"]["id"]
    owner = metadata.ResourceOwner(CLUSTER, "c1")
    assert {metadata.parse_description(one["description"]) for one in [*ports.values(), floating]} == {owner}
    assert [ports[n]["name"] for n in ("n-front", "n-back")] == ["ours-c1", "ours-c1-2"]
    assert all(port["security_groups"] == ["sg-1"] for port in ports.values())
    assert (group["policies"], metadata.parse_group_name(group["name"])[2]) == (["anti-affinity"], "7")  # type: ignore[index]
    scheduler_hints = next(body for what, body in project.said if what == "POST /servers")["os:scheduler_hints"]
    assert scheduler_hints == {"group": group["id"]}


def test_calls_for_many() -> None:
    """One list and one call for the ports of all, one call a server."""
    project = FakeProject()
    assert causes(launching(project).launch_servers(many(50))) == [""] * 50
    assert (project.count("GET /ports"), project.count("POST /ports"), project.count("POST /servers")) == (1, 1, 50)
    assert project.names("servers") == project.names("ports")


def test_no_call_is_too_long() -> None:
    """An address has room for 8190 bytes, and a call a time limit."""
    project = FakeProject()
    assert causes(launching(project, networks=["front", "back", "out"]).launch_servers(many(40))) == [""] * 40
    assert len(project.things["ports"]) == 120
    listed = [len(query["name"]) for what, query in project.said if what == "GET /ports"]
    made = [len(body["ports"]) for what, body in project.said if what == "POST /ports"]
    assert max(listed) <= 50
    assert max(made) <= 50


def _owners(project: FakeProject) -> set[str]:
    """Claims of all that there is; what bears none shows as empty."""
    found = {
        getattr(metadata.parse_description(one["description"]), "claim", "")
        for kind in ("ports", "floatingips")
        for one in project.things[kind].values()
    }
    found |= {
        one["metadata"].get(TAG_CLAIM, "") for kind in ("volumes", "servers") for one in project.things[kind].values()
    }
    return found


CHANGES = 1 + 1 + 3 + 3 + 3
"""Group, ports, and a floating IP, a volume and a server for each of three."""


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, CHANGES + 1))
def test_a_process_that_ends_anywhere(number: int, done: bool) -> None:
    """Nothing is without an owner; the same launches asked for again use what is there, and make one server each."""
    project = FakeProject()
    project.dies_at, project.done = number, done
    asked = many(3, gang="7")
    with pytest.raises(Killed):
        launching(project, **ALL).launch_servers(asked)
    assert _owners(project) <= {"c000", "c001", "c002"}
    assert all(metadata.parse_group_name(name) for name in project.names("os-server-groups"))
    project.dies_at = 0
    again = [one for one in asked if one.name not in project.names("servers")]
    assert causes(launching(project, **ALL).launch_servers(again)) == [""] * len(again)
    whole = {"ports": 6, "floatingips": 3, "volumes": 3, "servers": 3, "os-server-groups": 1}
    assert left(project) == whole
    assert project.names("servers") == [one.name for one in asked]


def test_a_second_launch_of_one_claim_makes_no_second_machine() -> None:
    """The first one's answer was lost, and nobody has seen its server yet."""
    project = FakeProject()
    project.loses["POST /servers"] = [OutcomeUnknown("no answer came")]
    first, second = (launching(project, **ALL).launch_servers([request("c1")]) for _ in range(2))
    assert causes(first) == causes(second) == ["unknown"]
    assert left(project) == {"ports": 2, "floatingips": 1, "volumes": 1, "servers": 1}, "nothing is taken from it"


def test_second_launches_of_many_claims_make_no_second_machines() -> None:
    """Nova has not given the servers their ports yet."""
    project = FakeProject()
    project.loses["POST /servers"] = [OutcomeUnknown("no answer came")] * 3
    launcher = launching(project, side_by_side=1)
    launcher.launch_servers(many(3))
    for port in project.things["ports"].values():
        port["device_id"] = ""
    before = set(project.things["ports"])
    assert causes(launcher.launch_servers(many(4))) == ["unknown"] * 3 + [""]
    assert before < set(project.things["ports"]), "nothing is taken from them"
    assert left(project) == {"ports": 4, "servers": 4}


def test_a_server_that_cannot_be_seen_is_there() -> None:
    project = FakeProject()
    project.loses["POST /servers"] = [OutcomeUnknown("no answer came")]
    launcher = launching(project)
    launcher.launch_servers([request("c1")])
    (server,), (port,) = project.things["servers"].values(), project.things["ports"].values()
    del server["metadata"]
    port["device_id"] = ""
    assert causes(launcher.launch_servers([request("c1")])) == ["unavailable"]
    assert left(project) == {"ports": 1, "servers": 1}


def test_a_first_call_that_is_carried_out_late_finds_no_ports() -> None:
    """Nova froze with it in hand. What it may use is gone before the second call is made."""
    project = FakeProject()
    project.refuses["POST /servers"] = [OutcomeUnknown("no answer came")]
    launcher = launching(project, floating_network="out")
    assert causes(launcher.launch_servers([request("c1")])) == ["unknown"]
    late = project.said[-1][1]
    assert causes(launcher.launch_servers([request("c1")])) == [""]
    with pytest.raises(BadRequest, match="could not be found"):
        project.mutate("compute", "POST", "/servers", "create the server late", body=late, version="2.72")
    assert left(project) == {"ports": 1, "floatingips": 1, "servers": 1}
    (port,), (floating,) = project.things["ports"], project.things["floatingips"].values()
    assert floating["port_id"] == port, "it goes with the machine that there is"


def test_a_server_that_comes_between_the_list_and_the_call() -> None:
    project = FakeProject()
    project.refuses["POST /servers"] = [BadRequest("Port p is still in use.")]
    assert causes(launching(project).launch_servers([request("c1")])) == ["unknown"]
    assert left(project) == {"ports": 1}


def test_ports_that_cannot_be_taken_from_a_late_call_keep_the_claim_waiting() -> None:
    project = FakeProject()
    project.refuses["POST /servers"] = [OutcomeUnknown("no answer came")]
    project.refuses["DELETE /ports"] = [OutcomeUnknown("no answer came")]
    launcher = launching(project)
    assert [causes(launcher.launch_servers([request("c1")])) for _ in range(2)] == [["unknown"], ["unknown"]]
    assert project.count("POST /servers") == 1


def test_throttling_does_not_hide_an_earlier_call() -> None:
    """Ports are used again only where this very launch made them and Nova refused the server."""
    project = FakeProject()
    project.refuses["POST /servers"] = [OutcomeUnknown("no answer came")]
    launcher = launching(project)
    launcher.launch_servers([request("c1")])
    (first,) = project.things["ports"]
    project.lists["/ports"] = [RateLimited("slow down")]
    assert causes(launcher.launch_servers([request("c1")])) == ["rate"]
    assert causes(launcher.launch_servers([request("c1")])) == [""]
    assert first not in project.things["ports"]


def test_a_neighbours_port_of_our_name_is_not_used() -> None:
    project = FakeProject()
    theirs = {"id": "x", "name": "ours-c1", "network_id": "n-front", "device_id": "", "project_id": PROJECT}
    project.things["ports"]["x"] = {**theirs, "description": metadata.owner_description("ours2", "c1")}
    project.things["ports"]["y"] = {**theirs, "id": "y", "description": "burstd-cluster=ours"}
    owned = {"description": metadata.owner_description(CLUSTER, "c1"), "project_id": "p2"}
    project.things["ports"]["z"] = {**theirs, "id": "z", **owned}
    assert causes(launching(project).launch_servers([request("c1")])) == [""]
    assert len(project.things["ports"]) == 4
    assert {project.things["ports"][one]["device_id"] for one in "xyz"} == {""}


REFUSALS = [
    (QuotaExceeded("Quota exceeded for cores"), QuotaExceeded),
    (BadRequest("Invalid key_name provided."), BadRequest),
    (NotFound("no such endpoint"), BadRequest),
    (BadRequest("The requested availability zone is not available"), InsufficientCapacity),
    (CloudUnavailable("a balancer found none"), CloudUnavailable),
    (BadRequest("Port id ports-0002 could not be found."), CloudUnavailable),
    (BadRequest("Block Device Mapping is Invalid: failed to get volume volumes-0007."), CloudUnavailable),
    (BadRequest("Flavor f-small could not be found."), CloudUnavailable),
    (BadRequest("Can not find requested image"), NoSuchImage),
    (BadRequest("Security group ports-0002x could not be found."), BadRequest),
]


@pytest.mark.parametrize(("refusal", "kind"), REFUSALS, ids=[str(refusal) for refusal, _ in REFUSALS])
def test_after_a_sure_refusal_nothing_is_left(refusal: ProviderError, kind: type[ProviderError]) -> None:
    """And it is of its own request only."""
    project = FakeProject()
    project.refuses["POST /servers"] = [refusal]
    # Its volume is no one's: Cinder lets it go.
    found = launching(project, **ALL).launch_servers(many(2))
    assert type(error(found, "c000")) is kind
    assert isinstance(found["c001"].result, Instance)
    assert left(project) == {"ports": 2, "floatingips": 1, "volumes": 1, "servers": 1}


@pytest.mark.parametrize("refused", ["POST /ports", "POST /floatingips", "POST /volumes"])
@pytest.mark.parametrize("lost", [False, True])
def test_without_its_parts_there_is_no_server(refused: str, lost: bool) -> None:
    """An answer that was lost leaves what bears its claim, yet surely no server."""
    project = FakeProject()
    troubles = project.loses if lost else project.refuses
    troubles[refused] = [OutcomeUnknown("no answer came") if lost else QuotaExceeded("Quota exceeded")]
    found = launching(project, **ALL).launch_servers([request("c1")])
    assert type(error(found)) is (CloudUnavailable if lost else QuotaExceeded)
    remaining = {"POST /ports": {"ports": 2}, "POST /floatingips": {"floatingips": 1}, "POST /volumes": {"volumes": 1}}
    assert left(project) == (remaining[refused] if lost else {})


@pytest.mark.parametrize("refused", ["POST /ports", "POST /floatingips", "POST /volumes", "POST /os-server-groups"])
def test_what_is_not_there_is_for_people_to_mend(refused: str) -> None:
    """A network that was deleted, say, or a service that lacks a call: to ask again soon is of no use."""
    project = FakeProject()
    project.refuses[refused] = [NotFound("Network n could not be found.")]
    found = launching(project, **ALL).launch_servers([request("c1", gang="7")])
    assert type(error(found)) is BadRequest
    assert project.count("POST /servers") == 0


def test_a_quota_of_ports_gives_some_theirs() -> None:
    project = FakeProject()
    project.most_ports = 5
    found = launching(project, networks=["front", "back"]).launch_servers(many(4))
    assert causes(found) == ["", "", "quota", "quota"]
    assert left(project) == {"ports": 4, "servers": 2}
    assert project.count("POST /ports") == 1 + 3, "the rest of them is not asked for"


def test_a_full_network_is_a_limit() -> None:
    project = FakeProject()
    project.refuses["POST /ports"] = [BadRequest("No more IP addresses available on network n.")]
    assert type(error(launching(project).launch_servers([request("c1")]))) is QuotaExceeded


def test_too_many_calls_stop_the_rest() -> None:
    """Nothing is removed either: the same requests come again at once, and use what is there."""
    project = FakeProject()
    project.refuses["POST /servers"] = [None, RateLimited("slow down", retry_after_s=7.0)]
    launcher = launching(project, side_by_side=1)
    found = launcher.launch_servers(many(5))
    assert causes(found) == ["", "rate", "rate", "rate", "rate"]
    assert error(found, "c004").retry_after_s == 7.0
    assert project.count("POST /servers") == 2
    assert left(project) == {"ports": 5, "servers": 1}
    before = set(project.things["ports"])
    assert causes(launcher.launch_servers(many(5)[1:])) == [""] * 4
    assert set(project.things["ports"]) == before
    assert left(project) == {"ports": 5, "servers": 5}


def test_a_silent_nova_is_not_waited_for_again_and_again() -> None:
    project = FakeProject()
    project.refuses["POST /servers"] = [OutcomeUnknown("no answer came")] * 10
    found = launching(project, side_by_side=2).launch_servers(many(8))
    asked = project.count("POST /servers")
    assert 3 <= asked <= 4
    assert sorted(causes(found)) == ["unavailable"] * (8 - asked) + ["unknown"] * asked
    assert left(project) == {"ports": asked}, "those that were not asked for need no ports"


class UnreadableProject(FakeProject):
    """Something in between answers in Nova's place, or Neutron's."""

    path = "/servers"

    def mutate(self, service: str, method: str, path: str, what: str, **words: Any) -> Any:
        answer = super().mutate(service, method, path, what, **words)
        return {} if path == self.path else answer


def test_an_answer_of_a_strange_form_does_not_say_that_there_is_no_server() -> None:
    project = UnreadableProject()
    assert causes(launching(project).launch_servers([request("c1")])) == ["unknown"]
    assert left(project) == {"ports": 1, "servers": 1}
    project = UnreadableProject()
    project.path = "/ports"
    assert causes(launching(project).launch_servers([request("c1")])) == ["unavailable"]
    assert left(project) == {"ports": 1}


NEVER: Sequence[tuple[LaunchRequest, str]] = (
    (request("c1", flavor="none"), "flavor"),
    (request("c1", zone="none"), "zone"),
    (request("c1", image="none"), "image"),
    (
        LaunchRequest("c1", "ours-c1", request("c1").offer, "", "x" * 50_000, {}),
        "user data",
    ),
)


@pytest.mark.parametrize(("bad", "word"), NEVER, ids=[word for _, word in NEVER])
def test_what_can_never_be_is_not_asked_for(bad: LaunchRequest, word: str) -> None:
    project = FakeProject()
    found = launching(project).launch_servers([bad, request("c2")])
    assert isinstance(error(found), BadRequest)
    assert word in str(error(found))
    assert project.names("servers") == ["ours-c2"]


def test_what_cannot_be_looked_up_is_looked_up_once() -> None:
    project = FakeProject()
    project.lists["/images"] = [CloudUnavailable("no answer")] * 9
    assert causes(launching(project).launch_servers(many(3))) == ["unavailable"] * 3
    assert project.count("GET /images") == 1


class TestVolumes:
    def test_each_server_starts_when_its_volume_is_there(self) -> None:
        project = FakeProject()
        project.volume_states = ["creating", "downloading", "available"]
        assert causes(launching(project, **ALL).launch_servers(many(2))) == ["", ""]

    @pytest.mark.parametrize(
        ("state", "rest"), [("creating", {"volumes": 1}), ("error", {})], ids=["too late", "broken"]
    )
    def test_what_does_not_come(self, state: str, rest: Mapping[str, int]) -> None:
        """Cinder lets no volume go that it is filling: it alone stays behind, and bears its claim."""
        project = FakeProject()
        project.volume_states = [state]
        found = launching(project, **ALL, volume_timeout_s=5).launch_servers([request("c1")])
        assert type(error(found)) is CloudUnavailable
        assert {kind: count for kind, count in left(project).items() if kind != "os-server-groups"} == rest
        assert _owners(project) <= {"c1"}

    def test_an_image_that_needs_more_gets_more(self) -> None:
        project = FakeProject()
        project.images[0]["min_disk"] = 40
        launching(project, **ALL).launch_servers([request("c1")])
        assert [one["size"] for one in project.things["volumes"].values()] == [40]

    def test_a_zone_of_volumes_is_used_where_there_is_one(self) -> None:
        project = FakeProject()
        launching(project, **ALL).launch_servers([request("c1")])
        assert [one["availability_zone"] for one in project.things["volumes"].values()] == ["z1"]


class TestGroups:
    def test_one_for_each_gang_whoever_asks(self) -> None:
        project = FakeProject()
        rooms = [launching(project, gang_policy="affinity") for _ in range(2)]
        rooms[0].launch_servers(
            [request("c1", gang="7"), request("c2", gang="7"), request("c3", gang="8"), request("c4")]
        )
        rooms[1].launch_servers([request("c5", gang="7")])
        scheduler_hints = [
            (body["server"]["name"], body.get("os:scheduler_hints", {}).get("group"))
            for what, body in project.said
            if what == "POST /servers"
        ]
        of_name = dict(scheduler_hints)
        assert of_name["ours-c1"] == of_name["ours-c2"] == of_name["ours-c5"]
        assert of_name["ours-c4"] is None
        assert len(project.things["os-server-groups"]) == 2

    def test_an_old_empty_one_is_about_to_be_removed(self) -> None:
        project = FakeProject()
        old = {"id": "g", "name": metadata.group_name(CLUSTER, "7", 1000), "members": [], "policies": ["affinity"]}
        project.things["os-server-groups"]["g"] = old
        launching(project, gang_policy="affinity").launch_servers([request("c1", gang="7")])
        assert len(project.things["os-server-groups"]) == 2
        old["members"] = ["s1"]
        project.things["os-server-groups"] = {"g": old}
        launching(project, gang_policy="affinity").launch_servers([request("c2", gang="7")])
        assert len(project.things["os-server-groups"]) == 1

    def test_the_sites_own(self) -> None:
        project = FakeProject()
        project.things["os-server-groups"]["g"] = {"id": "g", "name": "spread", "members": []}
        launching(project, server_group="spread").launch_servers([request("c1", gang="7")])
        assert [body["os:scheduler_hints"] for what, body in project.said if what == "POST /servers"] == [
            {"group": "g"}
        ]
        found = launching(project, server_group="none").launch_servers([request("c2")])
        assert type(error(found, "c2")) is BadRequest

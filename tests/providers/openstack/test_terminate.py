from __future__ import annotations

from typing import Any

import pytest

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.errors import BadRequest, CloudUnavailable, NotAllowed, NotFound
from providers.openstack.servers import metadata
from providers.openstack.servers.terminate import ServerTerminator
from tests.providers.openstack.project import PROJECT, settings
from tests.providers.openstack.script import Answer, ScriptedCalls

A, B, C = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "abc")


def port(name: str, server: str, cluster: str = "ours") -> dict[str, Any]:
    return {
        "id": name, "device_id": server, "description": metadata.owner_description(cluster, "c1"), "project_id": PROJECT
    }  # fmt: skip


def ports(*some: dict[str, Any]) -> dict[str, Any]:
    return {"ports": list(some)}


def servers(*some: str, claim: str = "c1") -> dict[str, Any]:
    """Ids of ours, all of one claim."""
    return {"servers": [{"id": one, "metadata": {TAG_CLUSTER: "ours", TAG_CLAIM: claim}} for one in some]}


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def terminator_and_script(
    listed: Answer, answers: dict[str, Answer] | None = None, **more: Any
) -> tuple[ServerTerminator, ScriptedCalls]:
    of = settings(side_by_side=1, **more)
    script = ScriptedCalls({"GET /ports": listed, "GET /servers/detail": servers(), **(answers or {})}, of)
    time = Time()
    return ServerTerminator("ours", of, script, lambda: time.now, time.sleep), script


def test_a_port_goes_once_nova_has_let_go_of_it() -> None:
    """Each as soon as it is free; a neighbour's on our server, if it ever came to that, stays."""
    theirs = port("p-o", B) | {"project_id": "p2"}
    both = ports(port("p-a", A), port("p-a2", A), port("p-b", B), port("p-n", B, "ours2"), theirs)
    terminator, script = terminator_and_script([both, both, ports(port("p-b", B), port("p-n", B, "ours2")), ports()])
    terminator.terminate([A, B, A])
    assert script.said == [
        "GET /ports", f"DELETE /servers/{A}", f"DELETE /servers/{B}",
        "GET /ports", "GET /ports", "DELETE /ports/p-a", "DELETE /ports/p-a2", "GET /ports", "DELETE /ports/p-b",
    ]  # fmt: skip
    assert [query["device_id"] for query in script.queries if query] == [[A, B], [A, B], [A, B], [B]]


def test_a_port_that_does_not_come_free_is_left_for_later() -> None:
    terminator, script = terminator_and_script(ports(port("p-a", A)))
    terminator.terminate([A])
    assert script.changed() == [f"DELETE /servers/{A}"]
    assert 15 < script.said.count("GET /ports") < 25


@pytest.mark.parametrize("user", ["", A])
@pytest.mark.parametrize("others", [(), (C,)])
def test_a_port_that_no_server_uses_is_known_by_its_claim(others: tuple[str, ...], user: str) -> None:
    """While a server is built, and when that failed; unless another server of the claim may be about to use it."""
    listed = [ports(), ports(port("p-a", user), port("p-b", B), port("p-n", "", "ours2")), ports()]
    terminator, script = terminator_and_script(listed, {"GET /servers/detail": servers(A, *others)})
    terminator.terminate([A])
    assert script.changed() == [*(["DELETE /ports/p-a"] if not others else []), f"DELETE /servers/{A}"]


def test_a_port_that_is_taken_meanwhile_is_waited_for() -> None:
    taken, unused = ports(port("p-a", A)), ports(port("p-a", ""))
    listed = [ports(), unused, ports(), taken, ports()]
    answers: dict[str, Answer] = {"GET /servers/detail": servers(A), "DELETE /ports/p-a": [NotAllowed("in use"), None]}
    terminator, script = terminator_and_script(listed, answers)
    terminator.terminate([A])
    assert script.said[-5:] == ["GET /ports", "DELETE /ports/p-a", "GET /ports", "GET /ports", "DELETE /ports/p-a"]


def test_a_port_that_may_never_be_deleted_is_told() -> None:
    answers: dict[str, Answer] = {"GET /servers/detail": servers(A), "DELETE /ports/p-a": NotAllowed("by policy")}
    terminator, _ = terminator_and_script([ports(), ports(port("p-a", "")), ports()], answers)
    with pytest.raises(NotAllowed):
        terminator.terminate([A])


def test_floating_ips_go_before_their_ports() -> None:
    floating = [
        {"id": "f1", "description": metadata.owner_description("ours", "c1"), "project_id": PROJECT},
        {"id": "f2", "description": "somebody's own", "project_id": PROJECT},
    ]
    terminator, script = terminator_and_script(
        [ports(port("p-a", A)), ports()], {"GET /floatingips": {"floatingips": floating}}, floating_network="out"
    )
    terminator.terminate([A])
    assert [one for one in script.said if one.startswith("DELETE")] == [
        f"DELETE /servers/{A}", "DELETE /floatingips/f1", "DELETE /ports/p-a",
    ]  # fmt: skip


def test_what_is_gone_is_no_error() -> None:
    gone = NotFound("none")
    terminator, script = terminator_and_script(
        [ports(port("p-a", A)), ports()], {f"DELETE /servers/{A}": gone, "DELETE /ports/p-a": gone}
    )
    terminator.terminate([A])
    assert script.changed() == ["DELETE /ports/p-a", f"DELETE /servers/{A}"]
    terminator.terminate([])


EVERYTHING = [f"DELETE /servers/{A}", f"DELETE /servers/{B}", "DELETE /ports/p-a", "DELETE /ports/p-b"]


@pytest.mark.parametrize("what", EVERYTHING)
def test_one_that_fails_keeps_no_other(what: str) -> None:
    terminator, script = terminator_and_script(
        [ports(port("p-a", A), port("p-b", B)), ports()], {what: CloudUnavailable("no answer")}
    )
    with pytest.raises(CloudUnavailable, match="no answer"):
        terminator.terminate([A, B])
    remaining = {f"DELETE /servers/{A}": "DELETE /ports/p-a", f"DELETE /servers/{B}": "DELETE /ports/p-b"}.get(what, "")
    assert script.changed() == sorted(one for one in EVERYTHING if one != remaining), "a machine's port stays with it"


def test_servers_end_though_ports_cannot_be_listed() -> None:
    terminator, script = terminator_and_script(CloudUnavailable("no answer"))
    with pytest.raises(CloudUnavailable):
        terminator.terminate([A, B])
    assert script.changed() == [f"DELETE /servers/{A}", f"DELETE /servers/{B}"]


def test_what_is_no_id_is_never_sent() -> None:
    terminator, script = terminator_and_script(ports())
    with pytest.raises(BadRequest, match=r"\.\./flavors"):
        terminator.terminate(["../flavors", A])
    assert script.changed() == [f"DELETE /servers/{A}"]


def test_many_in_few_lists() -> None:
    ids = [f"{number:08}-0000-4000-8000-000000000000" for number in range(120)]
    terminator, script = terminator_and_script(ports())
    terminator.terminate(ids)
    assert [len(query["device_id"]) for query in script.queries if query] == [50, 50, 20]
    assert len(script.changed()) == 120

"""What Keystone's catalogue and the services' documents name leads burstd's token nowhere that nobody chose."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from keystoneauth1.token_endpoint import Token

from burstd.domain.errors import CloudUnavailable, ProviderError
from providers.openstack.client.access import TrustedEndpoints, _Session
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.settings import OpenStackSettings
from staging.objects.swift import plugin as swift
from tests.doubles.lying_http import HttpLie, LyingServer, lying_server
from tests.providers.openstack.stub import Said, Stub, serving

_JSON = {"Content-Type": "application/json"}
Make = Callable[..., OpenStackCalls]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    for name in ("OS_CLOUD", "OS_CLIENT_CONFIG_FILE", "OS_AUTH_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("openstack.config.loader.CONFIG_FILES", [])
    monkeypatch.setenv("NO_PROXY", "*")
    with serving() as found:
        yield found


@pytest.fixture
def make(stub: Stub, tmp_path: Path) -> Iterator[Make]:
    made = []

    def calls(**more: object) -> OpenStackCalls:
        made.append(
            OpenStackCalls(
                OpenStackSettings(
                    cloud="stub",
                    clouds_yaml=stub.clouds_yaml(tmp_path, **more),
                    networks=["n"],
                    flavors=["*"],
                    timeout_s=10.0,
                )
            )
        )
        return made[-1]

    yield calls
    for one in made:
        one.close()


@pytest.fixture
def elsewhere() -> Iterator[LyingServer]:
    """Nova in its own words, and whoever is asked for anything else."""

    def answer(path: str) -> HttpLie:
        about: dict[str, object] = {"id": "v2.1", "status": "CURRENT", "version": "2.96", "min_version": "2.1"}
        about["links"] = [{"rel": "self", "href": "/compute/v2.1/"}]
        version = path.rstrip("/").endswith("/v2.1")
        return HttpLie(headers=_JSON, body=[json.dumps({"version": about} if version else {"servers": []}).encode()])

    with lying_server(answer) as found:
        yield found


def url_of(server: LyingServer, host: str) -> str:
    """The same server, under another name."""
    return f"http://{host}:{urlsplit(server.url).port}/compute/v2.1"


def listed(calls: OpenStackCalls) -> list[object]:
    return list(calls.pages("compute", "/servers", "servers", "list servers"))


@pytest.mark.parametrize("host", ["localhost", "127.1", "[::ffff:127.0.0.1]"])
def test_the_catalogue_leads_not_to_this_machine(stub: Stub, make: Make, elsewhere: LyingServer, host: str) -> None:
    stub.catalog["compute"] = url_of(elsewhere, host)
    calls = make()
    with pytest.raises(ProviderError):
        listed(calls)
    with pytest.raises(ProviderError):
        calls.mutate("compute", "POST", "/servers", "make a server", body={})
    assert (elsewhere.asked, elsewhere.tokens) == ([], [])


def test_unless_whoever_set_it_up_says_so(stub: Stub, make: Make, elsewhere: LyingServer) -> None:
    stub.catalog["compute"] = "http://nova.invalid/"
    assert listed(make(compute_endpoint_override=url_of(elsewhere, "localhost"))) == []
    assert elsewhere.tokens


@pytest.mark.parametrize("name", ["version", "versions"])
def test_a_document_of_versions_leads_nowhere_else(stub: Stub, make: Make, elsewhere: LyingServer, name: str) -> None:
    """It is keystoneauth that keeps to the host that it asked."""
    links = [{"rel": rel, "href": url_of(elsewhere, "127.0.0.1")} for rel in ("self", "collection", "next")]
    about = {"id": "v2.1", "status": "CURRENT", "version": "2.96", "min_version": "2.1", "links": links}
    stub.answers["GET /compute/v2.1"] = Said(200, {name: about if name == "version" else [about]})
    stub.answers["GET /compute/v2.1/servers"] = Said(200, {"servers": [], "servers_links": links})
    with pytest.raises(CloudUnavailable, match="the same"):
        listed(make())
    assert (elsewhere.asked, elsewhere.tokens) == ([], [])


def test_where_keystone_has_tls_nothing_goes_without(elsewhere: LyingServer) -> None:
    chosen = TrustedEndpoints()
    chosen.read_config(
        {"auth": {"auth_url": "https://keystone.example/v3"}, "image_endpoint_override": "http://localhost/"}
    )
    session = _Session(lambda *_: None, 10.0, chosen, auth=Token("http://x", "t"))
    with pytest.raises(CloudUnavailable, match=r"has 127\.0\.0\.1 without TLS: .*compute_endpoint_override"):
        session.get(elsewhere.url)
    assert elsewhere.asked == []
    session.get(url_of(elsewhere, "localhost"))
    assert elsewhere.tokens == ["t"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("way", ["tempauth", "cloud"])
def test_a_login_to_swift_follows_no_redirect(
    stub: Stub, elsewhere: LyingServer, tmp_path: Path, status: int, way: str
) -> None:
    away = Said(status, {}, {"Location": f"{elsewhere.url}/there"})
    stub.answers |= {f"{m} /identity/v3{p}": away for m, p in (("POST", "/auth/tokens"), ("GET", "/auth/tokens"))}
    (tmp_path / "key").write_text("k")
    (tmp_path / "key").chmod(0o600)
    settings: dict[str, object] = {"container": "c"}
    if way == "cloud":
        settings |= {"cloud": "stub", "clouds_file": stub.clouds_yaml(tmp_path)}
    else:
        settings |= {"auth_url": f"{stub.url}/identity/v3/auth/tokens", "user": "a:u", "key_file": tmp_path / "key"}
    store = swift.make("store", "lab", swift.settings.model_validate(settings))
    with pytest.raises(Exception, match=r"\w"):
        store.get("x")
    assert any("/auth/tokens" in one for one in stub.asked)
    assert (elsewhere.asked, elsewhere.tokens) == ([], [])

"""Who burstd is to this cloud, how long, with which role, and which services the cloud has for it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from burstd.domain.errors import CloudUnavailable, ProviderError
from burstd.domain.plugins.provider import Finding
from providers.openstack.calls import OpenStackCalls
from providers.openstack.checks.findings import DOC, MEMBER, finding_for_error
from providers.openstack.settings import OpenStackSettings

_NEW = f"make a new one: openstack application credential create NAME --role member ({DOC}, Another credential)"
_AS_MEMBER = f"make an application credential with --role member, as a user who has that role ({DOC}, Credential)"
_SOON = timedelta(days=14)
_MEMBERS = ("member", "_member_", "manager")
"""What clouds call the role that may make servers; newer ones have the manager above it."""
_TAGS = (2, 52)
"""The microversion that takes tags with a new server: since Nova 16, of 2017."""


def check_credentials(calls: OpenStackCalls, now: Callable[[], datetime]) -> Generator[Finding, None, str]:
    """Id of the project that there is a token for; empty where there is none."""
    try:
        connection = calls.connection
        with calls.translate_errors(changes=False, what="get a token"):
            token = connection.session.auth.get_access(connection.session)
    except CloudUnavailable as error:
        yield Finding(
            "credentials", False, str(error),
            "let burstd's user reach the auth_url of clouds.yaml (https_proxy in the unit where there is a proxy; "
            "cacert in clouds.yaml where the certificate is the site's own)",
        )  # fmt: skip
        return ""
    except ProviderError as error:
        yield Finding(
            "credentials", False, str(error),
            f"set cloud and clouds_yaml so that 'openstack token issue' works as burstd's user ({DOC}, Credential)",
        )  # fmt: skip
        return ""
    if not token.project_id:
        yield Finding(
            "credentials", False, f"user {token.username} has a token for no project",
            "set project_name and project_domain_name in clouds.yaml, or use an application credential",
        )  # fmt: skip
        return ""
    yield Finding("credentials", True, f"user {token.username} in project {token.project_name} ({token.project_id})")
    if token.application_credential_id:
        yield _application_credential(calls, token, now())
    yield _role(token)
    return str(token.project_id)


def _application_credential(calls: OpenStackCalls, token: Any, now: datetime) -> Finding:
    subject = "application credential"
    path = f"/users/{token.user_id}/application_credentials/{token.application_credential_id}"
    try:
        said = calls.query("identity", path, "read burstd's application credential")["application_credential"]
    except ProviderError as error:
        return Finding(
            subject, None, f"when it expires cannot be told: {error}", "openstack application credential list"
        )
    summary = f"{said['name']} never expires"
    if said.get("expires_at"):
        until = datetime.fromisoformat(said["expires_at"].rstrip("Z")).replace(tzinfo=UTC)
        summary = f"{said['name']} expires {until:%Y-%m-%d %H:%M} UTC"
        if until - now < _SOON:
            return Finding(subject, False, summary, _NEW)
    if said.get("unrestricted"):
        return Finding(
            subject,
            False,
            f"{summary}; it is unrestricted, so who finds it can make others",
            f"{_NEW}, without --unrestricted",
        )
    return Finding(subject, True, summary)


def _role(token: Any) -> Finding:
    roles = sorted(token.role_names)
    summary = ", ".join(roles)
    known = {role.lower() for role in roles}
    remedy = _AS_MEMBER if token.application_credential_id else MEMBER
    if "admin" in known:
        whole = f"{summary}: it may do everything in the whole cloud, and sees the things of every project"
        return Finding("role", False, whole, _AS_MEMBER)
    if known & set(_MEMBERS):
        return Finding("role", True, summary)
    if known <= {"reader", "load-balancer_observer"}:
        return Finding("role", False, f"{summary}: it may look, and make nothing", remedy)
    return Finding(
        "role", None, f"{summary}: whether it may make servers and ports shows at the first launch",
        f"{remedy}, or ask the cloud's operator which role may make servers, ports and volumes",
    )  # fmt: skip


def check_services(settings: OpenStackSettings, calls: OpenStackCalls) -> Generator[Finding, None, bool]:
    """Whether there are those that the rest of the check asks; findings on all that burstd needs."""
    wanted = ["compute", "network", "image", *(["block-storage"] if settings.root is not None else [])]
    try:
        calls.region()
        lacking = [service for service in wanted if not calls.has_service(service)]
    except ProviderError as error:
        yield finding_for_error("services", error, "set region, or look at 'openstack catalog list'")
        return False
    if lacking:
        yield from _lacking(lacking, len(lacking) == len(wanted))
        return lacking == ["block-storage"]
    yield from _version(calls, wanted)
    return True


def _lacking(lacking: list[str], every: bool) -> Iterator[Finding]:
    summary = f"the service catalogue has no {', '.join(lacking)} in this region"
    if every:
        yield Finding(
            "services", False, summary,
            "set region, or region_name and interface in clouds.yaml, to what 'openstack catalog list' has",
        )  # fmt: skip
    elif lacking == ["block-storage"]:
        yield Finding(
            "services", False, summary, "take root out of the settings: this cloud has no volumes to boot from"
        )
    else:
        yield Finding("services", False, summary, "ask the cloud's operator; burstd needs Nova, Neutron and Glance")


def _version(calls: OpenStackCalls, wanted: list[str]) -> Iterator[Finding]:
    try:
        connection = calls.connection
        with calls.translate_errors(changes=False, what="read Nova's versions"):
            data = connection.compute.get_endpoint_data()
    except ProviderError as error:
        yield finding_for_error("services", error, "look at 'openstack catalog list'")
        return
    newest = None if data is None else data.max_microversion
    if newest is None:
        yield Finding(
            "services", None, "Nova does not say which versions of its interface it has",
            "see whether the compute service of 'openstack catalog list' answers where burstd runs",
        )  # fmt: skip
    elif newest < _TAGS:
        yield Finding(
            "services", False, f"Nova's API ends with {newest[0]}.{newest[1]}",
            "burstd needs 2.52 at least (OpenStack Pike): ask the cloud's operator for a newer Nova",
        )  # fmt: skip
    else:
        yield Finding("services", True, f"{', '.join(wanted)}; Nova's API up to {newest[0]}.{newest[1]}")

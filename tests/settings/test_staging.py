"""``[staging]``: sizes, quotas, data sets, the store in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from burstd.settings import SettingsError, diff_settings, parse_settings, settings_until_restart

HEAD = 'cluster = "x"\n'
STAGING = HEAD + '[staging]\nstore = "a"\n'
STORE = '[staging.stores.a]\nkind = "shared"\npath = "/s"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            HEAD + "[staging]\nretries = 3",
            "staging.store: must be set: the name of the store in use; there is no table",
        ),
        (HEAD + STORE, "staging.store: must be set: the name of the store in use; known: a"),
        (STAGING, "line 3: staging.store: no store is called 'a'; there is no table [staging.stores.NAME] at all"),
        (
            HEAD + "[staging]\nstore = 'sitte'\n[staging.stores.site]\nkind = 's3'",
            "line 3: staging.store: no store is called 'sitte'; did you mean 'site'? known: site",
        ),
        (
            STAGING + "bandwith = 1\n" + STORE,
            "line 4: staging.bandwith: there is no such key; did you mean 'bandwidth'?",
        ),
        (STAGING + "bandwidth = '9 cows'\n" + STORE, "staging.bandwidth: must be a number of bytes, or as in '200M'"),
        (STAGING + "min_uid = 0\n" + STORE, "staging.min_uid: must be greater than or equal to 1 (it is 0)"),
        (STAGING + "job_dir = 'spool'\n" + STORE, "staging.job_dir: must be an absolute path"),
        (STAGING + STORE + "[staging.stores.b]\npath = 1", "line 7: staging.stores.b.kind: must be set"),
        (
            STAGING + STORE + "[staging.workdir]\npartitions = ['pods']",
            "staging.workdir.partitions: no pool has a partition 'pods'; known: none",
        ),
        (
            STAGING + STORE + "[staging.workdir]\nignore = ['!']",
            "staging.workdir.ignore: must be lines as in .gitignore: Invalid git pattern: '!'",
        ),
        (STAGING + STORE + "[staging.quota]\nusers = { ada = 'all' }", "staging.quota.users.ada: must be a number of"),
        (
            STAGING + STORE + "[staging.datasets.x]\nversions = { '1' = '/a', '2' = '/b' }\nlatest = '3'",
            "line 9: staging.datasets.x.latest: must be one of the versions: 1, 2 (it is '3')",
        ),
        (
            STAGING + STORE + "[staging.datasets.x]\nversions = { '1' = 'a' }\nlatest = '1'",
            "line 8: staging.datasets.x.versions.1: must be an absolute path on the head, or a URL",
        ),
        (STAGING + STORE + "[staging.datasets.x]\nversions = {}\nlatest = '1'", "versions: must have at least one"),
        (STAGING + STORE + "[staging.datasets.x]\nlatest = '1'", "staging.datasets.x.versions: must be set"),
        (
            HEAD + "[daemon]\nscratch_max = 1",
            "daemon.scratch_max: there is no such key; did you mean staging.scratch_max?",
        ),
    ],
)
def test_a_fault_is_named_with_place_and_remedy(text: str, says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings(text)
    assert says in str(raised.value)


def test_without_the_table_nothing_is_staged() -> None:
    assert not parse_settings(HEAD).staging.enabled
    assert parse_settings(STAGING + STORE).staging.enabled


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("1000", 1000),
        ("'500B'", 500),
        ("'1K'", 1024),
        ("'200MB'", 200_000_000),
        ("'1.5 GiB'", 3 << 29),
        ("'2t'", 2 << 40),
    ],
)
def test_sizes_have_the_units_of_job_scripts(size: str, count: int) -> None:
    assert parse_settings(f"{STAGING}bandwidth = {size}\n{STORE}").staging.bandwidth == count


def test_quotas_and_data_sets() -> None:
    staging = parse_settings(
        STAGING + STORE + "[staging.quota]\nuser = '1K'\nusers.ada = '2K'\nprojects.p = 7\n"
        "[staging.datasets.x]\nversions = { '1' = '/x-1', '1.5' = 's3://b/x' }\nlatest = '1'"
    ).staging
    assert (staging.quota.user_limit("ada"), staging.quota.user_limit("bob")) == (2048, 1024)
    assert (staging.quota.project_limit("p"), staging.quota.project_limit("q")) == (7, None)
    found = staging.datasets["x"]
    assert (found.version_source(), found.version_source("1.5"), found.version_source("2")) == (
        "/x-1",
        "s3://b/x",
        None,
    )


def test_sockets_follow_the_daemons_folder() -> None:
    settings = parse_settings(STAGING + "socket = '/s'\n" + STORE + "[daemon]\nruntime_dir = '/r'")
    assert (settings.stage_socket, settings.worker_socket) == (Path("/s"), Path("/r/user-worker.sock"))


@pytest.mark.parametrize(
    ("old", "new", "at_once", "at_restart"),
    [
        ("retries = 2", "retries = 3", ["staging.retries: 2 -> 3"], []),
        ('path = "/s"', 'path = "/t"', [], ["staging.stores.a.path: /s -> /t"]),
        ("user = 1\n", "", ["staging.quota.user: 1 -> not set"], []),
    ],
)
def test_what_a_reload_changes(old: str, new: str, at_once: list[str], at_restart: list[str]) -> None:
    base = STAGING + "retries = 2\n" + STORE + "[staging.quota]\nuser = 1\n"
    before, after = parse_settings(base), parse_settings(base.replace(old, new))
    found = diff_settings(before, after)
    assert ([str(c) for c in found.applied_now], [str(c) for c in found.at_restart]) == (at_once, at_restart)


def test_staging_begins_and_ends_with_a_restart() -> None:
    on, off = parse_settings(STAGING + STORE), parse_settings(HEAD)
    assert settings_until_restart(off, on).staging.enabled is False
    assert settings_until_restart(on, off).staging.enabled is True
    assert {c.key for c in diff_settings(off, on).at_restart} >= {"staging.store", "staging.stores.a.kind"}

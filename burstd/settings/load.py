"""Reads burstd.toml, checks it whole, and says everything that is wrong with it at once."""

from __future__ import annotations

import os
import pwd
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from burstd.domain.cloud.offer import FabricTest, GpuTest, OfferRule, Pool, fabric_features
from burstd.domain.framework import Framework
from burstd.domain.project_tree import pairs_on
from burstd.domain.slurm.shape import SHARD, Shape
from burstd.domain.storage_node import storage_pool_name
from burstd.settings.check_programs import read_check_programs
from burstd.settings.faults import SettingsError, SettingsFault, did_you_mean, faults_of_validation
from burstd.settings.fields import Section
from burstd.settings.frameworks import framework_faults, frameworks_of
from burstd.settings.idle_gpus import idle_gpu_faults
from burstd.settings.projects import project_faults, projects_of
from burstd.settings.sections import DaemonSettings, PoolSettings, Settings
from burstd.settings.site import site_cost_faults
from burstd.settings.toml_source import KeyPath, TomlSource, key_lines

DEFAULT_SETTINGS_PATH = Path("/etc/burstd/burstd.toml")
_VALIDATION_BESIDE_S = 60.0
"""What the rest of a machine's validation may take, beside tests of its GPUs and frameworks."""
RENAMED_KEYS = {
    "daemon.prove_timeout_s": "daemon.validation_timeout_s",
    "daemon.tidy_every_s": "daemon.power_down_retry_s",
    "daemon.start_again_s": "daemon.slurmd_restart_s",
    "staging.keep_node_h": "staging.output_retention_h",
    "staging.keep_node_cost": "staging.output_retention_cost",
    "staging.hand_socket": "staging.worker_socket",
    "policies.wait_aware.own_machines": "policies.wait_aware.dedicated_nodes",
    "policies.broker.own_machines": "policies.broker.dedicated_nodes",
}
"""Former name of a key to its name, in the same table: accepted with a warning for one version."""


def load_settings(path: Path | str = DEFAULT_SETTINGS_PATH, *, check_files: bool = True) -> Settings:
    """The settings in a file. Raises SettingsError with every fault that can be seen without the plug-ins.

    ``check_files`` also looks at the files that the settings name: secrets must not be readable by others.
    """
    source = TomlSource(str(path))
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise SettingsError(source, [SettingsFault((), "there is no such file: 'burstctl init' writes one")]) from None
    except OSError as error:
        raise SettingsError(source, [SettingsFault((), f"cannot be read ({error.strerror})")]) from error
    mode = Path(path).stat().st_mode
    return parse_settings(content, str(path), check_files=check_files, extra=_writable(mode) if check_files else ())


def parse_settings(
    content: bytes | str, name: str = "burstd.toml", *, check_files: bool = False, extra: Iterable[SettingsFault] = ()
) -> Settings:
    """The same from the file's content."""
    source = TomlSource(name)
    try:
        text = content.decode() if isinstance(content, bytes) else content
        data = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = bytes(content).count(b"\n", 0, error.start) + 1  # type: ignore[arg-type]
        raise SettingsError(source, [SettingsFault((), "is not UTF-8 text", line)]) from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(source, [_syntax(error)]) from error
    source = TomlSource(name, key_lines(text))
    clashes, warnings = _rename_keys(data, source)
    faults = [*extra, *clashes, *_cross_table_faults(data)]
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        faults += faults_of_validation(error, Settings, data, elsewhere=_ELSEWHERE)
    if settings is not None:
        faults += project_faults(settings.projects)
        faults += framework_faults(settings.frameworks, settings.pools)
        faults += site_cost_faults(settings.site.cost)
        faults += idle_gpu_faults(settings.idle_gpus, settings.sampler)
        faults += _standby_faults(settings.daemon)
    if settings is not None and check_files:
        faults += secret_faults(settings)
        faults += _check_folder_faults(settings)
    if faults or settings is None:
        raise SettingsError(source, faults)
    settings._source, settings._warnings = source, tuple(warnings)  # noqa: SLF001  only this room sets them
    return settings


def _standby_faults(daemon: DaemonSettings) -> Iterator[SettingsFault]:
    """What two heads cannot do without."""
    if not daemon.standby:
        return
    if not daemon.database.startswith("postgres"):
        text = "needs a database that both heads reach: set database to a postgresql:// URL, or remove standby"
        yield SettingsFault(("daemon", "standby"), text)
    if daemon.shared_dir is None:
        text = "needs shared_dir, a folder on storage that both heads mount: burstd's ssh key and host keys lie there"
        yield SettingsFault(("daemon", "standby"), text)


def _check_folder_faults(settings: Settings) -> Iterator[SettingsFault]:
    try:
        read_check_programs(settings.node.check_folder)
    except ValueError as error:
        yield SettingsFault(("node", "check_folder"), str(error))


def _rename_keys(data: dict[str, Any], source: TomlSource) -> tuple[list[SettingsFault], list[SettingsFault]]:
    """Gives keys with a former name their name, in place. Returns faults, of keys given twice, and warnings."""
    faults: list[SettingsFault] = []
    warnings: list[SettingsFault] = []
    for former, name in RENAMED_KEYS.items():
        *tables, old = former.split(".")
        table: Any = data
        for part in tables:
            table = table.get(part) if isinstance(table, dict) else None
        if not isinstance(table, dict) or old not in table:
            continue
        before, after = (*tables, old), (*tables, name.rpartition(".")[2])
        if after[-1] in table:
            faults.append(SettingsFault(before, f"is the former name of {name}, which is also set; remove {former}"))
        else:
            text = f"is now called {name}; rename it, as the next version refuses {former}"
            warnings.append(SettingsFault(before, text, source.line(before)))
            table[after[-1]] = table[old]
            source.lines.setdefault(after, source.lines.get(before, 1))
        del table[old]
    return faults, warnings


def build_pools(settings: Settings, expand: Callable[[str], Iterable[str]]) -> dict[str, Pool]:
    """The pools, with their slots spelled out by ``expand`` (burstd.slurm.hostlist; raises ValueError).

    Raises SettingsError for host lists that are none, and for slots that stand in two pools.
    """
    made: dict[str, Pool] = {}
    faults: list[SettingsFault] = []
    owner: dict[str, str] = {}
    mounts, projects = settings.mounts.rules(), projects_of(settings.projects)
    for name, pool in settings.pools.items():
        place: KeyPath = ("pools", name, "nodes")
        try:
            slots = tuple(expand(pool.nodes))
        except ValueError as error:
            faults.append(SettingsFault(place, f"is no host list: {error}"))
            continue
        if not slots:
            faults.append(SettingsFault(place, "names no node"))
        twice = sorted({s for s in slots if slots.count(s) > 1}) if len(set(slots)) < len(slots) else []
        if twice:
            faults.append(SettingsFault(place, f"names {twice[0]} more than once"))
        shared = next((s for s in slots if s in owner), None)
        if shared is not None:
            faults.append(
                SettingsFault(place, f"names {shared}, which pool {owner[shared]!r} has; a slot has one shape")
            )
        owner |= dict.fromkeys(slots, name)
        features = frozenset((*pool.features, *pool.frameworks, *fabric_features(pool.fabric)))
        shape = Shape(pool.cpus, pool.memory, pool.gres, features)
        frameworks = frameworks_of(pool, settings.frameworks, gpus=bool(shape.gpus()))
        faults += _gpu_parts_faults(name, pool)
        limit_s = _gpu_test_limit_s(pool)
        if pool.fabric_min_gb_s and not pool.fabric_test:
            faults.append(
                SettingsFault(("pools", name, "fabric_min_gb_s"), "is measured by fabric_test, which is not set")
            )
        if pool.fabric_test and pool.fabric_test_limit_s > settings.daemon.gang_timeout_s:
            text = (
                f"is {pool.fabric_test_limit_s:g} s, more than a job's nodes wait for each other: "
                f"gang_timeout_s in [daemon] is {settings.daemon.gang_timeout_s:g}"
            )
            faults.append(SettingsFault(("pools", name, "fabric_test_limit_s"), text))
        faults += _gpu_test_faults(name, pool, limit_s)
        faults += _test_time_faults(name, limit_s, frameworks, settings.daemon.validation_timeout_s)
        rules = tuple(OfferRule(o.provider, o.instance_types, o.zones, o.markets, o.image) for o in pool.offers)
        # A tree that is shown whole is shown with one user's rights.
        one_user = any(rule.exclusive_user and rule.is_shown_in(name) for rule in mounts)
        partitions = (*pool.partitions, *pairs_on(pool.partitions, shape.features, projects))
        made[name] = Pool(
            name, slots, partitions, shape, rules, exclusive_user=one_user, mig=pool.mig,
            gpu_memory_limit=pool.gpu_memory_limit,
            gpu_test=pool.gpu_test, gpu_test_limit_s=limit_s, gpu_min_gb_s=pool.gpu_min_gb_s,
            frameworks=frameworks, fabric=pool.fabric,
            cpu_jobs=pool.cpu_jobs, scratch=pool.scratch or 0, reuse_from=pool.reuse_from,
            fabric_test=FabricTest(pool.fabric_test, pool.fabric_test_limit_s, pool.fabric_min_gb_s)
            if pool.fabric_test else None,
        )  # fmt: skip
        faults += _reuse_faults(name, pool, settings)
    if faults:
        raise SettingsError(settings.source, faults)
    return made


def _reuse_faults(name: str, pool: PoolSettings, settings: Settings) -> Iterator[SettingsFault]:
    """Of pools whose machines cannot be nodes of this one without a new boot."""
    place: KeyPath = ("pools", name, "reuse_from")
    rules = settings.mounts.rules()
    for source in pool.reuse_from:
        other = settings.pools.get(source)
        if other is None or source == name:
            hint = did_you_mean(source, settings.pools.keys() - {name})
            yield SettingsFault(place, f"names {source!r}, which is no other pool{hint}")
            continue
        for key in ("mig", "gpu_memory_limit"):
            if getattr(pool, key) != getattr(other, key):
                text = f"names pool {source}, whose {key} differs: what it does to a machine stays until it ends"
                yield SettingsFault(place, text)
        if _names_pool(settings.node.user_data):
            text = (
                f"names pool {source}, but {settings.node.user_data} has ${{pool}}: its machines differ from the start"
            )
            yield SettingsFault(place, text)
        if shown := sorted(p for p in (name, source) if any(rule.is_shown_in(p) for rule in rules)):
            text = f"names pool {source}, but [mounts] shows trees in {' and '.join(shown)}: these pools cannot share"
            yield SettingsFault(place, f"{text} machines")


def _names_pool(template: Path | None) -> bool:
    """Whether a cloud-init template makes machines of one pool differ from those of others."""
    try:
        return template is not None and re.search(r"\$(pool\b|\{pool\})", template.read_text("utf-8")) is not None
    except (OSError, UnicodeDecodeError):
        return False  # Its launches fail, and say why.


def _gpu_parts_faults(name: str, pool: PoolSettings) -> Iterator[SettingsFault]:
    """Of shards and MIG profiles that do not go with the GPUs of a pool."""
    gpus = {g.type: g.count for g in pool.gres if g.name == "gpu"}
    shards = sum(g.count for g in pool.gres if g.name == SHARD)
    if shards and not 0 < sum(gpus.values()) <= shards:
        text = f"has {shards} shards of {sum(gpus.values())} GPUs; each GPU has one at least, as in 'gpu:2,shard:8'"
        yield SettingsFault(("pools", name, "gres"), text)
    if pool.gpu_memory_limit != "none" and not shards:
        text = "limits jobs to their shards' part of a GPU's memory, and 'gres' has no shards, as in 'gpu:2,shard:8'"
        yield SettingsFault(("pools", name, "gpu_memory_limit"), text)
    if not pool.mig:
        return
    cuts = {g.type: g.count for g in pool.mig}
    machines = {count / cuts[kind] for kind, count in gpus.items() if kind in cuts}
    if gpus.keys() != cuts.keys() or len(machines) != 1 or not min(machines).is_integer():
        one = ",".join(map(str, pool.mig))
        text = f"cuts each GPU into {one}: 'gres' must have that, times the GPUs of a machine, and no other gpu"
        yield SettingsFault(("pools", name, "mig"), text)
    if shards:
        yield SettingsFault(("pools", name, "mig"), "cuts GPUs that 'gres' has shards of; choose one of the two")


def _gpu_test_limit_s(pool: PoolSettings) -> float:
    """Of the tests that take long; 0: there are none."""
    match pool.gpu_test:
        case GpuTest.SHORT:
            return pool.gpu_test_limit_s or 60.0
        case GpuTest.LONG:
            return pool.gpu_test_limit_s or 300.0
        case _:
            return 0.0


def _gpu_test_faults(name: str, pool: PoolSettings, limit_s: float) -> Iterator[SettingsFault]:
    if pool.gpu_test not in (None, GpuTest.NONE) and not any(g.name == "gpu" for g in pool.gres):
        yield SettingsFault(("pools", name, "gpu_test"), "tests GPUs, and 'gres' of the pool has none")
    if pool.gpu_min_gb_s and pool.gpu_test is not GpuTest.LONG:
        yield SettingsFault(("pools", name, "gpu_min_gb_s"), "is measured with gpu_test = 'long' only")
    if pool.gpu_test_limit_s is not None and not limit_s:
        text = "limits the tests 'short' and 'long', and gpu_test of the pool is neither"
        yield SettingsFault(("pools", name, "gpu_test_limit_s"), text)


def _test_time_faults(
    name: str, gpu_test_s: float, frameworks: Sequence[Framework], timeout_s: float
) -> Iterator[SettingsFault]:
    """Of tests of a machine that may last longer than its validation."""
    frameworks_s = sum(framework.limit_s for framework in frameworks)
    tests_s = gpu_test_s + frameworks_s
    if tests_s + _VALIDATION_BESIDE_S > timeout_s:
        tests = "the tests of GPUs and frameworks" if gpu_test_s and frameworks_s else "the test"
        least_s = f"{tests_s + _VALIDATION_BESIDE_S:.0f}"
        text = f"{tests} may take {tests_s:.0f} s: set validation_timeout_s in [daemon] to {least_s} or more"
        yield SettingsFault(("pools", name, "frameworks" if frameworks_s else "gpu_test"), text)


def secret_faults(model: BaseModel, before: KeyPath = ()) -> Iterator[SettingsFault]:
    """Faults of the files that fields marked SECRET name: missing, unreadable, or readable by others.

    Plug-ins mark theirs with ``Field(json_schema_extra={"secret": True})``.
    """
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        marks = info.json_schema_extra
        if isinstance(marks, dict) and marks.get("secret") and isinstance(value, (str, Path)) and str(value):
            text = _secret_fault(Path(value))
            if text:
                yield SettingsFault((*before, name), text)
        elif isinstance(value, BaseModel):
            yield from secret_faults(value, (*before, name))
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                if isinstance(inner, BaseModel):
                    yield from secret_faults(inner, (*before, name, str(key)))


def _secret_fault(path: Path) -> str:
    try:
        found = path.stat()
        readable = os.access(path, os.R_OK, effective_ids=True)
    except PermissionError:
        readable = False
    except OSError as error:
        return f"the file {path} cannot be used ({error.strerror})"
    if not readable:
        remedy = "burstd's user must (check as root, or with --no-files)"
        return f"the file {path} cannot be read by {_me()}, as whom this runs; {remedy}"
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is no regular file"
    if found.st_mode & 0o007:
        return f"the file {path} is open to everybody (mode {stat.S_IMODE(found.st_mode):04o}); 'chmod o= {path}'"
    return ""


def _me() -> str:
    try:
        return f"user {pwd.getpwuid(os.geteuid()).pw_name}"
    except KeyError:
        return f"user id {os.geteuid()}"


def _writable(mode: int) -> list[SettingsFault]:
    if mode & 0o002:
        return [SettingsFault((), f"can be written by everybody (mode {stat.S_IMODE(mode):04o}); 'chmod o-w' it")]
    return []


def _syntax(error: tomllib.TOMLDecodeError) -> SettingsFault:
    text = str(error)
    place = re.search(r" \(at line (\d+), column (\d+)\)$", text)
    if place is None:
        return SettingsFault((), f"is no TOML: {text}")
    return SettingsFault((), f"is no TOML at column {place[2]}: {text[: place.start()]}", int(place[1]))


def _cross_table_faults(data: Mapping[str, Any]) -> Iterator[SettingsFault]:
    """What one table alone cannot know. Looks at the raw data, so as to speak beside faults of other kinds."""
    providers = data.get("providers")
    known = list(providers) if isinstance(providers, dict) else []
    found = data.get("pools")
    for name, pool in found.items() if isinstance(found, dict) else ():
        offers = pool.get("offers") if isinstance(pool, dict) else None
        for i, offer in enumerate(offers if isinstance(offers, list) else ()):
            provider = offer.get("provider") if isinstance(offer, dict) else None
            if isinstance(provider, str) and provider not in known:
                yield SettingsFault(("pools", name, "offers", i, "provider"), _unknown_provider(provider, known))
    node = data.get("node")
    trust = node.get("host_keys_of") if isinstance(node, dict) else None
    for provider in trust if isinstance(trust, dict) else ():
        if provider not in known:
            yield SettingsFault(("node", "host_keys_of", provider), _unknown_provider(provider, known))
    staging = data.get("staging")
    if isinstance(staging, dict):
        yield from _staging_faults(staging)
        yield from _storage_node_faults(staging, known, found if isinstance(found, dict) else {})
        yield from _workdir_faults(staging, found if isinstance(found, dict) else {})
    volumes = data.get("volumes")
    prices = volumes.get("prices") if isinstance(volumes, dict) else None
    for provider in prices if isinstance(prices, dict) else ():
        if provider not in known:
            yield SettingsFault(("volumes", "prices", provider), _unknown_provider(provider, known))
    if prices and not isinstance(staging, dict):
        text = "volumes need jobs' data to be staged: add a table [staging]"
        yield SettingsFault(("volumes", "prices"), text)
    mounts = data.get("mounts")
    trees = mounts.get("trees") if isinstance(mounts, dict) else None
    pools = sorted(found) if isinstance(found, dict) else []
    for name, tree in trees.items() if isinstance(trees, dict) else ():
        shown_in = tree.get("pools") if isinstance(tree, dict) else None
        for pool in shown_in if isinstance(shown_in, list) else ():
            if pool not in pools:
                there = f"known: {', '.join(pools)}" if pools else "there is no table [pools.NAME] at all"
                text = f"no pool is called {pool!r}{did_you_mean(str(pool), pools) or ';'} {there}"
                yield SettingsFault(("mounts", "trees", name, "pools"), text)
    policies = data.get("policies")
    chain = policies.get("chain") if isinstance(policies, dict) else None
    if isinstance(chain, list):
        for i, policy in enumerate(chain):
            if policy in chain[:i]:
                yield SettingsFault(("policies", "chain", i), f"{policy!r} stands in the chain twice")


def _staging_faults(staging: Mapping[str, Any]) -> Iterator[SettingsFault]:
    stores = staging.get("stores")
    known = sorted(stores) if isinstance(stores, dict) else []
    there = f"known: {', '.join(known)}" if known else "there is no table [staging.stores.NAME] at all"
    store = staging.get("store", "")
    if store == "":
        yield SettingsFault(("staging", "store"), f"must be set: the name of the store in use; {there}")
    elif isinstance(store, str) and store not in known:
        yield SettingsFault(
            ("staging", "store"), f"no store is called {store!r}{did_you_mean(store, known) or ';'} {there}"
        )


def _workdir_faults(staging: Mapping[str, Any], pools: Mapping[str, Any]) -> Iterator[SettingsFault]:
    """Of partitions in which working directories are staged: each is one of a pool's."""
    workdir = staging.get("workdir")
    named = workdir.get("partitions") if isinstance(workdir, dict) else None
    known = sorted(
        {
            str(name)
            for pool in pools.values()
            if isinstance(pool, dict) and isinstance(pool.get("partitions"), list)
            for name in pool["partitions"]
        }
    )
    for name in named if isinstance(named, list) else ():
        if isinstance(name, str) and name not in known:
            there = f"known: {', '.join(known) or 'none'}"
            text = f"no pool has a partition {name!r}{did_you_mean(name, known) or ';'} {there}"
            yield SettingsFault(("staging", "workdir", "partitions"), text)


def _storage_node_faults(
    staging: Mapping[str, Any], known: list[str], pools: Mapping[str, Any]
) -> Iterator[SettingsFault]:
    """Of stores whose storage node burstd launches: the node is shown, and billed, as a pool of its own."""
    stores = staging.get("stores")
    for name, store in stores.items() if isinstance(stores, dict) else ():
        launch = store.get("launch") if isinstance(store, dict) else None
        if launch and storage_pool_name(name) in pools:
            yield SettingsFault(
                ("pools", storage_pool_name(name)), f"is the name of the storage node of store {name}: take another"
            )
        for i, offer in enumerate(launch if isinstance(launch, list) else ()):
            provider = offer.get("provider") if isinstance(offer, dict) else None
            if isinstance(provider, str) and provider not in known:
                place: KeyPath = ("staging", "stores", name, "launch", i, "provider")
                yield SettingsFault(place, _unknown_provider(provider, known))


def _unknown_provider(name: str, known: list[str]) -> str:
    there = f"known: {', '.join(sorted(known))}" if known else "there is no table [providers.NAME] at all"
    return f"no provider is called {name!r}{did_you_mean(name, known) or ';'} {there}"


_ELSEWHERE = tuple(
    f"{table}.{key}"
    for table, info in Settings.model_fields.items()
    if isinstance(info.annotation, type) and issubclass(info.annotation, Section)
    for key in info.annotation.model_fields
)

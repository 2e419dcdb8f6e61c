"""What the administrator wants of ``burstctl init``, and burstd.toml made of it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KINDS = ("sandbox", "aws", "azure", "google", "openstack", "openshift")
TREES = {"home": "{home}"}
"""Each user's own home directory, as the account database has it."""
_POOL_KEYS = {"name", "nodes", "type", "cpus", "memory", "gres"}
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_TYPE = re.compile(r"[^\s,'\"\\]+")
_GRES = re.compile(r"([A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?:[0-9]+(,|$))*")
_KEY = re.compile(r"[A-Za-z0-9_-]+")
_FORMS = {
    "partition": (
        r"(?!(?i:all|default)$)[^\s,='\"\\#]{1,60}",
        "write the name of one partition, without blanks, commas, quotes, '=', '#' and '\\'",
    ),
    "image": (r"[^\x00-\x1f\x7f]*", "write it without control characters"),
    "budget": (r"([0-9]+(\.[0-9]+)?( [A-Z]{3})?)?", "write an amount, or an amount and a currency: '500 USD'"),
    "address": (r"[A-Za-z0-9._:,\[\]-]*", "write HOST, or HOST:PORT"),
}
"""Options of text: what they must match, and what to do."""


class AnswerRefused(Exception):
    """An answer that cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class PoolAnswer:
    """One pool: so many nodes of an instance type. ``memory`` in MiB; 0 and empty: as the offer has it."""

    name: str
    nodes: int
    type: str
    cpus: int = 0
    memory: int = 0
    gres: str = ""

    @property
    def slots(self) -> str:
        """The names of its nodes."""
        return f"burst-{self.name}[1-{self.nodes}]" if self.nodes > 1 else f"burst-{self.name}1"


@dataclass(frozen=True, slots=True)
class Answers:
    """``limit``: most nodes at a time; 0: as many as the pools have. ``budget``: money for a month; empty: none."""

    kind: str = "sandbox"
    keys: Mapping[str, Any] = field(default_factory=dict)
    """The provider's own, as burstd.toml has them."""
    image: str = ""
    pools: Sequence[PoolAnswer] = ()
    partition: str = "burst"
    trees: Mapping[str, str] = field(default_factory=lambda: TREES)
    limit: int = 0
    budget: str = ""
    currency: str = "EUR"


@dataclass(frozen=True, slots=True)
class Site:
    """What burstd.toml must say of this site. ``commands`` run on each machine at its first boot."""

    cluster: str
    programs: str
    conf_server: str
    keep_partitions: Sequence[str] = ()
    skip_checks: Sequence[str] = ()
    commands: Sequence[str] = ()


SANDBOX_POOLS = (
    PoolAnswer("cpu", 4, "c*", cpus=2, memory=1800),
    PoolAnswer("gpu", 4, "g*", cpus=2, memory=1800, gres="gpu:v100:2"),
)


def fitting(option: str, text: str) -> str:
    """The text. Raises AnswerRefused where the option cannot be so."""
    pattern, remedy = _FORMS[option]
    if not re.fullmatch(pattern, text):
        raise AnswerRefused(f"--{option} {text!r}: {remedy}")
    return text


def parse_pool(text: str) -> PoolAnswer:
    """``name=gpu,nodes=4,type=g5.xlarge,cpus=4,memory=15000,gres=gpu:a10g:1``. Raises AnswerRefused."""
    words = dict(part.partition("=")[::2] for part in re.split(r",(?=[a-z]+=)", text) if part)
    unknown = sorted(set(words) - _POOL_KEYS)
    if unknown or not words.get("name") or not words.get("type"):
        about = f"{unknown[0]!r} is no key" if unknown else "name and type are missing"
        raise AnswerRefused(f"--pool {text!r}: {about}; write name=gpu,nodes=4,type=g5.xlarge,cpus=4,memory=15000")
    if not _NAME.fullmatch(words["name"]):
        raise AnswerRefused(f"--pool {text!r}: name {words['name']!r} must be small letters, digits and hyphens")
    if not _TYPE.fullmatch(words["type"]):
        raise AnswerRefused(f"--pool {text!r}: type {words['type']!r} has blanks, commas, quotes or '\\'")
    if not _GRES.fullmatch(words.get("gres", "")):
        raise AnswerRefused(f"--pool {text!r}: write gres as Slurm does, with its number: gres=gpu:a10g:1")
    try:
        cpus, memory, nodes = (
            int(words.get(key, default)) for key, default in (("cpus", 0), ("memory", 0), ("nodes", 4))
        )
    except ValueError:
        raise AnswerRefused(f"--pool {text!r}: nodes, cpus and memory (MiB) are whole numbers") from None
    if nodes < 1:
        raise AnswerRefused(f"--pool {text!r}: a pool has one node at least")
    return PoolAnswer(words["name"], nodes, words["type"], cpus, memory, words.get("gres", ""))


def parse_key(text: str) -> tuple[str, Any]:
    """``region=eu-central-1``: a key of the provider's; values that TOML reads are those, others are text."""
    key, equals, value = text.partition("=")
    if not equals or not _KEY.fullmatch(key):
        raise AnswerRefused(f"--set {text!r}: write KEY=VALUE, the key in letters, digits, '_' and '-'")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def settings_text(answers: Answers, site: Site) -> str:
    """burstd.toml."""
    pools = [line for pool in answers.pools for line in _pool_lines(pool, answers)]
    limit = answers.limit or sum(pool.nodes for pool in answers.pools)
    chain = ["backlog", "idle", *(["budget"] if answers.budget else []), "limits"]
    lines = [
        "# Written by 'burstctl init'. The example that came with burstd has every key, with its default and meaning.",
        f"cluster = {_toml(site.cluster)}",
        "",
        "[slurm]",
        f"programs = {_toml(site.programs)}",
        f"conf_server = {_toml(site.conf_server)}",
        f"keep_partitions = {_toml(list(site.keep_partitions))}",
        *pools,
        "",
        f"[providers.{answers.kind}]",
        f"kind = {_toml(answers.kind)}",
        *(f"{key} = {_toml(value)}" for key, value in answers.keys.items()),
        "",
        "[policies]",
        f"chain = {_toml(chain)}",
        "# Seconds for which an idle machine stays.",
        "[policies.idle]",
        "keep_alive_s = 300",
        "# Most nodes at a time.",
        "[policies.limits]",
        f"nodes = {limit}",
    ]
    if answers.budget:
        lines += ["[policies.budget]", f"limit = {_toml(answers.budget)}", f"currency = {_toml(answers.currency)}"]
    node = {"skip_checks": list(site.skip_checks), "commands": list(site.commands)}
    if any(node.values()):
        lines += ["", "[node]", *(f"{key} = {_toml(value)}" for key, value in node.items() if value)]
    for name, path in answers.trees.items():
        lines += ["", f"[mounts.trees.{name}]", f"path = {_toml(path)}"]
    return "\n".join(lines) + "\n"


def _pool_lines(pool: PoolAnswer, answers: Answers) -> list[str]:
    image = f", image = {_toml(answers.image)}" if answers.image else ""
    return [
        "",
        f"[pools.{pool.name}]",
        f"nodes = {_toml(pool.slots)}",
        f"partitions = {_toml([answers.partition])}",
        f"cpus = {pool.cpus}",
        f"memory = {pool.memory}",
        *([f"gres = {_toml(pool.gres)}"] if pool.gres else []),
        'features = ["cloud"]',
        f"offers = [{{ provider = {_toml(answers.kind)}, instance_types = {_toml([pool.type])}{image} }}]",
    ]


def _toml(value: Any) -> str:
    """A value as TOML writes it; what JSON writes of text, numbers and lists is the same."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)

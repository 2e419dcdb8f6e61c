from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.cloud.offer import FabricTest
from burstd.domain.slurm.shape import Gres
from burstd.settings import SettingsError, build_pools, load_settings, parse_settings
from burstd.settings.check_programs import read_check_programs
from burstd.settings.load import secret_faults
from burstd.settings.toml_source import KeyPath, key_lines
from burstd.slurm.hostlist import expand

HEAD = 'cluster = "site"\n'
POOL = """
[pools.gpu]
nodes = "gpu[1-2]"
partitions = ["burst"]
cpus = 4
memory = 1000
offers = [{ provider = "here" }]
[providers.here]
kind = "sandbox"
"""


def faults(text: str) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        parse_settings(text)
    return [str(f) for f in raised.value.faults]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["cluster: must be set"]),
        ('clustr = "a"', ["clustr: there is no such key; did you mean 'cluster'?", "is it meant by 'clustr'?"]),
        ('cluster = "My Site"', ["line 1: cluster: must be 1 to 32 of a-z, 0-9 and '-' (it is 'My Site')"]),
        ("cluster = 3", ["line 1: cluster: must be text in quotes (it is 3)"]),
        (HEAD + "[daemon]\ntik_s = 1", ["line 3: daemon.tik_s: there is no such key; did you mean 'tick_s'?"]),
        (HEAD + "[slurm]\ntick_s = 1", ["line 3: slurm.tick_s: there is no such key; did you mean daemon.tick_s?"]),
        (HEAD + "[demon]\ntick_s = 1", ["line 2: demon: there is no such key; did you mean 'daemon'?"]),
        (HEAD + "[daemon]\ntick_s = '1'", ["line 3: daemon.tick_s: must be a number (it is '1')"]),
        (HEAD + "[daemon]\ntick_s = true", ["line 3: daemon.tick_s: must be a number (it is true)"]),
        (HEAD + "[daemon]\ntick_s = 0", ["line 3: daemon.tick_s: must be greater than 0 (it is 0)"]),
        (HEAD + "[daemon]\ntick_s = inf", ["line 3: daemon.tick_s: must be a finite number"]),
        (HEAD + "[daemon]\nworkers = 1.5", ["line 3: daemon.workers: must be a whole number (it is 1.5)"]),
        (HEAD + "[daemon]\nstate_dir = 'lib'", ["must be an absolute path"]),
        (HEAD + "[daemon]\nlog_format = 'jsn'", ["must be 'text' or 'json', not 'jsn'; did you mean 'json'?"]),
        (HEAD + "daemon = 3", ["line 2: daemon: must be a table (it is 3)"]),
        (
            HEAD + POOL + "[pools.gpu.x]",
            ["pools.gpu.x: there is no such key", "Allowed: cpu_jobs, cpus, fabric, fabric_min_gb_s, fabric_test,"],
        ),
        (HEAD + "[pools.gpu]\ncpus = 1", [f"pools.gpu.{k}: must be set" for k in ("nodes", "memory", "offers")]),
        (HEAD + POOL.replace('"here" }', '"hear" }'), ["line 8: pools.gpu.offers[0].provider: no provider is called"]),
        (HEAD + POOL.replace("1000", "'1 cow'"), ["line 7: pools.gpu.memory: must be a number of MiB, or a number"]),
        (HEAD + POOL.replace("4\n", "4\ngres = 'gpu=4'\n"), ["must be as in slurm.conf, such as 'gpu:v100:4'"]),
        (HEAD + POOL.replace('["burst"]', "[]"), ["line 5: pools.gpu.partitions: must have at least one entry"]),
        (HEAD + POOL.replace("pools.gpu", "pools.'g p'"), ['line 3: pools."g p": the name must be 1 to 32']),
        (HEAD + "[policies]\nchain = ['a', 'a']", ["line 3: policies.chain[1]: 'a' stands in the chain twice"]),
        (HEAD + "[policies]\nidle = 1", ["line 3: policies.idle: must be a table (it is 1)"]),
        (HEAD + "[node]\nhost_keys_of = { aws = 'console' }", ["there is no table [providers.NAME] at all"]),
        (
            HEAD + "[node]\nskip_checks = ['gpu']",
            ["line 3: node.skip_checks[0]: must be 'cpus'", "did you mean 'gpus'?"],
        ),
        (HEAD + "[health.xid]\nfell_off = 'note'", ["must be the number of an Xid, from 1 to 99999"]),
        (HEAD + "[health.xid]\n63 = 'reboot'", ["line 3: health.xid.63: must be 'ignore'", "not 'reboot'"]),
        (HEAD + "[health]\nxids = {}", ["health.xids: there is no such key; did you mean 'xid'?"]),
        (HEAD + "x = [1,\n  2 3]", ["line 3: is no TOML at column 5: "]),
    ],
)
def test_a_fault_is_named_with_place_and_remedy(text: str, says: list[str]) -> None:
    found = "\n".join(faults(text))
    for part in says:
        assert part in found


def test_every_fault_is_named_at_once_in_the_order_of_the_file() -> None:
    text = HEAD + "[daemon]\ntik_s = 1\nworkers = 0\n[slurm]\ngate = ''\n[node]\nssh_port = 99999\n"
    found = faults(text)
    assert [f.split(":")[0] for f in found] == ["line 3", "line 4", "line 6", "line 8"]
    with pytest.raises(SettingsError, match=r"^burstd.toml has 4 faults:\n  line 3: "):
        parse_settings(text)


def test_a_password_is_refused_and_not_repeated() -> None:
    (fault,) = faults(HEAD + '[daemon]\ndatabase = "postgresql://burstd:hunter2@h/db"')
    assert "must not hold a password" in fault
    assert "hunter2" not in fault


@pytest.mark.parametrize(
    ("memory", "mib"), [("1000", 1000), ("'512M'", 512), ("'16G'", 16384), ("'16 GiB'", 16384), ("'1.5g'", 1536)]
)
def test_memory_in_slurms_units(memory: str, mib: int) -> None:
    assert parse_settings(HEAD + POOL.replace("1000", memory)).pools["gpu"].memory == mib


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("'gpu:v100:4'", (Gres("gpu", "v100", 4),)),
        ("'gpu:2,nic'", (Gres("gpu", "", 2), Gres("nic", "", 1))),
        ("['gpu:a100', 'gpu:v100:2']", (Gres("gpu", "a100", 1), Gres("gpu", "v100", 2))),
    ],
)
def test_gres_as_slurm_writes_them(gres: str, found: tuple[Gres, ...]) -> None:
    assert parse_settings(HEAD + POOL.replace("cpus = 4", f"cpus = 4\ngres = {gres}")).pools["gpu"].gres == found


@pytest.mark.parametrize(
    ("gres", "limit", "says"),
    [
        ("gpu:2,shard:8", "mps", ""),
        ("gpu:2,shard:8", "dmem", ""),
        ("gpu:2", "none", ""),
        ("gpu:2", "dmem", "pools.gpu.gpu_memory_limit: limits jobs to their shards' part of a GPU's memory"),
        ("nic:1", "mps", "'gres' has no shards, as in 'gpu:2,shard:8'"),
        ("gpu:2,shard:8", "8G", "pools.gpu.gpu_memory_limit"),
    ],
)
def test_memory_of_gpus_is_limited_by_shards(gres: str, limit: str, says: str) -> None:
    text = HEAD + POOL.replace("cpus = 4", f"cpus = 4\ngres = '{gres}'\ngpu_memory_limit = '{limit}'")
    if says:
        with pytest.raises(SettingsError, match=re.escape(says)):
            build_pools(parse_settings(text), expand)
    else:
        assert build_pools(parse_settings(text), expand)["gpu"].gpu_memory_limit == limit


OTHER = re.sub(
    "nodes = .*", "nodes = 'other[1-2]'", POOL.partition("[providers")[0].replace("pools.gpu", "pools.other")
)
"""A second pool of the same machines."""


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("reuse_from = ['gpu']", ""),
        ("reuse_from = ['gpus']", "pools.other.reuse_from: names 'gpus', which is no other pool; did you mean 'gpu'?"),
        ("reuse_from = ['other']", "pools.other.reuse_from: names 'other', which is no other pool"),
        ("reuse_from = ['gpu']\ngres = 'gpu:2,shard:8'\ngpu_memory_limit = 'mps'", "whose gpu_memory_limit differs"),
        ("reuse_from = ['gpu']\ngres = 'gpu:1g.10gb:14'\nmig = '1g.10gb:7'", "names pool gpu, whose mig differs"),
    ],
)
def test_pools_that_share_machines_leave_no_trace_on_them(more: str, says: str) -> None:
    text = HEAD + POOL + OTHER.replace("cpus = 4", f"cpus = 4\n{more}")
    if says:
        with pytest.raises(SettingsError, match=re.escape(says)):
            build_pools(parse_settings(text), expand)
    else:
        assert build_pools(parse_settings(text), expand)["other"].reuse_from == ("gpu",)


@pytest.mark.parametrize(
    ("template", "says"), [("#cloud-config\n# $pool\n", "node.yaml has ${pool}"), ("#cloud-config\n", "")]
)
def test_a_template_that_names_the_pool_keeps_machines_in_it(tmp_path: Path, template: str, says: str) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(template)
    text = HEAD + POOL + OTHER.replace("cpus = 4", "cpus = 4\nreuse_from = ['gpu']") + f"[node]\nuser_data = '{file}'\n"
    if says:
        with pytest.raises(SettingsError, match=re.escape(says)):
            build_pools(parse_settings(text), expand)
    else:
        build_pools(parse_settings(text), expand)


@pytest.mark.parametrize(
    ("gres", "mig", "says"),
    [
        ("gpu:1g.10gb:14", "1g.10gb:7", ""),
        ("gpu:3g.40gb:2,gpu:1g.10gb:8", "3g.40gb:1,1g.10gb:4", ""),
        ("gpu:a100:1", "1g.10gb:7", "pools.gpu.mig: cuts each GPU into gpu:1g.10gb:7: 'gres' must have that"),
        ("gpu:1g.10gb:8", "1g.10gb:7", "pools.gpu.mig: cuts each GPU into gpu:1g.10gb:7"),
        ("gpu:3g.40gb:1,gpu:1g.10gb:8", "3g.40gb:1,1g.10gb:4", "pools.gpu.mig: cuts each GPU"),
        ("gpu:1g.10gb:7", "7x1g", "must be profiles of MIG and how many of each GPU, such as '1g.10gb:7'"),
        ("gpu:1g.10gb:7,shard:28", "1g.10gb:7", "choose one of the two"),
        ("gpu:2,shard:8", "", ""),
        ("gpu:4,shard:3", "", "pools.gpu.gres: has 3 shards of 4 GPUs; each GPU has one at least"),
        ("shard:3", "", "has 3 shards of 0 GPUs"),
    ],
)
def test_parts_of_gpus_go_with_the_gpus(gres: str, mig: str, says: str) -> None:
    more = f"cpus = 4\ngres = '{gres}'\n" + (f"mig = '{mig}'\n" if mig else "")
    if says:
        with pytest.raises(SettingsError, match=re.escape(says)):
            build_pools(parse_settings(HEAD + POOL.replace("cpus = 4", more)), expand)
    else:
        build_pools(parse_settings(HEAD + POOL.replace("cpus = 4", more)), expand)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("gres = 'gpu:1'\ngpu_test = 'shrt'", "must be 'none', 'basic', 'short' or 'long', not 'shrt'"),
        ("gpu_test = 'basic'", "pools.gpu.gpu_test: tests GPUs, and 'gres' of the pool has none"),
        ("gres = 'gpu:1'\ngpu_test_limit_s = 9", "pools.gpu.gpu_test_limit_s: limits the tests 'short' and 'long'"),
        ("gres = 'gpu:1'\ngpu_test = 'long'", "the test may take 300 s: set validation_timeout_s in [daemon] to 360"),
        ("gres = 'gpu:1'\ngpu_test = 'long'\ngpu_test_limit_s = 120\ngpu_min_gb_s = 40", ""),
        ("gres = 'gpu:1'\ngpu_test = 'short'\ngpu_min_gb_s = 40", "is measured with gpu_test = 'long' only"),
        ("gres = 'gpu:1'\ngpu_test = 'short'", ""),
        ("gpu_test = 'none'", ""),
    ],
)
def test_tests_of_gpus_go_with_the_pool(more: str, says: str) -> None:
    text = HEAD + POOL.replace("cpus = 4", f"cpus = 4\n{more}")
    if says:
        with pytest.raises(SettingsError, match=re.escape(says)):
            build_pools(parse_settings(text), expand)
    else:
        build_pools(parse_settings(text), expand)


FRAMEWORKS = """
[frameworks."pytorch-2.5-cuda12"]
modules = ["PyTorch/2.5.1", "extra"]
[frameworks.solver]
image = "/images/solver.sif"
check = "solver --version"
limit_s = 50
"""


@pytest.mark.parametrize(
    ("pool", "frameworks", "says"),
    [
        ("frameworks = ['pytorch-2.5']", "", "no framework is called 'pytorch-2.5'; did you mean 'pytorch-2.5"),
        ("frameworks = ['solver', 'solver']", "", "'solver' stands there twice"),
        ("features = ['solver']", "", "'solver' is a framework: name it in 'frameworks', so that"),
        ("frameworks = ['solver', 'pytorch-2.5-cuda12']", "",
         "pools.gpu.frameworks: the test may take 170 s: set validation_timeout_s in [daemon] to 230 or more"),
        ("frameworks = ['solver']\ngres = 'gpu:1'\ngpu_test = 'long'", "",
         "pools.gpu.frameworks: the tests of GPUs and frameworks may take 350 s"),
        ("", "[frameworks.'a&b']\nmodules = ['a']", "the name must be one feature of Slurm: a letter, then"),
        ("", "[frameworks.2x]\nmodules = ['a']", "the name must be one feature of Slurm: a letter, then"),
        ("", "[frameworks.octave]\nmodules = ['a']",
         "frameworks.octave.check: must be set: there is a check only for names that begin with pytorch,"),
        ("", "[frameworks.jax]\ncheck = 'true'", "must have either modules or an image"),
        ("", "[frameworks.jax]\nmodules = ['a']\nimage = '/a.sif'", "must have either modules or an image, not both"),
        ("", "[frameworks.jax]\nimage = 'docker://jax'",
         "has 1 fault:\n  line 20: frameworks.jax.image: must be an absolute path of at most 250 characters"),
        ("", "[frameworks.jax-1.2]\nimage = '/a.sif'",
         "frameworks.jax-1: has a table '2' in it: a name with a dot must be in quotes: [frameworks.\"pytorch-2.5"),
        ("", "[frameworks]\njax = 1", "must be a table"),
        ("", "[frameworks.jax]\nmodules = ['*']", "must be a module's name, with or without /VERSION"),
    ],
)  # fmt: skip
def test_frameworks_that_cannot_be_tested_are_refused(pool: str, frameworks: str, says: str) -> None:
    text = HEAD + POOL.replace("cpus = 4", f"cpus = 4\n{pool}") + FRAMEWORKS + frameworks
    with pytest.raises(SettingsError, match=re.escape(says)):
        build_pools(parse_settings(text), expand)


@pytest.mark.parametrize("gres", ["", "gres = 'gpu:1'"])
def test_a_framework_is_a_feature_with_a_check(gres: str) -> None:
    words = f"cpus = 4\nframeworks = ['pytorch-2.5-cuda12']\nfeatures = ['fast']\n{gres}"
    pool = build_pools(parse_settings(HEAD + POOL.replace("cpus = 4", words) + FRAMEWORKS), expand)["gpu"]
    assert pool.shape.features == {"fast", "pytorch-2.5-cuda12"}
    (framework,) = pool.frameworks
    assert framework.modules == ("PyTorch/2.5.1", "extra")
    uses_gpu = '; assert torch.ones(8, device="cuda").sum().item() == 8' if gres else ""
    assert framework.check == f"python3 -c 'import torch{uses_gpu}'"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("fabric_test = 'ib_write_bw -x 0'\nfabric_min_gb_s = 20.5\nfabric_test_limit_s = 30", ""),
        ("fabric_min_gb_s = 20", "pools.gpu.fabric_min_gb_s: is measured by fabric_test, which is not set"),
        ("fabric_test = 'ib_write_bw \"'", "pools.gpu.fabric_test: must be a command and its arguments"),
        ("fabric_test = ' '", "pools.gpu.fabric_test: must be a command and its arguments"),
        ("fabric_test = ''", "pools.gpu.fabric_test: must be a command and its arguments"),
        ("fabric_test = 'x'\nfabric_test_limit_s = 901",
         "pools.gpu.fabric_test_limit_s: is 901 s, more than a job's nodes wait for each other: gang_timeout_s in"),
    ],
)  # fmt: skip
def test_tests_of_a_fabric(more: str, says: str) -> None:
    text = HEAD + POOL.replace("cpus = 4", f"cpus = 4\n{more}")
    if says:
        with pytest.raises(SettingsError, match=re.escape(says)):
            build_pools(parse_settings(text), expand)
    else:
        assert build_pools(parse_settings(text), expand)["gpu"].fabric_test == FabricTest("ib_write_bw -x 0", 30, 20.5)


def test_jobs_ask_for_a_fabric_by_its_name() -> None:
    """A feature of the pool's nodes in slurm.conf; ``fabric`` is any."""
    text = HEAD + POOL.replace("cpus = 4", "cpus = 4\nfabric = 'efa'\nfeatures = ['cloud']")
    assert build_pools(parse_settings(text), expand)["gpu"].shape.features == {"cloud", "efa", "fabric"}
    for word in ("none", "fabric", ""):
        with pytest.raises(
            SettingsError, match="must be a word that jobs ask for with -C, such as 'efa' or 'ib': a let"
        ):
            parse_settings(text.replace("efa", word))


def test_check_programs_are_executable_and_nobody_elses(tmp_path: Path) -> None:
    for name, mode in (("b.py", 0o755), ("a", 0o700), ("README", 0o644), (".hidden", 0o755)):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(mode)
    assert read_check_programs(tmp_path) == {"a": b"a", "b.py": b"b.py"}
    assert read_check_programs(None) == {}
    (tmp_path / "a").chmod(0o777)
    settings = tmp_path / "burstd.toml"
    settings.write_text(HEAD + f"[node]\ncheck_folder = '{tmp_path}'\nmunge_key = '{settings}'\n")
    settings.chmod(0o600)
    with pytest.raises(SettingsError, match=r"line 3: node.check_folder: .*/a can be written by others \(mode 0777\)"):
        load_settings(settings)
    with pytest.raises(ValueError, match=r"/nowhere cannot be read \(No such file or directory\)"):
        read_check_programs(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ("gpu[1-", "line 4: pools.gpu.nodes: is no host list"),
        ("gpu1,gpu1", "names gpu1 more than once"),
        ("cpu[2-3]", "names cpu3, which pool 'cpu' has"),
    ],
)
def test_a_slot_stands_in_one_pool_once(nodes: str, says: str) -> None:
    first = POOL.replace("pools.gpu", "pools.cpu").replace("gpu[1-2]", "cpu[3-4]").partition("[providers")[0]
    settings = parse_settings(HEAD + POOL.replace("gpu[1-2]", nodes) + first.replace("\n\n", "\n"))
    reordered = settings.model_copy(update={"pools": dict(reversed(settings.pools.items()))})
    reordered._source = settings.source
    with pytest.raises(SettingsError) as raised:
        build_pools(reordered, expand)
    assert says in str(raised.value)


def test_files_that_hold_secrets_are_looked_at(tmp_path: Path) -> None:
    key = tmp_path / "munge.key"
    file = tmp_path / "burstd.toml"
    file.write_text(f'{HEAD}[node]\nmunge_key = "{key}"\n')
    with pytest.raises(SettingsError, match=r"line 3: node.munge_key: the file .* cannot be used \(No such file"):
        load_settings(file)
    key.write_text("k")
    for mode, fine in ((0o400, True), (0o640, True), (0o644, False), (0o602, False)):
        key.chmod(mode)
        if fine:
            assert load_settings(file).node.munge_key == key
        else:
            with pytest.raises(SettingsError, match=f"open to everybody \\(mode {mode:04o}\\); 'chmod o= {key}'"):
                load_settings(file)
    key.chmod(0o600)
    file.chmod(0o666)
    with pytest.raises(SettingsError, match="can be written by everybody"):
        load_settings(file)
    assert load_settings(file, check_files=False).cluster == "site"


def test_a_key_that_this_user_cannot_read_is_named(tmp_path: Path) -> None:
    key = tmp_path / "munge.key"
    key.touch(mode=0)
    settings = parse_settings(f'{HEAD}[node]\nmunge_key = "{key}"\n')
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        (fault,) = secret_faults(settings)
    finally:
        os.seteuid(me)
    assert f"the file {key} cannot be read by user " in str(fault)
    assert "(check as root, or with --no-files)" in str(fault)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no such file: 'burstctl init' writes one"):
        load_settings(tmp_path / "burstd.toml")
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(tmp_path)
    (tmp_path / "latin").write_bytes(b'# a\ncluster = "\xe4"\n')
    with pytest.raises(SettingsError, match="line 2: is not UTF-8"):
        load_settings(tmp_path / "latin")


def test_lines_of_keys_of_every_kind() -> None:
    text = '''a = 1 # [b]
"q.x" = """
[no]
no = 1
""" # c
d.e = [ 1, [2,
  3], { f = "}]", g.h = 'x"' } ]
[t]
"i\\u006a" = \'\'\'
k = ]
\'\'\'
[[l.m]]
n = 2026-01-01T00:00:00Z
[l.m.o]
p = [
  # nothing
  "#",
]
[[l.m]]
n = -1.5e3
'''
    tomllib.loads(text)
    lines = key_lines(text)
    expected: dict[KeyPath, int] = {
        ("a",): 1, ("q.x",): 2, ("d", "e"): 6, ("d", "e", 1, 1): 7, ("d", "e", 2, "f"): 7, ("d", "e", 2, "g", "h"): 7,
        ("t",): 8, ("t", "ij"): 9, ("l", "m", 0, "n"): 13, ("l", "m", 0, "o", "p", 0): 17, ("l", "m", 1, "n"): 20,
    }  # fmt: skip
    assert {path: lines.get(path) for path in expected} == expected


names = st.text("ab_-1. \"'\\#=[]", min_size=1, max_size=5)
scalars = st.one_of(st.integers(), st.booleans(), st.text(max_size=8), st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(names, v, max_size=3), max_leaves=8)


def write(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return basic(value)
        case list():
            return "[\n" + "".join(f" {write(v)}, # ]\n" for v in value) + "]"
        case dict():
            return "{ " + ", ".join(f"{basic(k)} = {write(v)}" for k, v in value.items()) + " }"
    return repr(value)


def basic(text: str) -> str:
    return '"' + "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in text) + '"'


def paths(value: object, before: KeyPath = ()) -> set[KeyPath]:
    if isinstance(value, dict):
        inner = [(k, v) for k, v in value.items()]
    else:
        inner = list(enumerate(value)) if isinstance(value, list) else []
    return {(*before, k) for k, _ in inner}.union(*(paths(v, (*before, k)) for k, v in inner))


@given(st.dictionaries(names, values, max_size=4))
def test_every_key_that_tomllib_finds_has_a_line(data: dict[str, object]) -> None:
    text, starts = "", {}
    for key, value in data.items():
        starts[key] = text.count("\n") + 1
        text += f"{basic(key)} = {write(value)}\n"
    assert tomllib.loads(text) == data
    lines = key_lines(text)
    assert set(lines) == paths(data)
    assert {k: lines[k,] for k in data} == starts

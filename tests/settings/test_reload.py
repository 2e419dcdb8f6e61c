"""What a reload says of lists of tables: each key by its place, not the whole list."""

from __future__ import annotations

from burstd.settings import diff_settings
from burstd.settings.load import parse_settings

POOL = """
cluster = "x"
[providers.sky]
kind = "sandbox"
[pools.gpu]
nodes = "gpu[1-2]"
partitions = ["burst"]
cpus = 8
memory = "1G"
offers = [{ provider = "sky", image = "node" }]
"""


def test_keys_of_a_pools_offers_are_named_by_their_place() -> None:
    old = parse_settings(POOL)
    assert diff_settings(old, parse_settings(POOL.replace('"node"', '"nod"'))).texts() == [
        "pools.gpu.offers[0].image: node -> nod"
    ]
    one_more = parse_settings(
        POOL.replace("}]", '}, { provider = "sea" }]').replace(
            "[pools.gpu]", "[providers.sea]\nkind = 'sandbox'\n[pools.gpu]"
        )
    )
    assert diff_settings(old, one_more).texts()[:2] == [
        "pools.gpu.offers[1].provider: not set -> sea",
        "pools.gpu.offers[1].instance_types: not set -> []",
    ]

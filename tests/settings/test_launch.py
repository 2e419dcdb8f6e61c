"""A store whose storage node burstd launches: what its table may say."""

from __future__ import annotations

import pytest

from burstd.domain.storage_node import NodeBackedStore
from burstd.settings import PluginRegistry, SettingsError, parse_settings, resolve_plugins

HEAD = 'cluster = "x"\n[providers.sky]\nkind = "sandbox"\nurl = "http://10.0.0.1:1"\ntoken_file = "/t"\n'
STORE = '[staging]\nstore = "near"\n[staging.stores.near]\nkind = "ssh"\npath = "/srv/burst"\n'
OFFER = 'launch = [{ provider = "sky", instance_types = ["c2.*"], image = "node" }]\n'


def test_a_table_with_launch_makes_a_store_that_wants_a_node() -> None:
    settings = parse_settings(HEAD + STORE + OFFER + "idle_s = 30\nfree_gib = 2\n")
    chosen = resolve_plugins(settings, PluginRegistry.installed(), check_files=False).stores["near"]
    store = chosen.plugin.make("near", "x", chosen.settings)
    assert isinstance(store, NodeBackedStore)
    assert store.node_spec is not None
    assert (store.node_spec.path, store.node_spec.free_bytes, store.node_spec.idle_s) == ("/srv/burst", 2 << 30, 30.0)
    [rule] = store.node_spec.offers
    assert (rule.provider, rule.instance_types, rule.markets, rule.image) == ("sky", ("c2.*",), ("on-demand",), "node")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (STORE, "needs either host, where the node is, or launch"),
        (STORE + OFFER + 'host = "h"\nkey_file = "/k"\n', "needs either host, where the node is, or launch"),
        (STORE + 'host = "h"\n', "needs key_file"),
        (STORE + 'host = "h"\nkey_file = "/k"\nidle_s = 3\n', "takes idle_s with launch only"),
        (STORE + OFFER + 'user = "me"\nkey_file = "/k"\n', "takes no key_file, user with launch"),
        (STORE + OFFER.replace("image", "imgae"), "imgae"),
        (STORE + OFFER.replace("sky", "sly"), "staging.stores.near.launch[0].provider: no provider is called 'sly'"),
        (
            STORE + OFFER + "[pools.storage-near]\nnodes = 'n1'\npartitions = ['p']\ncpus = 1\nmemory = 1\n"
            "offers = [{ provider = 'sky' }]\n",
            "pools.storage-near: is the name of the storage node of store near",
        ),
    ],
)
def test_faults_are_named(text: str, says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        resolve_plugins(parse_settings(HEAD + text), PluginRegistry.installed(), check_files=False)
    assert says in str(raised.value)

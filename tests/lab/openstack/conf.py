"""The configuration of the lab's services: one file for each, whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HOST = "10.77.0.1"
"""Where the APIs listen: the hub of a lab's network. The catalogue of the template has it."""
KEYSTONE, GLANCE, PLACEMENT, NOVA, NEUTRON, CINDER = 5000, 9292, 8778, 8774, 9696, 8776
DATABASE, BROKER, EPMD, ERLANG = 13306, 15673, 15674, 35673
"""On loopback."""
SCHEMAS = ("keystone", "placement", "glance", "neutron", "nova", "nova_api", "nova_cell0", "cinder")
COMPUTES = {"node1": "az1", "node2": "az2"}
"""Hosts and their availability zones."""
REGION = "RegionOne"
ADMIN = "admin"
"""Name, password and project of who may do everything; the services are this user too."""


@dataclass(frozen=True)
class Parameters:
    """Where a control plane lies, and what may differ from one to the next."""

    state: Path
    venv: Path

    def database(self, schema: str) -> str:
        """SQLAlchemy's address."""
        return f"mysql+pymysql://os:os@127.0.0.1:{DATABASE}/{schema}"


def database_words(state: Path) -> list[str]:
    """mariadbd's command line. What it holds is thrown away, so nothing is synced to the disk."""
    return [
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={state}/mysql",
        f"--socket={state}/my.sock",
        f"--pid-file={state}/my.pid",
        "--bind-address=127.0.0.1",
        f"--port={DATABASE}",
        "--skip-name-resolve",
        "--skip-log-bin",
        "--performance-schema=off",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-flush-method=nosync",
        "--innodb-doublewrite=0",
        "--innodb-use-native-aio=0",
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=16M",
        "--max-connections=600",
        # Else two claims of GPUs at once are a deadlock.
        "--transaction-isolation=READ-COMMITTED",
    ]


def broker_environment(state: Path) -> dict[str, str]:
    """rabbitmq-server(8) has all of its settings from here."""
    return {
        "HOME": f"{state}/rabbit",
        "RABBITMQ_NODENAME": "burstd@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(BROKER),
        "RABBITMQ_DIST_PORT": str(ERLANG),
        "ERL_EPMD_PORT": str(EPMD),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_MNESIA_BASE": f"{state}/rabbit/mnesia",
        "RABBITMQ_LOG_BASE": f"{state}/rabbit/log",
        "RABBITMQ_CONFIG_FILE": f"{state}/rabbit/none",
        "RABBITMQ_CONF_ENV_FILE": f"{state}/rabbit/none",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{state}/rabbit/plugins",
        # Half a gigabyte of disk is all that a broker of small messages needs to be content.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +A 4 -rabbit disk_free_limit 50000000",
    }


def environment(parameters: Parameters) -> dict[str, str]:
    """Tells every service where its files are."""
    conf = f"{parameters.state}/conf"
    return {
        "OS_KEYSTONE_CONFIG_DIR": conf,
        "OS_KEYSTONE_CONFIG_FILES": f"{conf}/keystone.conf",
        "OS_PLACEMENT_CONFIG_DIR": conf,
        "OS_GLANCE_CONFIG_DIR": conf,
        "OS_NEUTRON_CONFIG_DIR": conf,
        "OS_NEUTRON_CONFIG_FILES": "neutron.conf",
        # Nova takes the first of its files as the one for paste.
        "OS_NOVA_CONFIG_DIR": conf,
        "OS_NOVA_CONFIG_FILES": "nova-paste.ini;nova.conf",
        "BURSTD_FAULTS": f"{parameters.state}/faults.json",
    }


def files(parameters: Parameters) -> dict[str, str]:
    """Names in the folder ``conf``, and what they hold."""
    found = {
        "keystone.conf": _KEYSTONE,
        "placement.conf": _PLACEMENT,
        "glance-api.conf": _GLANCE,
        "neutron.conf": _NEUTRON,
        "nova.conf": _NOVA,
        "cinder.conf": _CINDER,
        "clouds.yaml": _CLOUDS,
    }
    words = {
        "state": str(parameters.state),
        "etc": f"{parameters.venv}/etc",
        "auth": _AUTH,
        "auth_url": f"http://{HOST}:{KEYSTONE}/v3",
        "broker": f"rabbit://guest:guest@127.0.0.1:{BROKER}/",
        "admin": ADMIN,
        "region": REGION,
        "glance": f"http://{HOST}:{GLANCE}",
        "filters": ",".join(_FILTERS),
        "pci": "".join(
            f'alias = {{"name": "{name}", "device_type": "type-PCI", "numa_policy": "preferred", {ids}}}\n'
            f"device_spec = {{{ids}}}\n"
            for name, ids in _DEVICES.items()
        ),
    }
    words |= {f"db_{schema}": parameters.database(schema) for schema in SCHEMAS}
    # Once for the parts, which have words of their own, and once for those.
    texts = {name: _filled(_filled(text, words), words) for name, text in found.items()}
    for host in COMPUTES:
        texts[f"{host}.conf"] = f"[DEFAULT]\nhost = {host}\nstate_path = {parameters.state}/{host}\n"
    texts["nova-paste.ini"] = (parameters.venv / "etc/nova/api-paste.ini").read_text(encoding="utf-8")
    return texts


def _filled(text: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    return text


_FILTERS = (
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
    "PciPassthroughFilter",
    "NUMATopologyFilter",
)
# As burstd_virt.py has them.
_DEVICES = {
    "h100": '"vendor_id": "10de", "product_id": "2330"',
    "fpga": '"vendor_id": "10ee", "product_id": "5000"',
}
_CLOUDS = """clouds:
  admin:
    region_name: @region@
    auth:
      auth_url: @auth_url@
      username: @admin@
      password: @admin@
      project_name: @admin@
      user_domain_name: Default
      project_domain_name: Default
"""
_AUTH = """auth_type = password
auth_url = @auth_url@
username = @admin@
password = @admin@
project_name = @admin@
user_domain_name = Default
project_domain_name = Default
region_name = @region@
valid_interfaces = public
"""
# In seconds. A token that was taken back is still good for a service that remembers it.
_TOKENS = """[keystone_authtoken]
@auth@
token_cache_time = 10
service_token_roles_required = true
"""
_POOL = """max_pool_size = 20
max_overflow = 40
"""
# Without its cache, two thirds of all work for a server are keystone's, which is asked of each token again and again.
_KEYSTONE = f"""[database]
connection = @db_keystone@
{_POOL}
[fernet_tokens]
key_repository = @state@/fernet
[credential]
key_repository = @state@/credentials
[identity]
password_hash_rounds = 4
[cache]
enabled = true
backend = dogpile.cache.memory
"""
_PLACEMENT = f"""[placement_database]
connection = @db_placement@
{_POOL}
[api]
auth_strategy = keystone
{_TOKENS}
"""
_GLANCE = f"""[DEFAULT]
enabled_backends = file:file
[database]
connection = @db_glance@
[glance_store]
default_backend = file
[file]
filesystem_store_datadir = @state@/images
[os_glance_staging_store]
filesystem_store_datadir = @state@/images/staging
[os_glance_tasks_store]
filesystem_store_datadir = @state@/images/tasks
[paste_deploy]
flavor = keystone
config_file = @etc@/glance/glance-api-paste.ini
[oslo_concurrency]
lock_path = @state@/lock
{_TOKENS}
"""
# There are no agents: nobody need be told anything. The router is there for floating IPs.
_NEUTRON = f"""[DEFAULT]
core_plugin = ml2
service_plugins = router
transport_url = fake:///
state_path = @state@/neutron
api_paste_config = @etc@/neutron/api-paste.ini
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
[ml2]
type_drivers = local,flat
tenant_network_types = local
mechanism_drivers = burstd_lab
extension_drivers = port_security
[ml2_type_flat]
flat_networks = *
[quotas]
quota_port = 500
[database]
connection = @db_neutron@
{_POOL}
[oslo_concurrency]
lock_path = @state@/lock
{_TOKENS}
"""
_NOVA = f"""[DEFAULT]
transport_url = @broker@
state_path = @state@/nova
my_ip = 127.0.0.1
host = control
compute_driver = burstd_virt.LabDriver
rpc_response_timeout = 30
service_down_time = 15
report_interval = 3
resume_guests_state_on_host_boot = false
vif_plugging_is_fatal = false
vif_plugging_timeout = 0
max_concurrent_builds = 20
[wsgi]
api_paste_config = @etc@/nova/api-paste.ini
[api_database]
connection = @db_nova_api@
{_POOL}
[database]
connection = @db_nova@
{_POOL}
[service_user]
send_service_user_token = true
@auth@
[glance]
@auth@
[placement]
@auth@
[neutron]
@auth@
[cinder]
catalog_info = block-storage::publicURL
os_region_name = @region@
@auth@
[vnc]
enabled = false
[conductor]
workers = 1
[scheduler]
workers = 1
[filter_scheduler]
enabled_filters = @filters@
[pci]
@pci@
[quota]
instances = 250
cores = 1500
ram = 4000000
[oslo_concurrency]
lock_path = @state@/lock
[oslo_messaging_rabbit]
rabbit_quorum_queue = false
rabbit_transient_quorum_queue = false
amqp_durable_queues = false
{_TOKENS}
"""
_CINDER = f"""[DEFAULT]
transport_url = @broker@
state_path = @state@/cinder
host = control
my_ip = 127.0.0.1
api_paste_config = @etc@/cinder/api-paste.ini
enabled_backends = lab
default_volume_type = lab
glance_api_servers = @glance@
auth_strategy = keystone
report_interval = 3
service_down_time = 120
quota_volumes = 100
[lab]
volume_driver = burstd_volume.NoDisks
volume_backend_name = lab
[database]
connection = @db_cinder@
{_POOL}
[coordination]
backend_url = file://@state@/cinder
[service_user]
send_service_user_token = true
@auth@
[nova]
@auth@
interface = public
[oslo_concurrency]
lock_path = @state@/lock
[oslo_messaging_rabbit]
rabbit_quorum_queue = false
rabbit_transient_quorum_queue = false
amqp_durable_queues = false
{_TOKENS}
"""

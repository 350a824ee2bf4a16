"""Stock clients of several tenants in one process; run by command_server.py."""
import hashlib

SIZE = 1 << 20
CLIENTS = {}


def value(tenant, key):
    return hashlib.shake_128(f"{tenant}/{key}".encode()).digest(SIZE)


def connect(tenant):
    from mooncake.mooncake_config import MooncakeConfig
    from mooncake.store import MooncakeDistributedStore

    config = MooncakeConfig.load_from_env()
    store = MooncakeDistributedStore()
    code = store.setup(config.local_hostname, config.metadata_server, config.global_segment_size, 64 << 20,
                       config.protocol, config.device_name or "", config.master_server_address, tenant_id=tenant)
    assert code == 0, f"setup at {config.master_server_address} answered {code}"
    return store


def client(tenant):
    if tenant not in CLIENTS:
        CLIENTS[tenant] = connect(tenant)
    return CLIENTS[tenant]


def put(tenant, first, keys):
    """Puts keys, and returns the code of each put."""
    numbers = range(first, first + keys)
    return [client(tenant).put(f"key-{number}", value(tenant, f"key-{number}")) for number in numbers]


def exceed(tenant, keys):
    """Gets keys, which are not evicted for 10 s then, and returns the code of a put of one more."""
    for number in range(keys):
        client(tenant).get(f"key-{number}")
    return put(tenant, keys, 1)[0]


def verify(tenant, keys):
    """Gets keys, and counts those with the values of the tenant."""
    got = [client(tenant).get(f"key-{number}") for number in range(keys)]
    return {"right": sum(one == value(tenant, f"key-{number}") for number, one in enumerate(got)),
            "missing": sum(not one for one in got)}


COMMANDS = {command.__name__: command for command in (put, exceed, verify)}

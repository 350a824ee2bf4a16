"""Stock clients that put, get and compare until SIGKILL, one after the other. SIGUSR1 starts the next one.

rdma_clients.py KEYS BYTES
The first client puts KEYS keys, which all later ones compare before anything else. Then a thread gets these keys again, and another
one puts, gets and removes one of its own, so that a transfer is under way at any time. /tmp/verified has how many values the present
client has got again and found equal, of the kept keys or of its own one, whichever is less. A value that differs, or a key that the
master no longer knows, ends everything.
"""
import hashlib
import os
import signal
import sys
import threading
import time

from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore

KEYS, BYTES = int(sys.argv[1]), int(sys.argv[2])
KEPT = [f"kept-{number}" for number in range(KEYS)]
VALUES = {key: hashlib.shake_128(key.encode()).digest(BYTES) for key in KEPT}
VERIFIED = "/tmp/verified"
verified = {"kept": 0, "own": 0}


def name(text):
    """The name under which `pgrep -x` finds this process."""
    with open("/proc/self/comm", "w") as file:
        file.write(text)


def end(text):
    print(text, flush=True)
    os._exit(1)


def connected():
    config = MooncakeConfig.load_from_env()
    while True:
        store = MooncakeDistributedStore()
        code = store.setup(config.local_hostname, config.metadata_server, config.global_segment_size,
                           config.local_buffer_size, config.protocol, config.device_name or "",
                           config.master_server_address)
        if code == 0:
            return store
        print(f"setup at {config.master_server_address} returned {code}", flush=True)
        time.sleep(0.5)


def compared(store, key, value):
    """Gets until a value arrives. Gets fail while no engine process serves."""
    while True:
        got = store.get(key)
        if got == value:
            return
        if got:
            end(f"{key}: {len(got)} bytes that differ from the value")
        if store.is_exist(key) == 0:
            end(f"{key}: the master does not know it")
        print(f"get of {key} failed", flush=True)
        time.sleep(0.1)


def put(store, key, value):
    while (code := store.put(key, value)) != 0:
        print(f"put of {key} returned {code}", flush=True)
        time.sleep(0.1)


def progress():
    with open(VERIFIED, "w") as file:
        file.write(str(min(verified.values())))


def own_key(pid):
    return f"own-{pid}"


def use_own_key(store):
    key, value = own_key(os.getpid()), os.urandom(BYTES)
    try:
        while True:
            put(store, key, value)
            compared(store, key, value)
            verified["own"] += 1
            store.remove(key, True)
    except BaseException as error:
        end(f"{key}: {error!r}")


def client(before):
    name("rdma-client")
    store = connected()
    if before is None:
        for key, value in VALUES.items():
            put(store, key, value)
    else:
        # Where it was complete: it would stay for ever.
        store.remove(own_key(before), True)
    for key, value in VALUES.items():
        compared(store, key, value)
    threading.Thread(target=use_own_key, args=(store,)).start()
    while True:
        for key, value in VALUES.items():
            compared(store, key, value)
            verified["kept"] += 1
            progress()


def main():
    # Blocked, because process 1 of a container gets no signal without a handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    name("rdma-clients")
    before = None
    while signal.sigwait({signal.SIGUSR1}):
        pid = os.fork()
        if pid == 0:
            client(before)
        status = os.waitpid(pid, 0)[1]
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            end(f"a client ended with the status {status}")
        before = pid


main()

"""A stock client that reads requests on stdin and answers on stdout, one JSON object per line."""
import json, os, sys, time
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # the library writes to stdout
store = MooncakeDistributedStore()
if (code := store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", sys.argv[1])):
    raise SystemExit(f"setup: {code}")
print(json.dumps({"ready": True}), file=answers, flush=True)
for turn, line in enumerate(sys.stdin):
    order = json.loads(line)
    value, count = os.urandom(order["value_bytes"]), order["volume_bytes"] // order["value_bytes"]
    wanted = ReplicateConfig()
    wanted.preferred_segment = order["segment"]
    keys = [f"bench-{turn}-{i}" for i in range(count)]
    start = time.perf_counter()
    refused = sum(store.put(key, value, wanted) != 0 for key in keys)
    put = time.perf_counter() - start
    start = time.perf_counter()
    wrong = sum(store.get(key) != value for key in keys)
    get = time.perf_counter() - start
    store.remove_by_regex("^bench-", True)
    print(json.dumps({"put_seconds": put, "get_seconds": get, "refused": refused, "wrong": wrong,
                      "bytes": count * len(value)}), file=answers, flush=True)

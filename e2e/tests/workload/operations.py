"""Runs every operation of the stock store on values from 1 byte to 64 MiB; prints each result as a JSON line.

operations.py PREFIX [tensors]
With `tensors` only the operations on tensors, in an image with torch.
The lines contain no addresses and times, so that two pools which behave the same print the same.
"""
import ctypes
import hashlib
import json
import os
import sys
import time

from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

PREFIX = sys.argv[1]
SIZES = [1, 2, 7, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1, 4 << 20, 16 << 20, 64 << 20]
BUFFER = 160 << 20


def value(key, size):
    return hashlib.shake_128(key.encode()).digest(size)


def report(operation, **result):
    print(json.dumps({"operation": operation, **result}), flush=True)


def shown(got, want):
    return "right" if got == want else ("empty" if len(got) == 0 else f"wrong: {len(got)} bytes")


def connect():
    config = MooncakeConfig.load_from_env()
    store = MooncakeDistributedStore()
    code = store.setup(config.local_hostname, config.metadata_server, config.global_segment_size, BUFFER,
                       config.protocol, config.device_name or "", config.master_server_address)
    if code != 0:
        sys.exit(f"setup at {config.master_server_address} returned {code}")
    return store


def retry_remove(store, key):
    """A key that was read has a lease; remove refuses until it ends, unless forced."""
    return store.remove(key, True)


def sizes(store):
    for size in SIZES:
        key = f"{PREFIX}-size-{size}"
        want = value(key, size)
        report("put", size=size, code=store.put(key, want))
        report("size", size=size, answer=store.get_size(key))
        report("exist", size=size, answer=store.is_exist(key))
        report("get", size=size, answer=shown(store.get(key), want))
        report("get again", size=size, answer=shown(store.get(key), want))
        report("put again", size=size, code=store.put(key, want))
        report("remove", size=size, code=store.remove(key))
        report("remove by force", size=size, code=retry_remove(store, key))
        report("exist after remove", size=size, answer=store.is_exist(key))
        report("get after remove", size=size, answer=shown(store.get(key), want))


def batches(store):
    for size in (1, 4097, 1 << 20):
        keys = [f"{PREFIX}-batch-{size}-{number}" for number in range(16)]
        values = [value(key, size) for key in keys]
        report("put_batch", size=size, code=store.put_batch(keys, values))
        report("batch_is_exist", size=size, answer=store.batch_is_exist(keys + [f"{PREFIX}-none"]))
        got = store.get_batch(keys)
        report("get_batch", size=size, answer=[shown(one, want) for one, want in zip(got, values)])
        report("batch_remove", size=size, answer=store.batch_remove(keys, True))
        report("batch_is_exist after", size=size, answer=store.batch_is_exist(keys))


def parts(store):
    key = f"{PREFIX}-parts"
    pieces = [value(f"{key}-{number}", 1000 * number + 1) for number in range(5)]
    report("put_parts", code=store.put_parts(key, *pieces))
    report("get of parts", answer=shown(store.get(key), b"".join(pieces)))
    report("remove of parts", code=retry_remove(store, key))


def buffers(store):
    """The operations without copies, from and into registered memory."""
    size, count = 1 << 20, 4
    memory = ctypes.create_string_buffer(size * count * 2)
    start = ctypes.addressof(memory)
    report("register_buffer", code=store.register_buffer(start, len(memory)))
    keys = [f"{PREFIX}-buffer-{number}" for number in range(count)]
    sources = [start + size * number for number in range(count)]
    targets = [start + size * (count + number) for number in range(count)]
    for key, source in zip(keys, sources):
        ctypes.memmove(source, value(key, size), size)

    def landed():
        answer = [shown(ctypes.string_at(target, size), value(key, size)) for key, target in zip(keys, targets)]
        ctypes.memset(targets[0], 0, size * count)
        return answer

    report("put_from", code=store.put_from(keys[0], sources[0], size))
    report("get_into", answer=store.get_into(keys[0], targets[0], size))
    report("get_into too small", answer=store.get_into(keys[0], targets[0], size - 1))
    report("get_into landed", answer=landed()[0])
    report("batch_put_from", answer=store.batch_put_from(keys, sources, [size] * count))
    report("batch_get_into", answer=store.batch_get_into(keys, targets, [size] * count))
    report("batch_get_into landed", answer=landed())
    handle = store.get_buffer(keys[1])
    report("get_buffer", answer=shown(bytes(memoryview(handle)), value(keys[1], size)))
    del handle
    report("batch_remove of buffers", answer=store.batch_remove(keys, True))
    report("unregister_buffer", code=store.unregister_buffer(start))


def upserts(store):
    key = f"{PREFIX}-upsert"
    for turn, size in enumerate((1 << 20, 1 << 20, 300)):
        want = value(f"{key}-{turn}", size)
        report("upsert", turn=turn, code=store.upsert(key, want))
        report("get of upsert", turn=turn, answer=shown(store.get(key), want))
    report("remove of upsert", code=retry_remove(store, key))


def replicas(store):
    """Two replicas on two segments: both hold the bytes."""
    key, size = f"{PREFIX}-replica", 1 << 20
    config = ReplicateConfig()
    config.replica_num = 2
    want = value(key, size)
    report("put of two replicas", code=store.put(key, want, config))
    described = store.get_replica_desc(key)
    endpoints = {one.get_memory_descriptor().buffer_descriptor.transport_endpoint for one in described}
    print(f"replicas lie at {sorted(endpoints)}", flush=True)
    report("replicas", count=len(described), apart=len(endpoints))
    report("get of replicas", answer=shown(store.get(key), want))
    report("remove of replicas", code=retry_remove(store, key))


def many(store):
    keys = [f"{PREFIX}-regex-{number}" for number in range(8)]
    for key in keys:
        store.put(key, value(key, 100))
    report("remove_by_regex", answer=store.remove_by_regex(f"^{PREFIX}-regex-[0-3]$", True))
    report("left by regex", answer=store.batch_is_exist(keys))
    report("remove_all", answer=store.remove_all(True))
    report("left by remove_all", answer=store.batch_is_exist(keys))


def tensors(store):
    """Tensors of several types and shapes, alone, in a batch, into a buffer and in shards."""
    import torch

    def called(call, *arguments):
        """The answer, or the name of the error: its text may have addresses."""
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001
            return type(error).__name__

    def same(got, want):
        if not isinstance(got, torch.Tensor):
            return f"no tensor: {got}"
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"wrong: {got.dtype} {tuple(got.shape)}"
        return "right" if torch.equal(got, want) else "wrong: bytes"

    def tensor(shape, kind=torch.float32):
        count = 1
        for size in shape:
            count *= size
        return (torch.arange(count) % 113).reshape(shape).to(kind)

    kinds = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
             torch.int8, torch.uint8, torch.bool)
    wanted = [tensor((3, 1000), kind) for kind in kinds] + [tensor(shape) for shape in ((1,), (7,), (512, 512), (2, 3, 4, 5))]
    for want in wanted:
        about = {"type": str(want.dtype), "shape": list(want.shape)}
        key = f"{PREFIX}-tensor-{want.dtype}-{want.shape}"
        report("put_tensor", **about, code=called(store.put_tensor, key, want))
        report("size of tensor", **about, answer=store.get_size(key))
        report("get_tensor", **about, answer=same(called(store.get_tensor, key), want))
        report("put_tensor again", **about, code=called(store.put_tensor, key, want))
        report("remove of tensor", **about, code=retry_remove(store, key))
        report("get_tensor after remove", **about, answer=str(called(store.get_tensor, key)))

    keys = [f"{PREFIX}-tensors-{number}" for number in range(8)]
    wanted = [tensor((number + 1, 4096)) for number in range(8)]
    report("batch_put_tensor", answer=called(store.batch_put_tensor, keys, wanted))
    got = called(store.batch_get_tensor, keys)
    report("batch_get_tensor", answer=[same(one, want) for one, want in zip(got, wanted)])
    other = tensor((5, 77), torch.int32)
    report("upsert_tensor", code=called(store.upsert_tensor, keys[0], other))
    report("get_tensor of upsert", answer=same(called(store.get_tensor, keys[0]), other))
    report("batch_remove of tensors", answer=store.batch_remove(keys, True))

    want, key = tensor((256, 1024)), f"{PREFIX}-tensor-into"
    memory = ctypes.create_string_buffer(2 << 20)
    start = ctypes.addressof(memory)
    report("register_buffer for tensors", code=store.register_buffer(start, len(memory)))
    report("put_tensor for a buffer", code=called(store.put_tensor, key, want))
    report("get_tensor_into", answer=same(called(store.get_tensor_into, key, start, len(memory)), want))
    report("unregister_buffer of tensors", code=store.unregister_buffer(start))

    key = f"{PREFIX}-tensor-shards"
    report("put_tensor_with_tp", code=called(store.put_tensor_with_tp, key, want, 0, 4, 0))
    for rank in range(4):
        shard = called(store.get_tensor_with_tp, key, rank, 4, 0)
        report("get_tensor_with_tp", rank=rank, answer=same(shard, want.chunk(4)[rank]))

    config = ReplicateConfig()
    config.replica_num = 2
    key = f"{PREFIX}-tensor-replicas"
    report("pub_tensor", code=called(store.pub_tensor, key, want, config))
    report("replicas of a tensor", count=len(store.get_replica_desc(key)))
    report("get_tensor of replicas", answer=same(called(store.get_tensor, key), want))
    report("remove_all of tensors", answer=store.remove_all(True) > 0)


def refusals(store):
    key = f"{PREFIX}-none"
    report("get of nothing", answer=shown(store.get(key), b"x"))
    report("size of nothing", answer=store.get_size(key))
    report("exist of nothing", answer=store.is_exist(key))
    report("remove of nothing", code=store.remove(key))


def main():
    store = connect()
    usual = (sizes, batches, parts, buffers, upserts, replicas, refusals, many)
    for part in (tensors,) if sys.argv[2:] == ["tensors"] else usual:
        part(store)
    report("end")
    os._exit(0)


main()

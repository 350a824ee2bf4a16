"""LMCache in vLLM without a model: LMCache's own storage backends save and load chunks.

The configuration is read by LMCache from its environment; the chunks are filled here, not by a GPU.
"""
import asyncio
import threading
import time

import server
import stubs

stubs.replace(
    # Kernels and models.
    "lmcache.lmcache_native",
    "lmcache.v1.gpu_connector",
    "cupy",
    "numba",
    "nvtx",
    "transformers",
    # Reports usage to LMCache's servers.
    "lmcache.usage_telemetry",
    # Backends that are not configured.
    "aiofile",
    "aiofiles",
)

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend import CreateStorageBackends

LAYERS, HEADS, WIDTH = 4, 4, 64


def main(model):
    config = LMCacheEngineConfig.from_env()
    metadata = LMCacheMetadata(
        model_name=model,
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.bfloat16,
        kv_shape=(LAYERS, 2, config.chunk_size, HEADS, WIDTH),
        role="worker",
        chunk_size=config.chunk_size,
    )
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    backends = CreateStorageBackends(config, metadata, loop, dst_device="cpu")
    local = backends["LocalCPUBackend"]
    (remote,) = [backend for name, backend in backends.items() if name.startswith("RemoteBackend")]
    if remote.connection is None:
        raise SystemExit("LMCache is not connected to Mooncake; see the lines above")

    keys = [CacheEngineKey(model, 1, 0, number + 1, metadata.kv_dtype) for number in range(server.BLOCKS)]
    found = sum(map(remote.contains, keys))
    saved = save(local, remote, metadata, keys) if found == 0 else 0
    loaded = total = wrong = 0
    for number, chunk in enumerate(remote.batched_get_blocking(keys)):
        if chunk is None:
            continue
        content = bytes(chunk.byte_array)
        expected = server.content(number, len(content))
        chunk.ref_count_down()
        loaded += 1
        total += len(content)
        wrong += sum(a != b for a, b in zip(content, expected)) if content != expected else 0
    server.report("lmcache", found=found, saved=saved, loaded=loaded, bytes=total, wrong=wrong)


def save(local, remote, metadata, keys):
    """Saves one chunk for each key; returns how many the pool then has."""
    chunks = [local.allocate(metadata.get_shapes(), metadata.get_dtypes(), MemoryFormat.KV_2LTD) for _ in keys]
    for number, chunk in enumerate(chunks):
        content = bytearray(server.content(number, chunk.get_size()))
        chunk.raw_tensor.view(torch.uint8).view(-1).copy_(torch.frombuffer(content, dtype=torch.uint8))
    written = threading.Semaphore(0)
    remote.batched_submit_put_task(keys, chunks, on_complete_callback=lambda _: written.release())
    for chunk in chunks:
        if not written.acquire(timeout=30):
            raise SystemExit("the chunks were not saved within 30 s")
        chunk.ref_count_down()
    # LMCache waits for 1 second and goes on; a slower write ends later.
    end = time.monotonic() + 30
    while not all(map(remote.contains, keys)) and time.monotonic() < end:
        time.sleep(0.1)
    return sum(map(remote.contains, keys))

"""`python3 -m sglang.launch_server` without a model: SGLang's own HiCache backend saves and loads host pages.

The flags are those of the real server. The pages come from a host pool that is filled here, not by a GPU.
"""
import argparse
import json

import server
import stubs

stubs.replace(
    # Kernels, models and the device side of the KV cache.
    "sglang.kernels",
    "sglang.srt.configs",
    "sglang.srt.layers",
    "sglang.srt.mem_cache.memory_pool",
    # Arguments and utilities of the server process.
    "sglang.srt.server_args",
    "sglang.srt.utils",
)

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

LAYERS, HEADS, WIDTH = 4, 4, 64


def flags():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--enable-hierarchical-cache", action="store_true", required=True)
    parser.add_argument("--hicache-ratio", type=float)
    parser.add_argument("--hicache-mem-layout", default="layer_first")
    parser.add_argument("--hicache-io-backend", default="kernel")
    parser.add_argument("--hicache-storage-prefetch-policy")
    parser.add_argument("--hicache-storage-backend", required=True)
    parser.add_argument("--hicache-storage-backend-extra-config", type=json.loads)
    return parser.parse_args()


def host_pool(options):
    """SGLang's host pool of `BLOCKS` pages, without the device pool that its constructor requires."""
    pool = object.__new__(MHATokenToKVPoolHost)
    pool.layout, pool.page_size, pool.dtype = options.hicache_mem_layout, options.page_size, torch.bfloat16
    pool.layer_num, pool.head_num, pool.head_dim = LAYERS, HEADS, WIDTH
    pool.size = server.BLOCKS * options.page_size
    pool.kv_buffer = torch.zeros(2, pool.size, LAYERS, HEADS, WIDTH, dtype=pool.dtype)
    pool.get_ksize_per_token = lambda: LAYERS * HEADS * WIDTH * pool.dtype.itemsize
    return pool


def main():
    options = flags()
    pool = host_pool(options)
    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=options.hicache_mem_layout.startswith("page_first"),
        model_name=options.model_path,
        extra_config=options.hicache_storage_backend_extra_config,
    )
    backend = StorageBackendFactory.create_backend(options.hicache_storage_backend, config, pool)
    backend.register_mem_pool_host(pool)

    keys = [f"page-{number}" for number in range(server.BLOCKS)]
    places = torch.arange(pool.size)
    found = backend.batch_exists(keys)
    memory = pool.kv_buffer.view(torch.uint8).view(-1)
    expected = torch.frombuffer(bytearray(server.content(0, memory.numel())), dtype=torch.uint8)
    saved = 0
    if found == 0:
        memory.copy_(expected)
        saved = sum(backend.batch_set_v1(keys, places))
    memory.zero_()
    loaded = sum(backend.batch_get_v1(keys, places))
    wrong = int((memory != expected).sum())
    server.report("sglang", found=found, saved=saved, loaded=loaded, bytes=memory.numel(), wrong=wrong)
    server.serve(options.port)


main()

"""`vllm serve` without a model: the connector that `--kv-transfer-config` names saves and loads KV blocks.

The blocks are in host memory that is filled here, not by a GPU.
"""
import argparse
import hashlib
import json
import sys
import time
import types

import server
import stubs
import vllm

stubs.accept_builtin_lists()
stubs.replace(
    # Models, kernels and the forward pass.
    "vllm.compilation",
    "vllm.forward_context",
    "vllm.model_executor",
    "vllm.multimodal",
    "vllm.tokenizers",
    "vllm.v1.attention",
    "vllm.v1.structured_output",
    # Packages that Debian does not have.
    "blake3",
    "huggingface_hub",
    "transformers",
    "uvloop",
)

BLOCK, LAYERS, HEADS, WIDTH = 16, 4, 8, 128


def flags():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--kv-transfer-config", type=json.loads, required=True)
    return parser.parse_args()


def main():
    options = flags()
    connector = options.kv_transfer_config["kv_connector"]
    if connector == "LMCacheConnectorV1":
        import lmcache_engine

        lmcache_engine.main(options.model)
    else:
        blocks(options)
    server.serve(options.port)


def blocks(options):
    """Saves and loads blocks as vLLM's worker does for one request."""
    import torch

    config_package()
    from vllm.config.kv_transfer import KVTransferConfig
    from vllm.distributed import parallel_state
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    one_rank = types.SimpleNamespace(world_size=1, rank_in_group=0)
    parallel_state._TP = parallel_state._PCP = parallel_state._DCP = one_rank
    torch.cuda.Event = HostEvent

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=HEADS, head_size=WIDTH, dtype=torch.bfloat16)
    layers = [f"model.layers.{number}.self_attn" for number in range(LAYERS)]
    # Block 0 is the one that vLLM leaves empty.
    cache = KVCacheConfig(server.BLOCKS + 1, [], [KVCacheGroupSpec(layers, spec)])
    config = vllm_config(options.model, KVTransferConfig(**options.kv_transfer_config), cache.num_blocks)
    connector = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, cache)
    tensors = {layer: torch.zeros(cache.num_blocks, 2, BLOCK, HEADS, WIDTH, dtype=spec.dtype) for layer in layers}
    connector.register_kv_caches(tensors)

    tokens = server.BLOCKS * BLOCK
    hashes = [hashlib.sha256(f"block {number}".encode()).digest() for number in range(server.BLOCKS)]
    found = lookup(connector, tokens, hashes)
    memory = [tensor.view(torch.uint8)[1:] for tensor in tensors.values()]
    expected = [
        torch.frombuffer(bytearray(server.content(number, part.numel())), dtype=torch.uint8).view(part.shape)
        for number, part in enumerate(memory)
    ]
    saved = 0
    if found == 0:
        for part, bytes_ in zip(memory, expected):
            part.copy_(bytes_)
        saved = save(connector, tokens, hashes)
    for part in memory:
        part.zero_()
    loaded = load(connector, tokens, hashes)
    wrong = sum(int((part != bytes_).sum()) for part, bytes_ in zip(memory, expected))
    total = sum(part.numel() for part in memory)
    server.report("vllm", found=found, saved=saved, loaded=loaded, bytes=total, wrong=wrong)


def config_package():
    """`vllm.config` without the model's part: its other modules are real."""
    package = stubs.Module("vllm.config")
    package.__path__ = [f"{folder}/config" for folder in vllm.__path__]
    sys.modules["vllm.config"] = vllm.config = package


def vllm_config(model, transfer, blocks):
    """What the connector reads of vLLM's configuration, for one GPU."""
    of = types.SimpleNamespace
    return of(
        kv_transfer_config=transfer,
        kv_events_config=None,
        speculative_config=None,
        scheduler_config=of(disable_hybrid_kv_cache_manager=False),
        model_config=of(
            model=model,
            get_num_layers=lambda _: LAYERS,
            get_total_num_kv_heads=lambda: HEADS,
        ),
        cache_config=of(
            block_size=BLOCK,
            enable_prefix_caching=True,
            num_gpu_blocks=blocks,
            prefix_match_unit=None,
        ),
        parallel_config=of(
            data_parallel_index=0,
            decode_context_parallel_size=1,
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
            rank=0,
            world_size=1,
        ),
    )


class HostEvent:
    """Replaces a CUDA event: host memory is written when the call returns."""

    def record(self):
        pass

    def synchronize(self):
        pass


def request(name, tokens, hashes, **more):
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import (
        MooncakeStoreConnectorMetadata,
        ReqMeta,
    )

    metadata = MooncakeStoreConnectorMetadata({name}, set())
    blocks = list(range(1, server.BLOCKS + 1))
    metadata.add_request(ReqMeta(name, tokens, (blocks,), hashes, **more))
    return metadata


def save(connector, tokens, hashes):
    """Saves one request's blocks; returns how many the pool then has."""
    connector.bind_connector_metadata(request("save", tokens, hashes, can_save=True, store_job_id=0))
    connector.wait_for_save()
    wait("save", lambda: connector.build_connector_worker_meta())
    return lookup(connector, tokens, hashes)


def lookup(connector, tokens, hashes):
    """How many of the blocks the pool has. The last token of a prompt never counts: vLLM computes it."""
    return connector.connector_worker.lookup(tokens + 1, hashes).hit_length // BLOCK


def load(connector, tokens, hashes):
    """Loads one request's blocks; returns how many arrived."""
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import LoadSpec

    spec = LoadSpec(vllm_cached_tokens=0, kvpool_cached_tokens=tokens, can_load=True)
    connector.bind_connector_metadata(request("load", tokens, hashes, load_spec=spec))
    connector.start_load_kv(None)
    wait("load", lambda: "load" in (connector.get_finished(set())[1] or ()))
    return server.BLOCKS - len(connector.get_block_ids_with_load_errors())


def wait(what, ended):
    end = time.monotonic() + 30
    while not ended():
        if time.monotonic() > end:
            raise SystemExit(f"the {what} did not end within 30 s")
        time.sleep(0.02)

main()

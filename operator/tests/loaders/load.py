"""Runs one stack's own configuration loader, GPU-less, and prints the arguments of setup().

load.py STACK WHEEL...: modules come from the wheels unchanged; other imports of a stack are empty stubs. The store's
setup() records its arguments and does not connect; so does initialize() of SGLang's second engine, for prefill/decode.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
import zipimport

STUBS = {
    "lmcache": ["torch", "lmcache"],
    "sglang": ["torch", "requests", "sglang"],
    "sglang-engine": ["torch", "sglang"],
    "vllm": ["vllm", "regex"],
}
SOURCES = {
    "lmcache": "lmcache/v1/storage_backend/connector/mooncakestore_connector.py",
    "sglang": "sglang/srt/mem_cache/storage/mooncake_store/mooncake_store.py",
    "sglang-engine": "sglang/srt/distributed/device_communicators/mooncake_transfer_engine.py",
    "vllm": "vllm/distributed/mooncake_store.py",
    "wheel": "mooncake/mooncake_config.py",
}


class Stub(types.ModuleType):
    """A package in which every attribute and submodule exists."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {"__init__": lambda self, *a, **k: None, "info": lambda *a: None})
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Provides a stub for every module below the given names."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


class Store:
    """Records the arguments of setup()."""

    calls = []

    def setup(self, *args, **kwargs):
        self.calls.append([list(args), kwargs])
        return 0


class Engine:
    """Records the arguments of initialize()."""

    def initialize(self, *args):
        Store.calls.append([list(args), {}])
        return 0

    def get_rpc_port(self):
        return 1


def source(wheels, path):
    """The text of a module inside one of the wheels."""
    for wheel in wheels:
        if os.path.isdir(wheel):
            file = os.path.join(wheel, path)
            if os.path.exists(file):
                with open(file, encoding="utf-8") as text:
                    return text.read()
        else:
            try:
                return zipimport.zipimporter(wheel).get_data(path).decode()
            except OSError:
                continue
    raise SystemExit(f"no wheel holds {path}")


def module(wheels, path, name):
    """Runs a module from its wheel."""
    made = types.ModuleType(name)
    made.__file__ = path
    sys.modules[name] = made
    exec(compile(source(wheels, path), path, "exec"), made.__dict__)
    return made


def main(stack, wheels):
    sys.meta_path.insert(0, Finder(STUBS.get(stack, [])))
    if stack == "vllm":
        import re

        sys.modules["regex"] = re
    store = types.ModuleType("mooncake.store")
    store.MooncakeDistributedStore = Store
    store.ReplicateConfig = type("ReplicateConfig", (), {})
    if stack != "wheel":
        sys.modules["mooncake"] = types.ModuleType("mooncake")
        sys.modules["mooncake.store"] = store
    if stack == "lmcache":
        import logging

        logs = Stub("lmcache.logging")
        logs.init_logger = logging.getLogger
        sys.modules["lmcache.logging"] = logs
    if stack == "sglang-engine":
        engine = types.ModuleType("mooncake.engine")
        engine.TransferEngine = Engine
        sys.modules["mooncake.engine"] = engine
        network = Stub("sglang.srt.utils.network")
        network.NetworkAddress = lambda host, port: types.SimpleNamespace(to_host_port_str=str)
        sys.modules[network.__name__] = network
    if stack.startswith("sglang"):
        import sglang.srt

        module(wheels, "sglang/srt/environ.py", "sglang.srt.environ")
        sglang.srt.environ = sys.modules["sglang.srt.environ"]
        ranks = Stub("sglang.srt.distributed.parallel_state")
        ranks.get_mooncake_transfer_engine = lambda: None
        sys.modules[ranks.__name__] = ranks
    loader = module(wheels, SOURCES[stack], "loader")

    if stack == "wheel":
        config = vars(loader.MooncakeConfig.load_from_env())
        fields = ["local_hostname", "metadata_server", "global_segment_size", "local_buffer_size"]
        fields += ["protocol", "device_name", "master_server_address"]
        Store().setup(*[config[field] for field in fields])
    elif stack == "vllm":
        # The worker takes the host's address from the pod, as vLLM finds it.
        config = loader.MooncakeStoreConfig.load_from_config()
        loader.setup_mooncake_store(Store(), config, os.environ["POD_IP"])
    elif stack == "lmcache":
        config = loader.MooncakeStoreConfig.load_from_env()
        loader.setup_mooncake_store(Store(), config)
    elif stack == "sglang-engine":
        loader.run_with_deadline = lambda call, **_: call()
        loader.MooncakeTransferEngine(os.environ["POD_IP"])
    elif stack == "sglang":
        made = object.__new__(loader.MooncakeStore)
        try:
            made.__init__()
        except Exception as error:
            # What follows setup() needs a model.
            if not Store.calls:
                raise error
    print(json.dumps(Store.calls[0]))


main(sys.argv[1], sys.argv[2:])

"""Stubs for modules that a connector imports but does not need in this test: GPU kernels, model code, web servers.

Every module that is not listed by a driver is the real file of the stack's wheel or of a Debian package.
"""
import importlib.abc
import importlib.machinery
import sys
import types
import typing


class Class(type):
    """The type of stub classes: their attributes are stubs, and they take type parameters."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub

    def __getitem__(cls, parameters):
        return cls

    def __or__(cls, other):
        return typing.Any

    __ror__ = __or__


class Stub(metaclass=Class):
    """Accepts any call and is false: `is_cuda()` of a stub module answers no."""

    def __init__(self, *arguments, **options):
        pass

    def __init_subclass__(cls, **options):
        pass

    def __call__(self, *arguments, **options):
        # As a decorator it returns what it decorates.
        if len(arguments) == 1 and callable(arguments[0]) and not options:
            return arguments[0]
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub()

    def __bool__(self):
        return False


class Module(types.ModuleType):
    """A package with every class, function and submodule that an import names."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = Class(name, (Stub,), {})
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the listed modules and everything below them."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if any(name == listed or name.startswith(listed + ".") for listed in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


def replace(*names):
    """Replaces these modules from now on."""
    sys.meta_path.insert(0, Finder(names))


def accept_builtin_lists():
    """Debian's torch 2.6 rejects `list[int]` in the signature of a custom operator; the stacks' torch accepts it."""
    import torch._library.infer_schema as schema

    for known, name in list(schema.SUPPORTED_PARAM_TYPES.items()):
        if typing.get_origin(known) is list:
            item = typing.get_args(known)[0]
            schema.SUPPORTED_PARAM_TYPES[list[item]] = name
            schema.SUPPORTED_PARAM_TYPES[typing.Optional[list[item]]] = name + "?"

"""The package without the code that its own `__init__` runs: submodules are the real files of the wheel."""
import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)

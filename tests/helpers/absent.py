"""Packages that are installed for the tests, and that a program of a test is not to find."""


def without(*names: str) -> str:
    """Lines that a program for ``python -c`` begins with, in whose process alone they hold."""
    return f"""
import importlib.metadata, importlib.util, sys
NAMES = {names!r}
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in NAMES:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Gone())
real = importlib.metadata.version
def version(name):
    if name in NAMES:
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
there = importlib.util.find_spec
def find_spec(name, package=None):
    return None if name.split(".")[0] in NAMES else there(name, package)
importlib.util.find_spec = find_spec
"""


WITHOUT_TORCH = without("torch", "torchvision")

"""Packages that are installed for the tests, and that a program of a test is not to find."""

WITHOUT_TRANSFORMERS = """
import importlib.metadata, sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("transformers", "torch"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Gone())
real = importlib.metadata.version
def version(name):
    if name in ("transformers", "torch"):
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
"""
"""Lines that a program for ``python -c`` begins with, in whose process alone they hold."""

"""What pyproject.toml cannot say of `pip install -e .`; all else of the build stands there.

An editable install finds packidx by a finder that setuptools puts behind Python's own. In the
folder that holds the clone, Python's own then takes the clone, a folder named packidx without an
`__init__.py`, for the package. So this finder goes first.
"""

from setuptools import setup
from setuptools.command import editable_wheel

editable_wheel._FINDER_TEMPLATE = editable_wheel._FINDER_TEMPLATE.replace(
    "sys.meta_path.append(_EditableFinder)", "sys.meta_path.insert(0, _EditableFinder)"
)
setup()

"""That the release of transformers which is asked for is the one that is tested."""

from __future__ import annotations

import os

import transformers


def test_the_release_asked_for_is_the_one_imported() -> None:
    assert transformers.__version__ == os.environ["PACKIDX_TRANSFORMERS"]

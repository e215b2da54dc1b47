"""Imports packages, in a process of its own: what crashes there ends this process alone.

It runs as a script, with nothing of packidx but its argument: ``[sys.path, names]`` as JSON. For
each name it writes a line, ``[error or null, facts or null]`` as JSON.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    """Import what the argument names, and say what came of it."""
    out = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # some packages print when they are imported
    os.dup2(null, 2)
    sys.path[:], names = json.loads(sys.argv.pop())
    for name in names:
        print(json.dumps(_imported(name)), file=out, flush=True)


def _imported(name: str) -> list[Any]:
    try:
        module = import_module(name)
        return [None, _torch_facts(module) if name == "torch" else None]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of which a package may raise any
        return [f"{type(error).__name__}: {' '.join(str(error).split())}"[:300], None]


def _torch_facts(torch: Any) -> dict[str, Any]:
    """What only torch itself can say of this machine's devices."""
    available = bool(torch.cuda.is_available())
    devices = range(torch.cuda.device_count() if available else 0)
    try:
        import_module("torch.nn.attention.flex_attention")
        has_flex = True
    except Exception:
        has_flex = False
    return {
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "available": available,
        "devices": [torch.cuda.get_device_name(number) for number in devices],
        "has_flex": has_flex,
    }


if __name__ == "__main__":
    main()

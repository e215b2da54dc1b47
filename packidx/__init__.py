"""packidx makes sequence packing a file: exact lengths, a planned pack index, a light reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packidx.errors import PackidxError as PackidxError
    from packidx.estimate import estimate_lengths as estimate_lengths
    from packidx.index import Index as Index
    from packidx.index import open_index as open_index
    from packidx.packing.micro_batches import balance_micro_batches as balance_micro_batches
    from packidx.plan import PlanOptions as PlanOptions
    from packidx.plan import plan_packs as plan_packs
    from packidx.recipe import pack as pack

__version__ = "0.1.0"

_HOMES = {
    "PackidxError": "packidx.errors",
    "estimate_lengths": "packidx.estimate",
    "Index": "packidx.index",
    "open_index": "packidx.index",
    "balance_micro_batches": "packidx.packing.micro_batches",
    "PlanOptions": "packidx.plan",
    "plan_packs": "packidx.plan",
    "pack": "packidx.recipe",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name's module on first use: `import packidx` itself costs nothing.

    Raises:
        MissingExtraError: a package that it needs is not installed, as where packs are only read.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'packidx' has no attribute {name!r}")
    from importlib import import_module

    from packidx.errors import MissingExtraError, missing_package

    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise missing_package(f"packidx.{name}", error) from None
    except MissingExtraError:  # of `packidx.encode`, which needs less
        words = f"packidx.{name} needs packages that are not installed here: pip install packidx"
        raise MissingExtraError(words) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

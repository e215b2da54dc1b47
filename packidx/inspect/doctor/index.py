"""Whether an index can be read here: by cheap looks, and by reading a few of its packs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packidx.errors import MissingExtraError, PackidxError
from packidx.inspect.doctor.finding import PATIENCE, Finding, Given, Makers, words_of
from packidx.inspect.doctor.machine import Environment
from packidx.inspect.doctor.packages import ENCODING

if TYPE_CHECKING:
    from packidx.index import Index
    from packidx.inspect.doctor.encoder import Chosen
    from packidx.inspect.doctor.reading import Reading

_OPENS_WITH = ("numpy", "pyarrow", "orjson")
_READ_FROM = ("files", "data", "extras")


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """An index, and what was found out about it; None where it cannot be opened."""

    path: str
    snapshot_id: str | None = None
    format_version: int | None = None
    num_packs: int | None = None
    num_samples: int | None = None
    capacity: int | None = None
    planned_by: str | None = None
    """The packidx that planned it."""
    findings: tuple[Finding, ...] = ()
    """`index`, `files`, `lengths`, `encoder`, `transform`, `data`, `extras`, `packs`, in this
    order; those after an `index` that cannot be opened are left out."""
    reading: Reading | None = None
    """The packs that were read and timed."""


def examine_index(
    given: Given,
    environment: Environment,
    makers: Makers,
    doing: Callable[[str], None] = lambda _: None,
) -> IndexFacts:
    """Look at an index; what is wrong with it is a finding, and never raised."""
    opened = _guarded("index", lambda: _opened(given, environment), "it cannot be opened ({})")
    if isinstance(opened, Finding):
        return IndexFacts(given.index, findings=(opened,))
    from packidx.inspect.doctor import data, encoder

    doing("looking at the index's files and data")
    snapshot = opened.snapshot
    chosen = _guarded("encoder", lambda: encoder.choose(opened, given, environment))
    if isinstance(chosen, Finding):
        chosen = encoder.Chosen(chosen)
    transform = _guarded("transform", lambda: encoder.check_transform(opened, given.transform))
    there = _guarded("data", lambda: data.check_data(opened))
    is_there = there.state != "problem"
    findings = [
        Finding("index", "ok", f"format version {snapshot.version}, its manifest is sound"),
        _guarded("files", lambda: data.check_files(opened)),
        data.check_lengths(opened),
        chosen.finding,
        transform,
        there,
        _guarded("extras", lambda: data.check_extras(opened, environment, is_there)),
    ]
    doing("reading packs")
    reading, last = _read(opened, given, environment, makers, chosen, findings)
    return IndexFacts(
        path=opened.path,
        snapshot_id=opened.id,
        format_version=snapshot.version,
        num_packs=opened.num_packs,
        num_samples=opened.num_samples,
        capacity=opened.capacity,
        planned_by=snapshot.software.get("packidx"),
        findings=(*findings, last),
        reading=reading,
    )


def _opened(given: Given, environment: Environment) -> Index | Finding:
    for name in _OPENS_WITH:
        package = environment.package(name)
        if package is not None and not package.is_here:
            detail = f"it cannot be opened without {name}, which is missing or broken"
            return Finding("index", "problem", detail, package.install)
    from packidx.index import open_index
    from packidx.io import stores, urls

    if urls.is_url(given.index):
        stores.await_answer(given.index, PATIENCE)
    return open_index(given.index, given.roots)


def _guarded(name: str, look: Callable[[], Any], unexpected: str = "{}") -> Any:
    """What `look` gives; whatever it raises as a finding of this name.

    Args:
        unexpected: how errors are told that are neither ours nor of a file.
    """
    do = None
    try:
        return look()
    except PackidxError as error:
        said = str(error)
    except ModuleNotFoundError as error:
        do = f"pip install {error.name}" if error.name in ENCODING else None
        said = f"{error.name} is not installed, which this needs"
    except OSError as error:
        is_of_a_file = error.filename is not None and error.strerror is not None
        said = f"{error.filename}: {error.strerror}" if is_of_a_file else words_of(error)
    except Exception as error:  # of packages that are broken, of the user's code
        said = unexpected.format(words_of(error))
    return Finding(name, "problem", said, do)


def _read(
    index: Index,
    given: Given,
    environment: Environment,
    makers: Makers,
    chosen: Chosen,
    findings: list[Finding],
) -> tuple[Reading | None, Finding]:
    """Build packs where all that it takes is here, else read their records and media alone."""
    from packidx.inspect.doctor.reading import TimedEncoder, read_packs, read_records

    if not index.snapshot.shards:
        detail = "planned from bare lengths: its packs are numbers, and have no data to read"
        return None, Finding("packs", "unknown", detail)
    if not index.num_packs:
        return None, Finding("packs", "unknown", "it has no pack")
    problems = [finding.name for finding in findings if finding.state == "problem"]
    if broken := [name for name in problems if name in _READ_FROM]:
        return None, Finding("packs", "unknown", f"none was read, see {' and '.join(broken)}")
    packs = _buildable(environment, chosen, findings)
    try:
        if packs.state != "ok":
            return read_records(index), packs
        encode = chosen.encode
        if encode is None:
            encode = makers.encoder(str(chosen.processor), chosen.labels, chosen.settings)
        timed = TimedEncoder(encode)
        return read_packs(index, makers.dataset(index, timed, given.transform), timed), packs
    except MissingExtraError as error:
        said = str(error)
    except PackidxError as error:
        said = f"a pack cannot be read: {error}"
    except Exception as error:  # the encoder is anybody's code
        said = f"a pack cannot be read ({words_of(error)})"
    return None, Finding("packs", "problem", said)


def _buildable(environment: Environment, chosen: Chosen, findings: list[Finding]) -> Finding:
    """Whether packs can be built here, and why not."""
    if environment.torch is None:
        torch = environment.package("torch")
        state = "cannot be imported" if torch is not None and torch.broken else "is not installed"
        detail = f"packs cannot be built here: torch {state}"
        return Finding("packs", "problem", detail, 'pip install "packidx[torch]"')
    wrong = {finding.name for finding in findings if finding.state != "ok"}
    if not chosen.can_build:
        why = "packs not built, for want of the encoder that the lengths were counted with"
    elif "transform" in wrong:
        why = "packs not built, for want of the transform that the lengths were counted with"
    elif "lengths" in wrong:
        why = "packs not built: PackedDataset refuses samples of other lengths than planned"
    else:
        return Finding("packs", "ok", "")
    return Finding("packs", "unknown", why)

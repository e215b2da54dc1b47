"""Whether an index can be read here: by cheap looks, and by reading a few of its packs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packidx.errors import MissingExtraError, PackidxError
from packidx.inspect.doctor.finding import Finding, words_of
from packidx.inspect.doctor.given import PATIENCE, Given, Makers
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
    """An index, and what was found out about it."""

    path: str
    snapshot_id: str | None
    """None where it cannot be opened."""
    format_version: int | None
    num_packs: int | None
    num_samples: int | None
    capacity: int | None
    planned_by: str | None
    """The packidx that planned it."""
    findings: tuple[Finding, ...]
    """`index`, `files`, `lengths`, `encoder`, `transform`, `data`, `extras`, `packs`, in this
    order; those after an `index` that cannot be opened are left out."""
    reading: Reading | None
    """The packs that were read and timed."""


def examine_index(
    given: Given,
    environment: Environment,
    makers: Makers,
    doing: Callable[[str], None] = lambda _: None,
) -> IndexFacts:
    """Look at an index; what is wrong with it is a finding, and never raised."""
    opened = _opened(given, environment)
    if isinstance(opened, Finding):
        return IndexFacts(given.index, None, None, None, None, None, None, (opened,), None)
    from packidx.inspect.doctor import data, encoder

    doing("looking at the index's files and data")
    snapshot = opened.snapshot
    chosen = _guarded("encoder", lambda: encoder.choose(opened, given, environment))
    transform = _guarded("transform", lambda: encoder.check_transform(opened, given.transform))
    there = _guarded("data", lambda: data.check_data(opened))
    is_there = there.state != "problem"
    findings = [
        Finding("index", "ok", f"format version {snapshot.version}, its manifest is sound"),
        _guarded("files", lambda: data.check_files(opened)),
        data.check_lengths(opened),
        chosen if isinstance(chosen, Finding) else chosen.finding,
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
    try:
        from packidx.index import open_index
        from packidx.io import stores, urls

        if urls.is_url(given.index):
            stores.await_answer(given.index, PATIENCE)
        return open_index(given.index, given.roots)
    except PackidxError as error:
        return Finding("index", "problem", str(error))
    except OSError as error:
        return Finding("index", "problem", _of_a_file(error))
    except Exception as error:  # of a store's library, or of a broken package
        return Finding("index", "problem", f"it cannot be opened ({words_of(error)})")


def _guarded(name: str, look: Callable[[], Any]) -> Any:
    """What `look` gives; whatever it raises as a finding of this name."""
    try:
        return look()
    except PackidxError as error:
        return Finding(name, "problem", str(error))
    except ModuleNotFoundError as error:
        do = f"pip install {error.name}" if error.name in ENCODING else None
        return Finding(name, "problem", f"{error.name} is not installed, which this needs", do)
    except OSError as error:
        return Finding(name, "problem", _of_a_file(error))
    except Exception as error:  # of packages that are broken, of the user's code
        return Finding(name, "problem", words_of(error))


def _of_a_file(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return words_of(error)
    return f"{error.filename}: {error.strerror}"


def _read(
    index: Index,
    given: Given,
    environment: Environment,
    makers: Makers,
    chosen: Chosen | Finding,
    findings: list[Finding],
) -> tuple[Reading | None, Finding]:
    """Build packs where all that it takes is here, else read their records and media alone."""
    from packidx.inspect.doctor.reading import TimedEncoder, read_packs, read_records

    if not index.snapshot.shards:
        detail = "planned from bare lengths: its packs are numbers, and have no data to read"
        return None, Finding("packs", "unknown", detail)
    if not index.num_packs:
        return None, Finding("packs", "unknown", "it has no pack")
    broken = [
        finding.name
        for finding in findings
        if finding.state == "problem" and finding.name in _READ_FROM
    ]
    if broken:
        return None, Finding("packs", "unknown", f"none was read, see {' and '.join(broken)}")
    why, problem = _why_not_built(index, environment, chosen, findings)

    def build() -> Reading:
        assert not isinstance(chosen, Finding)
        made = chosen.encode
        if made is None:
            made = makers.encoder(str(chosen.processor), chosen.labels)
        timed = TimedEncoder(made)
        return read_packs(index, makers.dataset(index, timed, given.transform), timed)

    try:
        if why is None:
            return build(), Finding("packs", "ok", "")
        reading = read_records(index)
    except MissingExtraError as error:
        return None, Finding("packs", "problem", str(error))
    except PackidxError as error:
        return None, Finding("packs", "problem", f"a pack cannot be read: {error}")
    except Exception as error:  # the encoder is anybody's code
        return None, Finding("packs", "problem", f"a pack cannot be read ({words_of(error)})")
    return reading, problem or Finding("packs", "unknown", why)


def _why_not_built(
    index: Index,
    environment: Environment,
    chosen: Chosen | Finding,
    findings: list[Finding],
) -> tuple[str | None, Finding | None]:
    """Why packs cannot be built here, in words and, where that is a problem of its own, as one."""
    torch = environment.package("torch")
    if environment.torch is None:
        extra = environment.extra("torch")
        state = "cannot be imported" if torch is not None and torch.broken else "is not installed"
        do = extra.install if extra is not None else 'pip install "packidx[torch]"'
        detail = f"packs cannot be built here: torch {state}"
        return detail, Finding("packs", "problem", detail, do)
    stopping = {finding.name: finding for finding in findings if finding.state != "ok"}
    if isinstance(chosen, Finding) or not chosen.can_build:
        return "packs not built, for want of the encoder that the lengths were counted with", None
    if "transform" in stopping:
        return "packs not built, for want of the transform that the lengths were counted with", None
    if "lengths" in stopping:
        return "packs not built: PackedDataset refuses samples of other lengths than planned", None
    return None, None

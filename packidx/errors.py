"""Every error packidx raises on purpose derives from `PackidxError`.

The text of an error is one sentence that names the file and the row, shows both values of a
mismatch and says what to do; the command line prints it and exits with `exit_code`.
"""

from __future__ import annotations


class PackidxError(Exception):
    """Something the user can put right; the message says how."""

    exit_code = 1


class OptionError(PackidxError):
    """An option or a combination of options that has no meaning."""


class SourceError(PackidxError):
    """A source, shard or media file that cannot be used at all (not one bad record in it)."""


class FormatError(PackidxError):
    """A file on disk that is not what FORMAT.md says it must be."""


class NotFoundInIndex(PackidxError):
    """An index, snapshot or pack that does not exist."""


class LimitError(PackidxError):
    """Too many files are open: no record is to blame, so the run ends."""


class MismatchError(PackidxError):
    """Two things that must agree (plan and data, processor and lengths) do not."""


class MissingExtraError(PackidxError):
    """An optional dependency is not installed; the message names the pip command."""


def missing_package(
    what: str, error: ModuleNotFoundError, packages: str = "packidx"
) -> MissingExtraError | ModuleNotFoundError:
    """Return what to raise where a package of somebody else's is not installed, as the planner's
    are not where packs are only read; `error` itself where the module is one of ours.

    Args:
        what: what needs it.
        error: of the import.
        packages: what pip is to install.
    """
    module = (error.name or "packidx").partition(".")[0]
    if module in ("packidx", "packidx_cli"):
        return error
    return MissingExtraError(
        f"{what} needs {module}, which is not installed here: run pip install {packages}"
    )


class VerificationError(PackidxError):
    """`packidx verify` found the index or its data wrong."""

    exit_code = 3


class BadRecord(PackidxError):
    """One record that cannot become a sample.

    `estimate` turns it into a row with ``status = 'rejected'``; the reader raises it.

    Args:
        reason: short machine-readable word, e.g. ``'missing_media'``.
        detail: what exactly is wrong with this record.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[BadRecord], tuple[str, str]]:
        return BadRecord, (self.reason, self.detail)


class ChangedSource(MismatchError):
    """A shard is not the one that was counted: no sample of it can be trusted."""

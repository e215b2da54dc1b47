"""Publish a snapshot as a data set of the Hugging Face Hub, beside its data or by itself.

The repository gets the index as it is on disk, so that a reader opens it by its URL, a report, and
a card. The card lists the tables as configs of the data set viewer: `packs`, `samples`, `dropped`.
All of it is one commit: a reader never sees half of a plan.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from packidx.errors import OptionError, SourceError, missing_package
from packidx.format.index import TABLE_NAMES
from packidx.index.opening import open_index
from packidx.index.reader import Index
from packidx.inspect.facts import result_facts
from packidx.inspect.report import write_report
from packidx.io import storage, urls

if TYPE_CHECKING:
    from huggingface_hub import DatasetCard, HfApi

_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_BEGIN, _END = "<!-- packidx -->", "<!-- /packidx -->"
_CARD, _REPORT = "README.md", "report.html"


def push_to_hub(
    index: str | Index,
    repository: str,
    *,
    revision: str | None = None,
    licence: str | None = None,
    private: bool = False,
    progress: Callable[[str], None] = lambda doing: None,
) -> str:
    """Upload a snapshot to a data set repository of the Hub in one commit.

    A README that is there keeps its text, its other configs and its licence: a section of its own
    is replaced. Whoever may read the repository sees the keys of samples and the paths of shards.

    Args:
        index: path, URL or opened index; ``INDEX@ID`` for another snapshot than the newest.
        repository: ``org/name``, made if it is not there.
        revision: branch to commit to; None means the main one.
        licence: of the card, in the Hub's words, such as ``cc-by-4.0``.
        private: of a repository that is made.
        progress: is called with what is being done.

    Returns:
        The URL that `open_index` and `PackedDataset` take, at this very commit.

    Raises:
        OptionError: `repository` is no name of a repository.
        NotFoundInIndex, FormatError: there is no index, or it is damaged.
        MissingExtraError: huggingface_hub is not installed.
        SourceError: the Hub refuses, or cannot be reached.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise OptionError(f"{repository} is no name of a data set: write ORG/NAME")
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
    except ModuleNotFoundError as error:
        raise missing_package("packidx push", error) from None
    opened = open_index(index)
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, _REPORT)
        progress("drawing the report")
        write_report(f"{opened.path}@{opened.id}", report)
        files = {_REPORT: report, **_files_of(opened, folder)}
        try:
            api = HfApi()
            api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
            card = _card_of(api, repository, revision, folder)
            _describe(card, opened, repository, licence)
            adding = [CommitOperationAdd(name, path) for name, path in files.items()]
            adding.append(CommitOperationAdd(_CARD, str(card).encode()))
            progress(f"uploading {len(adding)} files")
            commit = api.create_commit(
                repository,
                adding,
                commit_message=f"packidx snapshot {opened.id}",
                repo_type="dataset",
                revision=revision,
            )
        except Exception as error:  # of the Hub's library, or of httpx below it
            reason = " ".join(str(error).split())[:300]
            raise SourceError(
                f"{repository} cannot be written ({reason}): log in with `hf auth login` as"
                " somebody who may write it"
            ) from error
    return f"hf://datasets/{repository}@{commit.oid}"


def _files_of(index: Index, folder: str) -> dict[str, str]:
    """Return name in the repository -> file on this machine, of one snapshot."""
    head = os.path.join(folder, "HEAD")
    with open(head, "w") as file:
        file.write(f"{index.id}\n")
    names = [f"snapshots/{index.id}.json"]
    for window in index.snapshot.windows:
        names += [f"windows/{window.folder}/{file.path}" for file in window.files]
    files = {"HEAD": head}
    for number, name in enumerate(names):
        path = urls.join_path(index.path, name)
        if urls.is_url(path):
            own = os.path.join(folder, f"{number}-{os.path.basename(name)}")
            storage.download_file(path, own)
            path = own
        files[name] = path
    return files


def _card_of(api: HfApi, repository: str, revision: str | None, folder: str) -> DatasetCard:
    """Return the card that the repository has; an empty one if it has none."""
    from huggingface_hub import DatasetCard
    from huggingface_hub.errors import EntryNotFoundError

    try:
        path = api.hf_hub_download(
            repository, _CARD, repo_type="dataset", revision=revision, local_dir=folder
        )
    except EntryNotFoundError:
        return DatasetCard(f"---\ntags: []\n---\n\n# {repository.partition('/')[2]}\n")
    card: DatasetCard = DatasetCard.load(path)
    return card


def _describe(card: DatasetCard, index: Index, repository: str, licence: str | None) -> None:
    """Write configs, tags and a section about the plan into a card."""
    data: Any = card.data
    others = [each for each in data.get("configs") or [] if each["config_name"] not in TABLE_NAMES]
    own = []
    for name in TABLE_NAMES:
        windows = [window.folder for window in index.snapshot.windows if window.files_of(name)]
        paths = [f"windows/{folder}/{name}-*.parquet" for folder in windows]
        files = [{"split": "train", "path": paths}]
        own += [{"config_name": name, "data_files": files}] if paths else []
    data["configs"] = others + own
    data["tags"] = list(dict.fromkeys([*(data.get("tags") or []), "packidx"]))
    if licence is not None:
        data["license"] = licence
    section = f"{_BEGIN}\n{_section(index, repository)}\n{_END}"
    text, count = re.subn(
        f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", lambda _: section, card.text, flags=re.DOTALL
    )
    card.text = text if count else f"{card.text.rstrip()}\n\n{section}\n"


def _section(index: Index, repository: str) -> str:
    """Say what the plan is, in Markdown."""
    snapshot = index.snapshot
    rows = [f"| {name} | {_cell(said)} |" for name, said in result_facts(snapshot).items()]
    if (encoder := snapshot.lengths.encoder) is not None:
        rows.append(f"| processor | {_cell(encoder.name)} |")
    sources = [
        f"| {_cell(source.name)} | {source.num_samples:,} | {source.num_dropped:,} |"
        for source in snapshot.sources
    ]
    url = f"hf://datasets/{repository}"
    return "\n".join(
        [
            "## Training order",
            "",
            f"A plan by packidx, snapshot `{index.id}`: which samples share a sequence, and in"
            f" which order packs are trained on. [Report]({_REPORT}).",
            "",
            f'    dataset = PackedDataset("{url}", encode, roots={{"/where/it/was": "/here"}})',
            "",
            "| plan | |",
            "|---|---|",
            *rows,
            "",
            "| source | samples | dropped |",
            "|---|---:|---:|",
            *sources,
        ]
    )


def _cell(text: str | None) -> str:
    """Return `text` as it may stand in a cell of a table."""
    return " ".join(re.sub(r"[|<>`]", lambda mark: f"&#{ord(mark[0])};", text or "").split())

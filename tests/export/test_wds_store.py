"""`packidx export wds` from an S3 bucket into an S3 bucket: the bytes of a local run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from export_files import contents, picture
from object_store import URL, Store
from record_files import chats, tar_of

from packidx import estimate_lengths, open_index, plan_packs
from packidx.export.wds import export_wds
from packidx.index import Index
from packidx.io import storage, urls


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records with pictures beside them, and a tar of others."""
    folder = tmp_path_factory.mktemp("data")
    records = chats(30)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "lines.jsonl").write_text(lines)
    for number in range(30):
        (folder / f"{number}.png").write_bytes(picture(number))
    members: list[tuple[str, bytes]] = []
    for number, record in enumerate(chats(20)):
        noise = picture(number) + bytes(50_000)
        members += [(f"t{number}.{number}.png", noise)]
        members += [(f"t{number}.json", json.dumps({**record, "id": f"t{number}"}).encode())]
    (folder / "tars.tar").write_bytes(tar_of(members))
    return folder


def planned(sources: str, output: str) -> Index:
    names = [urls.join(sources, name) for name in ("lines.jsonl", "tars.tar")]
    estimate_lengths(names, f"{output}/lengths", workers=1)
    plan_packs(f"{output}/lengths", f"{output}/index", capacity=3000)
    return open_index(f"{output}/index")


@pytest.fixture(scope="module")
def indexes(data: Path, store: Store, tmp_path_factory: pytest.TempPathFactory) -> list[Index]:
    local = planned(str(data), str(tmp_path_factory.mktemp("local")))
    remote = planned(store.put_tree(data, "data"), f"{URL}/plan")
    assert local.id == remote.id and local.num_packs > 3
    return [local, remote]


def stored(url: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for folder, _, names in storage.walk(url):
        for name in names:
            path = urls.join(folder, name)
            found[path.removeprefix(f"{url}/")] = storage.read(path)
    return found


def test_the_bytes_are_those_of_a_local_run(
    indexes: list[Index], store: Store, tmp_path: Path
) -> None:
    local, remote = indexes
    export_wds(local, tmp_path / "out", max_size="10KB")
    expected = contents(tmp_path / "out")
    store.forget()
    store.cuts += ["/12.png", "/tars.tar"]  # connections that break
    summary = export_wds(remote, f"{URL}/out", max_size="10KB")
    assert not store.cuts and summary.num_shards > 1
    assert stored(f"{URL}/out") == expected

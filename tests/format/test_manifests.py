"""What a manifest says is checked when it is opened: nothing wrong in it is found out later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manifests import edit, fingerprinted, path_of, read, refresh, reidentify
from msgspec.structs import replace
from small_packs import make_index, record

from packidx.errors import FormatError, NotFoundInIndex
from packidx.format.manifest import seal_manifest
from packidx.index import Index, open_index
from packidx.io.files import write_json
from packidx.plan import plan_packs

RECORDS = {
    "one": [record(n, [5 + n % 7]) for n in range(40)],
    "two": [record(100 + n, [(4, 4), 9]) for n in range(20)],
}
OPTIONS: dict[str, Any] = {"capacity": 64, "window": 1}
CLIMBING = ("..", "../packs-00000.parquet", "a/../packs-00000.parquet", "/etc/passwd", "a\0b", "")


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return make_index(tmp_path, RECORDS, **OPTIONS)


def setting(*place: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    """What sets a member, by its place, to a value."""

    def change(manifest: Any) -> None:
        for one in place[:-1]:
            manifest = manifest[one]
        manifest[place[-1]] = to

    return change


WRONG = [
    (setting("result", "schedule_block", to=-64), "`int` >= 1 - at `\\$.result.schedule_block`"),
    (setting("result", "schedule_block", to="64"), "got `str` - at .*schedule_block"),
    (setting("result", "schedule_block", to=True), "`int`, got `bool`"),
    (setting("result", "num_packs", to=1 << 64), "`int` <= 9223372036854775807 - at"),
    (setting("windows", 0, "num_packs", to=[5]), r"`int`, got `array` - at .*num_packs`"),
    (setting("windows", 0, "num_packs", to=-1), r"`int` >= 0 - at .*num_packs`"),
    (setting("windows", 0, "folder", to="../.."), r"matching regex .* - at `\$.windows\[0\].fold"),
    (setting("windows", 0, "files", 0, "footer", to="0"), r"files\[0\].footer`"),
    (setting("windows", 0, "files", 0, "sha256", to="0" * 63), r"files\[0\].sha256`"),
    (setting("shards", 0, "container", to="pickle"), "Invalid enum value 'pickle' - at"),
    (setting("shards", 0, "uri", to="a\0b"), r"- at `\$.shards\[0\].uri`"),
    (setting("sources", 0, "media_root", to=5), "`str \\| null`, got `int`"),
    (setting("sources", 0, "layout", to={"new": 1}), "unknown field `new`"),
    (setting("sources", 0, "layout", to={"tags": {"user_tag": 5}}), "got `int` - at .*layout.tags"),
    (setting("sources", 0, "layout", to={"tags": {"human": "U"}}), "there is no tag 'human' to"),
    (setting("sources", 0, "layout", to={"sample_ratio": -1}), "- at `\\$.sources.*sample_ratio`"),
    (setting("lengths", "encoder", to=[1]), "`object \\| null`, got `array`"),
    (setting("options", "cost_model", "vit_linear", to=-1.0), ">= 0.0 - at .*vit_linear`"),
    (setting("parent", to="../../elsewhere"), "matching regex .* - at `\\$.parent`"),
]


@pytest.mark.parametrize(("change", "says"), WRONG)
def test_a_snapshots_manifest_that_no_reader_can_use_is_refused_when_it_is_opened(
    index: Index, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    edit(index, change)
    with pytest.raises(FormatError, match=says) as caught:
        open_index(index.path)
    assert "\n" not in str(caught.value) and str(caught.value).endswith("; plan again")


@pytest.mark.parametrize("path", CLIMBING)
def test_files_of_a_manifest_lie_beside_it(index: Index, tmp_path: Path, path: str) -> None:
    edit(index, setting("windows", 0, "files", 0, "path", to=path))
    edit(tmp_path / "lengths", setting("files", 0, "path", to=path))
    with pytest.raises(FormatError, match=r"matching regex .*files\[0\].path"):
        open_index(index.path)
    with pytest.raises(FormatError, match=r"matching regex .*files\[0\].path"):
        plan_packs(tmp_path / "lengths", tmp_path / "other", capacity=64)


@pytest.mark.parametrize("head", ["../../lengths", "/etc", "..", "\x1b]0;x\x07", "A" * 32])
def test_head_leads_to_snapshots_alone(index: Index, head: str) -> None:
    (Path(index.path) / "HEAD").write_text(head)
    with pytest.raises(NotFoundInIndex, match="has no HEAD of a snapshot") as caught:
        open_index(index.path)
    assert str(caught.value).isprintable()
    plan_packs(Path(index.path).parent / "lengths", index.path, capacity=128)  # and it is mended
    assert open_index(index.path).capacity == 128


@pytest.mark.parametrize(
    "text",
    [
        lambda text: text.replace('"num_packs": ', '"num_packs": 7, "num_packs": ', 1),
        lambda text: text.replace('"fill": ', '"fill": NaN, "more": ', 1),
        lambda text: text.replace('"fill": ', '"fill": 1e999, "more": ', 1),
        lambda text: text.replace('"created": "', '"created": "\\ud800', 1),
        lambda text: text.replace('"created": ', f'"created": {"[" * 5000}{"]" * 5000}, "b": ', 1),
        lambda text: text.replace('"created": ', f'"created": {"[" * 300}{"]" * 300}, "b": ', 1),
        lambda text: text[: len(text) // 2],
        lambda text: text.encode("utf-16"),
        lambda text: text.replace('"one"', '"\xff"').encode("latin-1"),
    ],
)
def test_what_is_no_json_of_one_meaning_is_no_manifest(
    index: Index, text: Callable[[str], str | bytes]
) -> None:
    path = path_of(index)
    changed = text(path.read_text())
    path.write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    with pytest.raises(FormatError, match="not a valid index manifest|not JSON|digest|no str"):
        open_index(index.path)


def test_a_manifest_that_was_edited_is_refused(index: Index, tmp_path: Path) -> None:
    for place in (index, tmp_path / "lengths"):
        write_json(path_of(place), {**read(place), "software": {"packidx": "9"}})
    says = "its content [0-9a-f]{64}: it was changed after it was written"
    with pytest.raises(FormatError, match=says):
        open_index(index.path)
    with pytest.raises(FormatError, match=says):
        plan_packs(tmp_path / "lengths", tmp_path / "other", capacity=64)


def test_a_writer_writes_no_manifest_that_a_reader_refuses(index: Index) -> None:
    manifest = read(index)
    assert seal_manifest(index.snapshot).to_json() == manifest == index.manifest
    result = replace(index.snapshot.result, schedule_block=0)
    with pytest.raises(FormatError, match="which no reader would take"):
        seal_manifest(replace(index.snapshot, result=result))


def test_a_snapshot_under_another_ones_name_is_refused(index: Index) -> None:
    path_of(index).rename(path_of(index).with_stem("0" * 32))
    with pytest.raises(FormatError, match=f"holds snapshot {index.id}: it was renamed"):
        open_index(f"{index.path}@{'0' * 32}")


def test_lengths_that_were_signed_by_another_hand_are_another_table(
    index: Index, tmp_path: Path
) -> None:
    """Shards changed places, fingerprint and digest were made anew: never the same snapshot."""
    lengths = tmp_path / "lengths"
    manifest = read(lengths)
    manifest["shards"].reverse()
    write_json(lengths / "manifest.json", fingerprinted(manifest))
    assert plan_packs(lengths, tmp_path / "other", **OPTIONS).snapshot_id != index.id


def test_ids_of_edited_plans_are_their_own(index: Index) -> None:
    edit(index, setting("options", "seed", to=128))
    ident = reidentify(index)
    assert open_index(index.path).id == ident != index.id


def test_media_of_the_same_sums_are_planned_anew(tmp_path: Path) -> None:
    """An image was turned on its side: the id is the same, the grid of the index is not."""
    records = {"one": [record(n, [5, (4, 6)]) for n in range(40)]}
    index, lengths = make_index(tmp_path, records, **OPTIONS), tmp_path / "lengths"
    part = lengths / "part-00000.parquet"
    table = pq.read_table(part)
    turned = [[m | {"h": m["w"], "w": m["h"]} for m in row] for row in table["media"].to_pylist()]
    at = table.column_names.index("media")
    column = pa.array(turned, table.schema.field(at).type)
    pq.write_table(table.set_column(at, table.schema.field(at), column), part)
    refresh(lengths)
    assert plan_packs(lengths, index.path, **OPTIONS).snapshot_id == index.id
    [before], [now] = (one.pack(0).samples[0].media for one in (index, open_index(index.path)))
    assert (now["h"], now["w"]) == (before["w"], before["h"]) != (before["h"], before["w"])

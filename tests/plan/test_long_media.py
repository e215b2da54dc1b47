"""Samples longer than a pack by the command line: which are split, cut or dropped, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx.format.schema import LENGTHS_WITH_SPANS

LENGTH, CAPACITY = 100, 40
EARLY, LATE, MIDDLE = (5, 20), (60, 100), (30, 90)  # label tokens
WHOLE = [(0, 40), (40, 40), (80, 20)]
Places = list[tuple[int, int]]


def row(kind: str, media: Places, labels: tuple[int, int], /, **changes: Any) -> dict[str, Any]:
    """A sample of 100 tokens with media of a kind at some places."""
    counters = dict.fromkeys(
        ("num_images", "num_videos", "image_tokens", "video_tokens", "audio_tokens"), 0
    )
    counters[f"{kind}_tokens"] = sum(stop - start for start, stop in media)
    if kind != "audio":
        counters[f"num_{kind}s"] = len(media)
    places = [
        {"kind": kind, "tokens": stop - start, "patches": 4, "t": 1, "h": 2, "w": 2, "at": start}
        for start, stop in media
    ]
    spans = [{"start": labels[0], "stop": labels[1]}]
    known = {"length": LENGTH, "label_tokens": labels[1] - labels[0], "label_spans": spans}
    return counters | known | {"media": places, "source": "long"} | changes


def planned(
    folder: Path, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Samples, dropped samples and the manifest of a plan by the command line; a short text is
    packed, too."""
    rows = [*rows, row("image", [], (1, 20), length=20, source="short")]
    kinds = {name: LENGTHS_WITH_SPANS.field(name).type for name in rows[0]}
    columns = {name: pa.array([each[name] for each in rows], kinds[name]) for name in rows[0]}
    pq.write_table(pa.table(columns), folder / "l.parquet")
    index, words = str(folder / "i"), ["--capacity", str(CAPACITY), "--quiet", "--json"]
    assert main(["plan", str(folder / "l.parquet"), "-o", index, *words, *options]) == 0
    manifest = json.loads(capsys.readouterr().out)
    found = []
    for table, order in (("samples", "copy, token_start"), ("dropped", "sample_id")):
        query = f"SELECT * FROM {table} WHERE source = 'long' ORDER BY sample_id, {order}"
        assert main(["sql", index, query, "--format", "json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert main(["verify", index, "--quiet"]) == 0
    capsys.readouterr()
    return found[0], found[1], manifest


UNKNOWN = dict.fromkeys(("media", "num_images", "image_tokens"))
# What it holds, then what `split` and `truncate` make of it: pieces, or the reason of none.
CASES: dict[str, tuple[dict[str, Any], Places | str, Places | str]] = {
    "image first": (row("image", [(0, 10)], EARLY), "too_long", [(0, 40)]),
    "image up to the cut": (row("image", [(25, 40)], EARLY), "too_long", [(0, 40)]),
    "video first": (row("video", [(0, 30)], MIDDLE), "too_long", [(0, 40)]),
    "audio first": (row("audio", [(1, 9)], EARLY), "too_long", [(0, 40)]),
    "image, media not listed": (row("image", [(0, 9)], EARLY, media=None), "too_long", "too_long"),
    "audio, media not listed": (row("audio", [(0, 9)], EARLY, media=None), "too_long", "too_long"),
    "image at an unknown place": (
        row("image", [(0, 9)], EARLY)
        | {"media": [row("image", [(0, 9)], EARLY)["media"][0] | {"at": None}]},
        "too_long",
        "too_long",
    ),
    "nobody knows": (row("image", [], EARLY, **UNKNOWN), "too_long", "too_long"),
    "text": (row("image", [], (1, 100)), WHOLE, [(0, 40)]),
    "text, labels last": (row("image", [], LATE), [(40, 40), (80, 20)], "no_labels"),
    "text, one label at a border": (row("image", [], (40, 41)), "no_labels", "no_labels"),
    "text, no label": (row("image", [], (1, 1), label_spans=None), "no_labels", "no_labels"),
    "text, labels unknown": (
        row("image", [], (1, 9), label_tokens=None, label_spans=None),
        WHOLE,
        [(0, 40)],
    ),
    "text, media not listed": (row("image", [], MIDDLE, media=None), WHOLE, [(0, 40)]),
}


@pytest.mark.parametrize("on_long", ["drop", "split", "truncate"])
@pytest.mark.parametrize("more", [(), ("--window", "5"), ("--mix", "long=2")])
def test_what_becomes_of_long_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], on_long: str, more: tuple[str, ...]
) -> None:
    rows = [given for given, _, _ in CASES.values()]
    samples, dropped, manifest = planned(tmp_path, rows, capsys, "--on-long", on_long, *more)
    at = {"split": 1, "truncate": 2}.get(on_long)
    wanted = ["too_long" if at is None else case[at] for case in CASES.values()]
    copies = 2 if "--mix" in more else 1
    found: dict[int, Any] = {each["sample_id"]: each["reason"] for each in dropped}
    for each in samples:
        own = found.setdefault(each["sample_id"], [])
        assert each["copy"] < copies
        if not each["copy"]:
            own.append((each["token_start"], each["length"]))
    assert {name: found[number] for number, name in enumerate(CASES)} == dict(
        zip(CASES, wanted, strict=True)
    )
    held = [sum(n for _, n in each) if isinstance(each, list) else 0 for each in wanted]
    result = manifest["result"]
    assert result["num_tokens_lost"] == sum(LENGTH - each for each in held)
    assert result["num_tokens_cut"] == copies * sum(LENGTH - each for each in held if each)
    assert len(samples) == copies * sum(len(each) for each in wanted if isinstance(each, list))


def test_shares_of_a_mix_count_what_is_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the tokens that are packed are to be of each source: a long video is none of them."""
    video = [row("video", [(0, 90)], (92, 99)) for _ in range(40)]
    text = [row("image", [], (1, 100)) for _ in range(200)]
    words = ["--on-long", "split", "--mix", "long=50%,short=50%", "--strategy", "bfd"]
    samples, _, manifest = planned(tmp_path, video + text, capsys, *words)
    long = sum(each["length"] for each in samples)
    assert 0.9 < 2 * long / manifest["result"]["num_tokens"] < 1.1

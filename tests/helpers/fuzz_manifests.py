"""Random damage to real manifests: one that is opened reads right, any other is one named error.

    python tests/helpers/fuzz_manifests.py [MUTATIONS] [SEED] [FIRST]

tries twenty thousand by default. `test_fuzz.py` runs some thousands.

A mutation is left with the digest it had, is signed anew, or is given fingerprint and id anew, too:
that is another manifest, by whoever made it, and may say what it likes as long as nothing ends in a
traceback.
"""

from __future__ import annotations

import collections
import copy
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from manifests import fingerprinted, read, sign

from packidx.errors import PackidxError
from packidx.estimate import estimate_lengths
from packidx.format.index import snapshot_id
from packidx.index import Index, open_index
from packidx.index.order import Epochs
from packidx.lengths.table import read_lengths
from packidx.plan import plan_packs

WAYS = ("stale", "signed", "forged")
_NUMBERS = (-1, 0, 1, 2, 64, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30, 0.5, -0.0, 1e308)
_TEXTS = ("", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\0b", "\x1b]0;x\x07", "x" * 5000)
_TEXTS += ("\ud800", "\u202e", "0" * 64, "F" * 64, "0" * 32, "packs-00000.parquet", "64", "null")
_KINDS = (None, True, False, [], {}, [[]], [None], {"": None}, "", 0)


class Broken(AssertionError):
    """A mutation that was read wrong, or ended in something else than a named error."""


class Fuzzer:
    """A lengths table and an index of it in `folder`, and what is read of them undamaged."""

    def __init__(self, folder: Path) -> None:
        for name, lines in (("one", 30), ("two", 20)):
            chats = [json.dumps(_chat(f"{name}-{number}", number)) for number in range(lines)]
            (folder / f"{name}.jsonl").write_text("\n".join(chats))
        sources = [f"{name}={folder / name}.jsonl" for name in ("one", "two")]
        estimate_lengths(sources, folder / "lengths", encode=_encode, workers=1)
        options = {"capacity": 96, "epochs": 2, "window_shards": 1, "mix": ("two=1.5",)}
        plan_packs(folder / "lengths", folder / "index", **options)
        self._lengths, self._index = folder / "lengths", folder / "index"
        self._snapshot = open_index(self._index).folder
        self._good = {
            "lengths": (read(self._lengths), _of_lengths(self._lengths)),
            "index": (read(self._snapshot), _of_index(self._index)),
        }

    def run(self, count: int, seed: int, first: int = 0) -> collections.Counter[str]:
        """How mutations `first` to `count` - 1 of a seed ended.

        Raises:
            Broken: one was read wrong.
        """
        found: collections.Counter[str] = collections.Counter()
        for number in range(first, count):
            rng = random.Random(f"{seed}-{number}")
            kind, way = ("lengths", "index")[number % 2], WAYS[number // 2 % 3]
            text = mutated(self._good[kind][0], rng, way)
            try:
                found[f"{kind}, {way}: {self._outcome(kind, way, text)}"] += 1
            except Exception as error:
                raise Broken(f"mutation {number} of seed {seed} ({kind}, {way})") from error
        return found

    def _outcome(self, kind: str, way: str, text: bytes) -> str:
        folder, read_all = (
            (self._lengths, _of_lengths) if kind == "lengths" else (self._snapshot, _of_index)
        )
        good, meaning = self._good[kind]
        path = folder / "manifest.json"
        path.write_bytes(text)
        try:
            opened = read_lengths(str(folder)) if kind == "lengths" else open_index(self._index)
        except PackidxError as error:
            _check_words(error)
            return "refused"
        finally:
            path.write_text(json.dumps(good))
        assert way != "stale" or json.loads(text) == good, "a stale digest was taken"
        try:
            now = read_all(opened)
        except PackidxError as error:
            _check_words(error)
            if way == "signed" and isinstance(opened, Index):
                assert _others(opened.manifest, good) & _FILES
            return "a file refused"
        assert way == "forged" or now == meaning, "it reads otherwise"
        return "reads right" if now == meaning else "another one"


_FILES = {"sha256", "crc32", "rows", "bytes"}


def _others(now: Any, good: Any, name: str = "") -> set[str]:
    """Names of the members in which two manifests differ, but for the digest."""
    if isinstance(now, dict) and isinstance(good, dict):
        names = (now.keys() | good.keys()) - {"digest"}
        return set().union(*(_others(now.get(n), good.get(n), n) for n in names))
    if isinstance(now, list) and isinstance(good, list) and len(now) == len(good):
        return set().union(*(_others(a, b, name) for a, b in zip(now, good, strict=True)))
    return set() if now == good and type(now) is type(good) else {name}


def _check_words(error: PackidxError) -> None:
    said = str(error)
    assert said.isprintable() and 10 < len(said) < 1500, said


def _chat(name: str, number: int) -> dict[str, Any]:
    turns = [
        {"role": "user", "content": "word " * (1 + number % 17)},
        {"role": "assistant", "content": "so " * (1 + number % 5)},
    ]
    return {"id": name, "messages": turns}


def _encode(record: dict[str, Any]) -> dict[str, Any]:
    words = " ".join(one["content"] for one in record["messages"]).split()
    return {"input_ids": [1] * (len(words) + 1), "labels": [1] * (len(words) + 1)}


def _of_index(index: Path | Index) -> Any:
    """All that decides what is trained on, and nothing of where it lies."""
    index = open_index(index)
    manifest = index.manifest
    epochs = Epochs.of(index.snapshot)
    orders = [
        epochs.order(index.id, seed, epoch).packs(np.arange(epochs.num_packs(epoch))).tolist()
        for seed, epoch in ((0, 0), (1, 1))
    ]
    packs = [index.pack(number) for number in range(index.num_packs)]
    lengths = manifest["lengths"]
    return [index.id, packs, orders, index.dropped().to_pylist(), manifest["options"]] + [
        [lengths["fingerprint"], (lengths["encoder"] or {}).get("fingerprint")],
        *_data(manifest),
    ]


def _of_lengths(table: Any) -> Any:
    table = read_lengths(str(table)) if isinstance(table, Path) else table
    rows = table.read(0, table.num_samples).frame.rows()
    manifest = table.manifest.to_json()
    return [table.fingerprint(), rows, table.methods, *_data(manifest)]


def _data(manifest: dict[str, Any]) -> Iterator[Any]:
    for shard in manifest["shards"]:
        yield [shard.get(n) for n in ("fingerprint", "rows", "source", "container")]
    for source in manifest["sources"]:
        layout = source.get("layout") or {}
        names = {name: layout.get(name) for name in ("columns", "tags", "delimiter")}
        yield source["name"], source["media_root"] is None, {k: v for k, v in names.items() if v}


# -- mutations -------------------------------------------------------------------------------------


def mutated(manifest: dict[str, Any], rng: random.Random, way: str) -> bytes:
    """The text of a damaged manifest."""
    if way == "stale" and rng.random() < 0.5:
        return _mangled(json.dumps(manifest).encode(), rng)
    changed = copy.deepcopy(manifest)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(changed))
        holder, key = rng.choice(places)
        rng.choice(_CHANGES)(holder, key, rng, places)
    try:
        if way == "forged" and "snapshot_id" in changed:
            changed["snapshot_id"] = snapshot_id(changed)
        elif way == "forged":
            changed = fingerprinted(changed)
        if way != "stale":
            changed = sign(changed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # nobody could sign that
    return json.dumps(changed).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every member of every object and list: what holds it, and its name or number."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _of_another_kind(holder: Any, key: Any, rng: random.Random, _: Any) -> None:
    value = holder[key]
    made = [str(value), [value], {"a": value}, *_KINDS]
    if type(value) is int:
        made += [float(value), bool(value)]
    holder[key] = copy.deepcopy(rng.choice(made))


def _gone(holder: Any, key: Any, *_: Any) -> None:
    del holder[key]


def _twice(holder: Any, key: Any, rng: random.Random, _: Any) -> None:
    if isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
    else:
        holder[f"{key}_"] = copy.deepcopy(holder[key])


def _at_the_edge(holder: Any, key: Any, rng: random.Random, _: Any) -> None:
    value = holder[key]
    if type(value) in (int, float) and rng.random() < 0.5:
        holder[key] = value + rng.choice((-1, 1, 64, -64, 1 << 20))
    else:
        holder[key] = rng.choice(_NUMBERS)


def _another_text(holder: Any, key: Any, rng: random.Random, _: Any) -> None:
    value = holder[key]
    if isinstance(value, str) and value and rng.random() < 0.5:
        at = rng.randrange(len(value))
        holder[key] = value[:at] + rng.choice("0f/.\0Z") + value[at + 1 :]
    else:
        holder[key] = rng.choice(_TEXTS)


def _swapped(holder: Any, key: Any, rng: random.Random, _: Any) -> None:
    other = rng.choice(range(len(holder)) if isinstance(holder, list) else list(holder))
    holder[key], holder[other] = holder[other], holder[key]


def _of_elsewhere(holder: Any, key: Any, rng: random.Random, places: list[Any]) -> None:
    other, name = rng.choice(places)
    if key in holder if isinstance(holder, dict) else key < len(holder):
        holder[key] = copy.deepcopy(other[name])


def _deep(holder: Any, key: Any, rng: random.Random, _: Any) -> None:
    value = holder[key]
    for _number in range(rng.choice((1, 3, 50, 300))):
        value = [value]
    holder[key] = value


_CHANGES: tuple[Callable[..., None], ...] = (
    *(_of_another_kind, _gone, _twice, _at_the_edge, _another_text),
    *(_swapped, _of_elsewhere, _deep),
)


def _mangled(text: bytes, rng: random.Random) -> bytes:
    """Damage to the text itself."""
    at = rng.randrange(len(text))
    kind = rng.randrange(6)
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + bytes([text[at] ^ 1 << rng.randrange(8)]) + text[at + 1 :]
    if kind == 2:
        return text[:at] + text[rng.randrange(len(text)) :]
    if kind == 3:
        return text.replace(b'": ', b'": NaN, "a": ', rng.randrange(1, 9))
    if kind == 4:
        member = text[text.find(b'"', at) : text.find(b",", at)]
        return b"{" + member + b", " + text[1:]
    deep = rng.choice((100, 2_000, 100_000))
    return text[:-1] + b', "deep": ' + b"[" * deep + b"]" * deep + b"}"


def main(count: int = 20_000, seed: int = 0, first: int = 0) -> None:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = Fuzzer(Path(folder)).run(count, seed, first)
    for name, number in sorted(found.items()):
        print(f"{number:>8,}  {name}")
    print(f"{count - first:,} mutations, seed {seed}, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

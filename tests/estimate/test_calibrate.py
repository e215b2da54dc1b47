"""Estimates with a calibration: what is stored, and that the margin keeps its promise."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manifests import edit, fingerprinted
from numpy.typing import NDArray
from packidx_cli.main import main

from packidx import estimate_lengths, plan_packs
from packidx.errors import FormatError, OptionError
from packidx.estimate.calibrate import _draw, _quotas
from packidx.format.decode import decoded
from packidx.format.lengths import Calibration
from packidx.pack.counts import Histogram
from packidx.pack.slots import deal_into
from packidx.pack.strategies.decreasing import best_fit_decreasing
from packidx.plan.margin import calibrated_margin

Ints = NDArray[np.int64]
CAPACITY = 8192


def write(path: Path, texts: list[str]) -> str:
    records = [{"messages": [{"role": "user", "content": text}]} for text in texts]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def by_words(record: Mapping[str, Any]) -> dict[str, Any]:
    text = record["messages"][0]["content"]
    if text.startswith("bad"):
        raise ValueError("no such word")
    return {"input_ids": [0] * len(text.split())}


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    tables = [pq.read_table(folder / entry["path"]) for entry in manifest["files"]]
    return manifest, pa.concat_tables(tables).to_pylist()


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    letters = ["a " * number for number in range(1, 301)]  # a word is 2/3 of a guessed token
    words = ["internationally " * number for number in range(1, 41)]  # 16 characters a word
    return [write(tmp_path / "letters.jsonl", letters), write(tmp_path / "words.jsonl", words)]


def test_what_is_stored(shards: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = estimate_lengths(shards, out, encode=by_words, calibrate=100, workers=1)
    manifest, rows = read(out)
    assert summary.calibrated == 100
    assert summary.methods == {"heuristic": 340}  # what the table holds are guesses
    assert manifest["encoder"]["name"].endswith(":by_words")
    letters, words = manifest["calibration"]["sources"]
    assert (letters["name"], letters["num_usable"], words["num_usable"]) == ("letters", 300, 40)
    assert letters["num_samples"] + words["num_samples"] == 100
    assert words["num_samples"] == 25 + 50 * 15 // 290  # half of them equally, half by size
    for source in (letters, words):
        pairs = list(zip(source["estimated"], source["actual"], strict=True))
        assert pairs == sorted(pairs)
        assert len(pairs) == source["num_samples"] > len(set(pairs)) * 0.99
        mine = {row["length"] for row in rows if row["source"] == source["name"]}
        assert set(source["estimated"]) <= mine
    assert all(guess == 2 * number // 3 for guess, number in pairs_of(letters))
    assert all(guess == 16 * number // 3 for guess, number in pairs_of(words))
    assert 1.5 <= letters["ratio"]["0.5"] <= 1.6
    assert letters["difference"]["1"] == max(b - a for a, b in pairs_of(letters))
    assert words["ratio"]["1"] < 0.21


def pairs_of(source: dict[str, Any]) -> list[tuple[int, int]]:
    return list(zip(source["estimated"], source["actual"], strict=True))


def test_the_same_with_any_workers_and_another_with_another_seed(
    shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {}
    for name, options in {
        "one": {"workers": 1},
        "two": {"workers": 2},
        "seed": {"workers": 1, "seed": 1},
    }.items():
        estimate_lengths(shards, tmp_path / name, encode=by_words, calibrate=60, **options)
        made[name] = (tmp_path / name / "manifest.json").read_bytes()
    assert made["one"] == made["two"]
    first, other = json.loads(made["one"]), json.loads(made["seed"])
    assert first["files"] == other["files"]
    assert first["calibration"]["sources"] != other["calibration"]["sources"]
    assert first["fingerprint"] != other["fingerprint"]


def test_samples_that_cannot_be_encoded_are_told(tmp_path: Path) -> None:
    shard = write(tmp_path / "a.jsonl", ["bad word", "good word"] * 20)
    estimate_lengths(shard, tmp_path / "out", encode=by_words, calibrate=30, workers=1)
    (source,) = read(tmp_path / "out")[0]["calibration"]["sources"]
    assert source["num_failed"] + source["num_samples"] == 30
    assert 5 < source["num_failed"] < 25


def test_media_stay_exact_where_text_is_guessed(
    corpus: Path, processors: Path, tmp_path: Path
) -> None:
    shard = tmp_path / "photos.jsonl"
    lines = (corpus / "photos.jsonl").read_text().splitlines()[:50]
    shard.write_text("".join(f"{line}\n" for line in lines))
    folder = processors / "qwen2.5-vl"
    options: dict[str, Any] = {"processor": folder, "media_root": corpus, "workers": 1}
    estimate_lengths(str(shard), tmp_path / "exact", **options)
    estimate_lengths(str(shard), tmp_path / "cheap", calibrate=20, **options)
    exact, cheap = read(tmp_path / "exact")[1], read(tmp_path / "cheap")[1]
    assert [row["image_tokens"] for row in cheap] == [row["image_tokens"] for row in exact]
    assert {row["method"] for row in cheap} == {"heuristic"}
    manifest = read(tmp_path / "cheap")[0]
    encoder = read(tmp_path / "exact")[0]["encoder"]
    assert encoder.pop("compared")["records"]  # where text is guessed, nothing is compared
    assert manifest["encoder"] == encoder
    (source,) = manifest["calibration"]["sources"]
    lengths = {row["length"]: set() for row in cheap}
    for guess, truth in zip(cheap, exact, strict=True):
        lengths[guess["length"]].add(truth["length"])
    assert all(truth in lengths[guess] for guess, truth in pairs_of(source))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"calibrate": 5}, "give a processor or an encoder"), ({"calibrate": -1}, "calibrate is -1")],
)
def test_bad_options(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    shard = write(tmp_path / "a.jsonl", ["x"])
    with pytest.raises(OptionError, match=words):
        estimate_lengths(shard, tmp_path / "out", workers=1, **options)


def test_draws_are_different_and_below_the_total() -> None:
    for total in (1, 2, 3, 63, 64, 65, 1000, 10**12):
        for count in {0, 1, min(total, 50)}:
            found = _draw(total, count, 7)
            assert len(found) == len(set(found.tolist())) == count
            assert count == 0 or (found.min() >= 0 and found.max() < total)
    hits = np.zeros(10, np.int64)
    for key in range(2000):
        hits[_draw(10, 3, key)] += 1
    assert hits.sum() == 6000
    assert abs(hits - 600).max() < 120  # 5 standard deviations


@pytest.mark.parametrize("totals", [[5], [0, 100], [10**9, 3], [40, 300, 7], [1] * 30, [0, 0]])
def test_quotas_add_up(totals: list[int]) -> None:
    for wanted in (1, 10, 100):
        quotas = _quotas(totals, wanted)
        assert sum(quotas) == min(wanted, sum(totals))
        assert all(0 <= quota <= total for quota, total in zip(quotas, totals, strict=True))


# -- the margin ------------------------------------------------------------------------------------


def calibration(*sources: tuple[Ints, Ints]) -> Calibration:
    stated = {
        "num_samples": sum(len(guesses) for guesses, _ in sources),
        "sources": [
            {
                "name": f"source {number}",
                "num_usable": 10**6,
                "num_samples": len(guesses),
                "estimated": guesses.tolist(),
                "actual": lengths.tolist(),
            }
            for number, (guesses, lengths) in enumerate(sources)
        ],
    }
    return decoded(Calibration, stated)


def lengths_of(rng: np.random.Generator, count: int) -> Ints:
    found: Ints = np.clip(rng.lognormal(np.log(500), 1, count), 10, 4000).astype(np.int64)
    return found


Errors = Callable[[np.random.Generator, Ints], Ints]


def relative(rng: np.random.Generator, guesses: Ints) -> Ints:
    found: Ints = np.ceil(guesses * rng.lognormal(0.02, 0.15, len(guesses))).astype(np.int64)
    return found


def template(rng: np.random.Generator, guesses: Ints) -> Ints:
    return guesses + rng.integers(5, 40, len(guesses))


def rare(rng: np.random.Generator, guesses: Ints) -> Ints:
    return np.where(rng.random(len(guesses)) < 0.03, 2 * guesses, guesses)


def too_long_ones(rng: np.random.Generator, guesses: Ints) -> Ints:
    """Only long samples are underestimated: packs of these alone are the danger."""
    return np.where(guesses > 1500, guesses * 5 // 4, guesses * 4 // 5)


def mixed(rng: np.random.Generator, guesses: Ints) -> Ints:
    return template(rng, relative(rng, guesses) * 9 // 10)


def bound(found: Calibration, guesses: Ints, chance: float) -> Any:
    names = np.full(len(guesses), "source 0")
    return calibrated_margin(found, guesses, names, CAPACITY, chance)


def overflowing(guesses: Ints, truths: Ints, planned: int, seed: int = 0) -> tuple[int, int]:
    """(packs that hold more than the capacity, packs) of a plan by the real planner."""
    fitting = guesses <= planned
    guesses, truths = guesses[fitting], truths[fitting]
    slots = deal_into(best_fit_decreasing(Histogram.of(guesses), planned), guesses, seed)
    sums = np.bincount(slots.pack, truths[slots.item])
    return int((sums > CAPACITY).sum()), len(sums)


@pytest.mark.parametrize("errors", [relative, template, rare, too_long_ones, mixed])
@pytest.mark.parametrize("chance", [0.05, 0.002])
def test_overflows_stay_below_the_stated_chance(errors: Errors, chance: float) -> None:
    """Calibrate, plan with the real planner, count packs that overflow: repeated six times."""
    overflows, packs = 0, 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        guesses = lengths_of(rng, 30_000)
        truths = errors(rng, guesses)
        chosen = rng.choice(len(guesses), 1000, replace=False)
        margin = bound(calibration((guesses[chosen], truths[chosen])), guesses, chance)
        found = overflowing(guesses, truths, margin.planned_capacity, seed)
        overflows, packs = overflows + found[0], packs + found[1]
        if not seed:
            # No more is given away than a few times what must be.
            least = CAPACITY
            while np.divide(*overflowing(guesses, truths, least)) > chance:
                least -= 128
            assert CAPACITY - margin.planned_capacity < 2.6 * (CAPACITY - least) + 200
            assert least < CAPACITY - 128  # and some of it must be
    assert packs > 10_000
    assert overflows / packs <= chance


def one_question(rng: np.random.Generator, guesses: Ints) -> tuple[Ints, Ints]:
    """One in twenty asks the same, guessed as 104 tokens and 130 in truth; the others are right."""
    guesses = rng.integers(90, 110, len(guesses))
    same = rng.random(len(guesses)) < 0.05
    guesses[~same & (guesses == 104)] = 105
    guesses[same] = 104
    return guesses, np.where(same, 130, guesses)


def one_length(rng: np.random.Generator, guesses: Ints) -> tuple[Ints, Ints]:
    guesses = rng.integers(20, 40, len(guesses))
    return guesses, guesses + np.where(guesses == 39, 30, 0)


@pytest.mark.parametrize("kind", [one_question, one_length])
def test_equals_that_are_all_wrong_share_packs(
    kind: Callable[[np.random.Generator, Ints], tuple[Ints, Ints]],
) -> None:
    """Best fit puts them together: the margin for their neighbourhood's average is no help."""
    rng = np.random.default_rng(5)
    guesses, truths = kind(rng, np.zeros(40_000, np.int64))
    chosen = rng.choice(len(guesses), 1000, replace=False)
    found = calibration((guesses[chosen], truths[chosen]))
    planned = bound(found, guesses, 0.001).planned_capacity
    over, packs = overflowing(guesses, truths, planned)
    assert over <= 0.001 * packs
    assert planned > CAPACITY // 2
    assert overflowing(guesses, truths, CAPACITY)[0] > 0.02 * packs


def test_the_worst_source_decides() -> None:
    rng = np.random.default_rng(5)
    guesses = lengths_of(rng, 500)
    good, bad = (guesses, guesses), (guesses, guesses * 13 // 10)
    found = calibration(good, bad)
    names = np.array(["source 0", "source 1"])[rng.integers(0, 2, len(guesses))]
    margin = calibrated_margin(found, guesses, names, CAPACITY, 0.001)
    assert margin.source == "source 1"
    truths = np.where(names == "source 1", guesses * 13 // 10, guesses)
    assert overflowing(guesses, truths, margin.planned_capacity)[0] == 0
    assert overflowing(guesses, truths, CAPACITY)[0] > 0
    # The good source alone needs none, whatever the other's errors are.
    alone = calibrated_margin(found, guesses, np.full(len(guesses), "source 0"), CAPACITY, 0.001)
    assert alone.planned_capacity > CAPACITY - CAPACITY // 256


def test_true_lengths_need_no_margin() -> None:
    guesses = lengths_of(np.random.default_rng(6), 300)
    for actual in (guesses, guesses - 5):
        margin = bound(calibration((guesses, actual)), guesses, 0.001)
        assert margin.planned_capacity == CAPACITY
        assert margin.source is None


def test_a_smaller_chance_takes_a_larger_margin() -> None:
    rng = np.random.default_rng(8)
    guesses = lengths_of(rng, 1000)
    found = calibration((guesses, relative(rng, guesses)))
    chances = (0.3, 0.01, 1e-4, 1e-9)
    planned = [bound(found, guesses, c).planned_capacity for c in chances]
    assert planned == sorted(planned, reverse=True)
    assert len(set(planned)) == 4


@pytest.fixture
def table(shards: list[str], tmp_path: Path) -> Path:
    estimate_lengths(shards[1:], tmp_path / "out", encode=by_words, calibrate=40, workers=1)
    return tmp_path / "out"


def reshape(table: Path, **source: Any) -> None:
    """The table's calibration with other numbers."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["calibration"]["sources"][0].update(source)
        manifest |= fingerprinted(manifest)

    edit(table, change)


def test_plan_takes_it_and_says_so(table: Path, tmp_path: Path) -> None:
    guesses = read(table)[0]["calibration"]["sources"][0]["estimated"]
    reshape(table, actual=[guess + 3 for guess in guesses])
    summary = plan_packs(table, tmp_path / "index", capacity=500)
    options = summary.manifest["options"]
    assert options["overflow_chance"] == 0.001
    assert 250 < options["planned_capacity"] < 500
    assert summary.manifest["lengths"]["calibration"] == {"num_samples": 40, "source": "words"}
    other = plan_packs(table, tmp_path / "index", capacity=500, overflow_chance=0.2)
    assert other.manifest["options"]["planned_capacity"] > options["planned_capacity"]
    assert other.snapshot_id != summary.snapshot_id
    plain = plan_packs(table, tmp_path / "index", capacity=500, margin=0.1)
    assert plain.manifest["options"]["planned_capacity"] == 450
    assert plain.manifest["options"]["overflow_chance"] is None


def test_guesses_that_were_too_high_need_none(table: Path, tmp_path: Path) -> None:
    summary = plan_packs(table, tmp_path / "index", capacity=500)
    assert summary.manifest["options"]["planned_capacity"] == 500


def test_a_source_nobody_has_looked_at_keeps_the_default(table: Path, tmp_path: Path) -> None:
    unknown = {"name": "other", "num_usable": 9, "num_samples": 0, "estimated": [], "actual": []}

    def change(manifest: dict[str, Any]) -> None:
        manifest["calibration"]["sources"].append(unknown)
        manifest |= fingerprinted(manifest)

    edit(table, change)
    summary = plan_packs(table, tmp_path / "index", capacity=500)
    assert summary.manifest["options"]["planned_capacity"] == 450
    assert summary.manifest["lengths"]["calibration"]["source"] == "other"


def test_a_broken_calibration_is_named(table: Path, tmp_path: Path) -> None:
    reshape(table, actual="?")
    with pytest.raises(FormatError, match="actual"):
        plan_packs(table, tmp_path / "index", capacity=500)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overflow_chance": 0.0}, "above 0"),
        ({"overflow_chance": 1.0}, "below 1"),
        ({"overflow_chance": 0.1, "margin": 0.1}, "give no margin"),
        ({"overflow_chance": 0.1, "packing_ratio": 0.9}, "give no margin"),
        ({"overflow_chance": 0.1}, "--calibrate"),
    ],
)
def test_chances_without_meaning(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    shard = write(tmp_path / "a.jsonl", ["word " * 9] * 3)
    estimate_lengths(shard, tmp_path / "out", workers=1)
    with pytest.raises(OptionError, match=words):
        plan_packs(tmp_path / "out", tmp_path / "index", capacity=500, **options)


def test_on_the_command_line(
    processors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["supercalifragilistic " * number for number in range(1, 80)]
    write(tmp_path / "talk.jsonl", [f"{text} 1 2 3 4 5 6 7 8 9" for text in texts])
    command = ["estimate", str(tmp_path / "talk.jsonl"), "-o", str(tmp_path / "out")]
    command += ["--processor", str(processors / "qwen2.5-vl"), "--calibrate", "50"]
    assert main([*command, "--workers", "1"]) == 0
    out, err = capsys.readouterr()
    assert "on 50 samples, encoded for real" in out
    assert err == ""
    plan = ["plan", str(tmp_path / "out"), "-o", str(tmp_path / "index"), "--capacity", "2000"]
    assert main([*plan, "--overflow-chance", "0.01"]) == 0
    out = capsys.readouterr().out
    assert "overflows with a chance below 0.01" in out
    assert "calibrated on 50 samples; source talk decides" in " ".join(out.split())

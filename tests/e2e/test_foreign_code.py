"""What others made is data: no code of theirs runs, and no name of theirs leads to other places.

Data sets that try to lead elsewhere are read in a process that writes down what it opens and whom it
calls, with a key that would sign for a store. What a user types may lead anywhere, so none of it is
typed here.
"""

from __future__ import annotations

import ast
import importlib

# ruff: noqa: E501  a row of a table is a line
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from bad_input import chat, pixels, saved
from hub_server import Hub, serving
from packidx_cli.main import main
from record_files import tar_of

import packidx
from packidx import estimate_lengths

CHAT = {"messages": [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "so"}]}
EVIL = "import os\nos.mkdir({place!r})\n"
NAMES = ["../../outside", "a/../../outside", "/abs", "..", "a\nb: c", "' OR 1=1 --", "<b>\x1b[2J"]


def write(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working one; what lies beside it is seen by the tests."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    "known", [pytest.param(True, marks=pytest.mark.slow), False], ids=["known", "unknown family"]
)
def test_code_in_a_processors_folder_is_not_run(
    known: bool, here: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``auto_map`` asks transformers for code in the folder: every file that may say it does."""
    pwned, folder = here / "pwned", here / "processor"
    shutil.copytree(processors / "qwen2.5-vl", folder)
    for module in ("evil", "processing_evil", "__init__", "setup"):
        (folder / f"{module}.py").write_text(EVIL.format(place=str(pwned)))
    kinds = ("AutoProcessor", "AutoTokenizer", "AutoImageProcessor", "AutoConfig", "AutoModel")
    auto_map = {"auto_map": dict.fromkeys(kinds, "evil.Evil")}
    if not known:
        auto_map |= {"processor_class": "EvilProcessor", "image_processor_type": "Evil"}
    for name in (
        *("processor_config.json", "preprocessor_config.json"),
        *("tokenizer_config.json", "config.json"),
    ):
        path = folder / name
        stated = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(stated | auto_map))
    write(here / "a.jsonl", [CHAT])
    command = ["estimate", "a.jsonl", "-o", "lengths", "--processor", "processor", "--show", "1"]
    estimated = main([*command, "--quiet"])
    if known:
        assert estimated == 0
        assert main(["plan", "lengths", "-o", "index", "--capacity", "99", "--quiet"]) == 0
        assert main(["verify", "index", "--processor", "processor", "--sample", "1"]) == 0
    else:
        assert estimated == 1 and "custom code" in capsys.readouterr().err
    assert not pwned.exists()


def test_no_code_runs_because_a_manifest_names_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An encoder and a transform run where the user names them, and nowhere else."""
    write(here / "a.jsonl", [CHAT])
    (here / "own_code.py").write_text(
        "def encode(record):\n    return {'input_ids': [1, 2, 3]}\n"
        "def same(record, rng):\n    return record\n"
    )
    command = ["estimate", "a.jsonl", "-o", "lengths", "--encode", "own_code:encode"]
    assert main([*command, "--transform", "own_code:same", "--quiet"]) == 0
    assert main(["plan", "lengths", "-o", "index", "--capacity", "99", "--quiet"]) == 0
    (here / "own_code.py").write_text(EVIL.format(place=str(here / "pwned")))
    commands = [
        *(["stats", "index"], ["log", "index"], ["verify", "index"]),
        ["sql", "index", "SELECT * FROM samples"],
        ["plan", "lengths", "-o", "again", "--capacity", "99"],
    ]
    for words in commands:
        sys.modules.pop("own_code", None)
        main(words)
        assert "own_code" not in sys.modules and not (here / "pwned").exists(), words
    importlib.import_module("own_code")
    assert (here / "pwned").exists(), "the module would have told"
    sys.modules.pop("own_code")


def test_names_of_sources_lead_nowhere(
    here: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mix names its sources; what is written for them stays in the output."""
    beside = here.parent / "outside"
    for number in range(len(NAMES)):
        write(here / f"{number}.jsonl", [{**CHAT, "id": "../../outside"}])
    files = {name: {"file_name": f"{number}.jsonl"} for number, name in enumerate(NAMES)}
    Path("mix.json").write_text(json.dumps(files))
    processor = str(processors / "qwen2.5-vl")
    assert main(["estimate", "mix.json", "-o", "l", "--processor", processor, "--quiet"]) == 0
    assert main(["plan", "l", "-o", "i", "--capacity", "99", "--group-by", "source"]) == 0
    assert main(["export", "wds", "i", "-o", "w", "--quiet"]) == 0
    assert main(["precompute", "mix.json", "-o", "p", "--processor", processor, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["sql", "i", "SELECT DISTINCT source FROM samples", "--format", "json"]) == 0
    listed = capsys.readouterr().out
    assert "\x1b" not in listed
    assert {row["source"] for row in json.loads(listed)} == set(NAMES)
    made = {path.name for path in here.iterdir() if path.suffix != ".jsonl"}
    assert made == {"mix.json", "l", "i", "w", "p"}
    assert not beside.exists() and [path.name for path in here.parent.iterdir()] == ["here"]


def test_yaml_makes_nothing_but_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    estimate_lengths(write(here / "a.jsonl", [CHAT]), here / "lengths", workers=1)
    Path("object.yaml").write_text(f"datasets: !!python/object/apply:os.mkdir [{here}/pwned]\n")
    assert main(["estimate", "object.yaml", "-o", "l", "--quiet"]) == 1
    assert main(["plan", "lengths", "-o", "i", "--capacity", "9", "--config", "object.yaml"]) == 1
    assert main(["pack", "object.yaml", "--quiet"]) == 1
    assert capsys.readouterr().err.count("could not determine a constructor") == 3
    assert not (here / "pwned").exists()


def test_nothing_that_is_read_can_hold_objects() -> None:
    """No pickle and nothing like it is loaded but between the processes of one run."""
    package = Path(packidx.__file__).parent
    loaders = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "np", "torch"}
    loading = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("load", "loads", "Unpickler")
        if isinstance(node.value, ast.Name) and node.value.id in loaders
    }
    assert loading == {"run/workers.py"}


COMMIT = "c" * 40


def database(path: Path) -> None:
    with lmdb.open(str(path), map_size=1 << 20, subdir=False) as env, env.begin(write=True) as put:
        put.put(b"k", saved(pixels("RGB"), "PNG"))


GOOD = (json.dumps(chat("fine")) + "\n").encode()
READ = """
import json, os, sys

opened, called = [], []


def watch(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        opened.append(os.path.realpath(os.fsdecode(args[0])))
    elif event in ("socket.connect", "socket.sendto", "subprocess.Popen"):
        called.append(repr(args[1:]))


sys.addaudithook(watch)
from packidx import estimate_lengths
from packidx.errors import PackidxError

for name, source in json.loads(sys.argv[1]).items():
    opened.clear(), called.clear()
    try:
        made = estimate_lengths(source, f"lengths/{len(os.listdir('lengths'))}", workers=1)
        told = [made.num_samples - made.num_rejected, sorted(made.rejected)]
    except PackidxError as error:
        told = f"{type(error).__name__}: {error}"
    print(json.dumps([name, told, opened, called]))
"""

Make = Callable[[Path, Path], str | None]
"""Given a new folder and the one outside, which is beside it: makes a data set, and gives the
source that is typed, the folder itself where it gives None."""


def card(place: str, key: str = "data_files") -> Make:
    """A repository in the Hub's cache whose README names a place."""

    def make(here: Path, outside: Path) -> str:
        return cached(
            here, f"---\nconfigs:\n- {{config_name: x, {key}: {place!r}}}\n---\n", outside
        )

    return make


def cached(here: Path, readme: str, outside: Path, links: dict[str, str] | None = None) -> str:
    """A snapshot in the Hub's cache, as `huggingface_hub` makes it: links to blobs."""
    repository = here.parent.parent / "home" / "hub" / f"datasets--org--{here.name}"
    snapshot, blobs = repository / "snapshots" / COMMIT, repository / "blobs"
    snapshot.mkdir(parents=True), blobs.mkdir(), (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    good = json.dumps(chat("<image>", images=["a.png"])).encode()
    files = {"README.md": readme.encode(), "good.jsonl": good + b"\n", "a.png": png()}
    for name, content in files.items():
        (blobs / name).write_bytes(content.replace(b"OUTSIDE", str(outside).encode()))
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    for name, target in (links or {}).items():
        (snapshot / name).unlink(missing_ok=True)
        (snapshot / name).symlink_to(outside / target)
    return f"org/{here.name}"


def snapshot_with(**links: str) -> Make:
    named = {name.replace("_", "."): target for name, target in links.items()}
    return lambda here, outside: cached(here, "", outside, named)


def records(*refs: Any, kind: str = "image") -> Make:
    """A folder with records of these references."""

    def make(here: Path, outside: Path) -> None:
        told = [json.loads(json.dumps(ref).replace("OUTSIDE", str(outside))) for ref in refs]
        (here / "link.png").symlink_to(outside / "secret.png")
        (here / "linked").symlink_to(outside)
        (here / "db.lmdb").mkdir()
        (here / "db.lmdb" / "data.mdb").symlink_to(outside / "secret.lmdb")
        lines = [json.dumps(chat(f"<{kind}>", **{f"{kind}s": [ref]})) for ref in told]
        (here / "a.jsonl").write_text("\n".join(lines))

    return make


def mix(name: str, place: str, *, is_typed: bool = True) -> Make:
    """A file that has what a mix has, and no mix's name, or is found in a folder."""

    def make(here: Path, outside: Path) -> str | None:
        entry = {"d": {"file_name": place.replace("OUTSIDE", str(outside))}}
        (here / name).write_text(json.dumps(entry))
        (here / "good.jsonl").write_bytes(GOOD)
        return str(here / name) if is_typed else None

    return make


def prepared(*names: str, folder: str = "", link: str = "") -> Make:
    """A folder that Energon has prepared, with a list of shards; or with links for it."""

    def make(here: Path, outside: Path) -> None:
        (here / "s-0.tar").write_bytes(tar_of([("0.json", GOOD)]))
        if link:
            (here / link).symlink_to(outside / "secret.tar")
        if folder:
            (here / ".nv-meta").symlink_to(outside / folder)
            return
        (here / ".nv-meta").mkdir()
        counts = {name.replace("OUTSIDE", str(outside)): 1 for name in ("s-0.tar", *names)}
        (here / ".nv-meta" / ".info.json").write_text(json.dumps({"shard_counts": counts}))

    return make


def links(**names: str) -> Make:
    """A folder with a good file, and links out of it."""

    def make(here: Path, outside: Path) -> None:
        (here / "good.jsonl").write_bytes(GOOD)
        for name, target in names.items():
            (here / name.replace("_", ".")).symlink_to(outside / target)

    return make


def tar(ref: str) -> Make:
    def make(here: Path, outside: Path) -> None:
        record = chat("<image>", images=[ref.replace("OUTSIDE", str(outside))])
        (here / "a.tar").write_bytes(tar_of([("0.json", json.dumps(record).encode())]))

    return make


def image_folder(here: Path, outside: Path) -> None:
    lines = [{"file_name": name, "text": "x"} for name in ("../outside/secret.png", "link.png")]
    (here / "link.png").symlink_to(outside / "secret.png")
    (here / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))


OUT = ["media_outside_root"]
CASES: dict[str, tuple[Make, Any]] = {
    "README, absolute": (card("OUTSIDE/secret.jsonl"), "is not of its repository"),
    "README, ..": (card("../../../../../sets/outside/*.jsonl"), "is not of its repository"),
    "README, a folder": (card("../../../..", "data_dir"), "is not of its repository"),
    "README, http": (card("http://127.0.0.1:PORT/a.jsonl"), "is not of its repository"),
    "README, a chain": (card("zip://a.jsonl::http://127.0.0.1:PORT/a.zip"), "is not of its"),
    "README that is a link": (snapshot_with(README_md="secret.md"), "leads out of"),
    "a repository's link": (snapshot_with(more_jsonl="secret.jsonl"), [1, []]),
    "a repository as it is": (snapshot_with(), [1, []]),
    "a mix by content": (mix("x.json", "OUTSIDE/secret.jsonl"), "is named mix.json"),
    "a mix that is found": (mix("meta.json", "OUTSIDE/secret.jsonl", is_typed=False), [1, []]),
    "Energon, ..": (prepared("../outside/secret.tar"), "which is not a file of its folder"),
    "Energon, a link": (prepared("s-1.tar", link="s-1.tar"), "leads out of"),
    "Energon's description": (prepared(folder="described"), "leads out of"),
    "links to files and folders": (links(a_jsonl="secret.jsonl", sub="."), [1, []]),
    "a link alone": (lambda here, outside: (here / "a.jsonl").symlink_to(outside / "secret.jsonl"), "lead"),
    "metadata": (image_folder, [0, OUT]),
    "a tar's record, absolute": (tar("OUTSIDE/secret.png"), [0, OUT]),
    "LMDB": (records("OUTSIDE/secret.lmdb::k", "../outside/secret.lmdb::k", "db.lmdb::k"), [0, OUT]),
    "records, absolute": (records("OUTSIDE/secret.png", "file://OUTSIDE/secret.png"), [0, OUT]),
    "records, ..": (records("../outside/secret.png", "linked/../secret.png"), [0, OUT]),
    "records, links": (records("link.png", "linked/secret.png"), [0, OUT]),
    "records, videos": (records("OUTSIDE/secret.png", ["link.png"], kind="video"), [0, OUT]),
    "records, sounds": (records("OUTSIDE/secret.wav", "../outside/secret.wav", kind="audio"), [0, OUT]),
    "records, URLs": (records("http://127.0.0.1:PORT/a.png", "s3://bucket/a.png"), [0, ["media_remote"]]),
}  # fmt: skip


def png() -> bytes:
    return saved(pixels("RGB"), "PNG")


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Hub]:
    """The folder outside, what came of each data set, and the server that everybody would ask."""
    place = tmp_path_factory.mktemp("lead")
    outside = place / "sets" / "outside"
    (outside / "described").mkdir(parents=True)
    (place / "lengths").mkdir()
    files = {"secret.jsonl": GOOD, "secret.png": png(), "secret.md": b"# x"}
    files |= {"secret.tar": tar_of([("0.json", GOOD)])}
    files |= {"described/.info.json": b'{"shard_counts": {"s-0.tar": 1}}'}
    for name, content in files.items():
        (outside / name).write_bytes(content)
    database(outside / "secret.lmdb")
    with serving() as hub:
        sources = {}
        for number, (name, (make, _)) in enumerate(CASES.items()):
            here = place / "sets" / f"n{number}"
            here.mkdir()
            sources[name] = make(here, outside) or str(here)
            for path in [*here.rglob("*"), *(place / "home").rglob("*")]:
                if path.is_file() and b"PORT" in (content := path.read_bytes()):
                    path.write_bytes(content.replace(b":PORT", f":{hub.port}".encode()))
        url = f"http://127.0.0.1:{hub.port}"
        store = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": url}
        done = subprocess.run(
            [sys.executable, "-c", READ, json.dumps(sources)],
            env=hub.environment(place / "home", HF_HUB_OFFLINE="1", **store),
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answers = {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}
    return outside, answers, hub


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_or_passed_over(name: str, read: Any) -> None:
    outside, answers, hub = read
    told, opened, called = answers[name]
    expected = CASES[name][1]
    if isinstance(expected, str):
        assert isinstance(told, str) and expected in told
    else:
        assert told == expected
    assert [path for path in opened if path.startswith(f"{os.path.realpath(outside)}/")] == []
    assert called == [] and hub.requests == []


def test_what_is_watched_is_seen(read: Any) -> None:
    told, opened, _ = read[1]["a repository as it is"]
    assert told == [1, []] and any(path.endswith("blobs/a.png") for path in opened)


def test_a_readme_at_the_hub_asks_nobody_else(tmp_path: Path) -> None:
    """The Hub is asked for the repository that was typed, and for nothing else."""
    code = "import sys; from packidx.records.sources.find_shards import find_shards\n"
    code += "try: print(find_shards(sys.argv[1:]))\nexcept Exception as error: print(error)"
    (tmp_path / "secret.jsonl").write_bytes(GOOD)
    for place in (f"{tmp_path}/*.jsonl", "../../x/*", "http://127.0.0.1:1/a.jsonl", "s3://b/a.csv"):
        with serving() as hub:
            readme = f"---\nconfigs:\n- {{config_name: x, data_files: {place!r}}}\n---\n"
            hub.push("org/talks", {"README.md": readme.encode(), "a.jsonl": GOOD})
            store = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{hub.port}"}
            done = hub.run(tmp_path / "home", "-c", code, "org/talks", **store)
            assert f"its README names {place!r}, which is not of its repository" in done.stdout
            asked = {*hub.requests} - {"/api/agent-harnesses"}  # its library
            assert asked and [path for path in asked if "org/talks" not in path] == []

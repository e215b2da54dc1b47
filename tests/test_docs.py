"""Pages against the program and its tests: every block runs, every name is there."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hub_server import serving
from packidx_cli.main import cli

from packidx.format import schema

REPO = Path(__file__).parent.parent
PAGES = ["README.md", "FORMAT.md", *sorted(f"docs/{p.name}" for p in (REPO / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NO_LANGUAGE = {"text", "yaml", "console", "json"}
"""Of blocks that are not run: output, files, and what changes this machine."""
NEEDS_MORE = {"export energon"}
"""Commands that no page runs: tars that Energon has prepared are made by tests/energon."""
PUBLIC = ("packidx", "packidx.torch", "packidx.torch.loss", "packidx.encode", "packidx.recipe")


def text_of(page: str) -> str:
    return (REPO / page).read_text()


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each fenced block."""
    return BLOCK.findall(text_of(page))


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by its whole name."""
    context = click.Context(cli, info_name="packidx")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            inner = click.Context(command, parent=context)
            for each in command.list_commands(inner):
                of_group = command.get_command(inner, each)
                assert of_group is not None
                yield f"{name} {each}", of_group
        else:
            yield name, command


@pytest.fixture(scope="session")
def planned(
    corpus: Path, whole_processors: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A folder as `make plan` leaves it."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "data").mkdir()
    (folder / "data" / "corpus").symlink_to(corpus)
    (folder / "data" / "processors").symlink_to(whole_processors)
    for command in re.findall(r"^packidx .*$", _block_of("docs/counting.md", "sh", 0), re.M):
        run(command, folder)
    run("packidx plan data/lengths -o data/index --capacity 8192", folder)
    saved = "from train_tiny import build_model; build_model().save_pretrained('model')"
    path = os.environ | {"PYTHONPATH": str(REPO / "examples")}
    subprocess.run([sys.executable, "-c", saved], cwd=folder, env=path, check=True)
    yield folder


def _block_of(page: str, language: str, number: int) -> str:
    return [text for kind, text in blocks(page) if kind == language][number]


def run(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, cwd=folder, env=os.environ | {"PATH": path},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


def has_something_to_run(page: str) -> bool:
    own = [] if page == "README.md" else blocks(page)  # tests/e2e/test_readme.py runs the README's
    return any(kind == "python" or "\npackidx " in f"\n{text}" for kind, text in own)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if has_something_to_run(page)])
def test_every_block_runs_as_it_stands(
    page: str, planned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "packidx push " in text_of(page):
        with serving() as hub, monkeypatch.context() as patch:
            for name, value in hub.environment(tmp_path / "hub").items():
                patch.setenv(name, value)
            run_blocks(page, planned, tmp_path)
    else:
        run_blocks(page, planned, tmp_path)


def run_blocks(page: str, planned: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    shutil.copytree(planned, folder, symlinks=True)
    for kind, text in blocks(page):
        if kind == "sh":
            for line in text.replace("\\\n", " ").splitlines():
                if line.startswith("packidx "):
                    assert run(line, folder), f"{line} says nothing"
        elif kind == "python":
            done = subprocess.run(
                [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{text}\n{done.stderr}"
        else:
            assert kind in NO_LANGUAGE, f"{page} has a block in {kind or 'no language'}"
            if (named := re.match(r"# ([\w-]+\.(?:yaml|json))\n", text)) is not None:
                (folder / named[1]).write_text(text[named.end() :])


def test_every_command_is_run_by_a_page() -> None:
    lines = [
        line
        for page in PAGES
        for kind, text in blocks(page)
        if kind == "sh"
        for line in text.splitlines()
    ]
    for name, _ in commands():
        if name not in NEEDS_MORE:
            assert any(line.startswith(f"packidx {name} ") for line in lines), name


@pytest.mark.slow
def test_the_example_output_is_what_the_example_gives(
    corpus: Path, whole_processors: Path, tmp_path: Path
) -> None:
    shown = re.search(
        r"What `make plan` prints about its plan:\n\n((?:    .*\n)+)", text_of("README.md")
    )
    assert shown
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus").symlink_to(corpus)
    (tmp_path / "data" / "processors").symlink_to(whole_processors)
    program = "import sys; sys.modules['torch'] = sys.modules['torchvision'] = None\n"
    program += "from packidx_cli.main import run; run()"
    # Python's readline tells all processes after it that a terminal has 80 columns.
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-c", program, "pack", str(REPO / "examples" / "recipe.yaml")],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for line in shown.group(1).splitlines():
        assert line.strip() in done.stdout.splitlines()


def test_every_option_has_help() -> None:
    for name, command in commands():
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.help, f"{name} {parameter}"


def test_the_site_is_built(tmp_path: Path) -> None:
    """mkdocs ends with an error at a link that leads nowhere, or a name that is not there."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=REPO, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cli = (tmp_path / "cli" / "index.html").read_text()
    assert "--on-long" in cli and "packidx-export-energon" in cli
    api = (tmp_path / "api" / "index.html").read_text()
    for module in PUBLIC:
        public = importlib.import_module(module)
        for name in public.__all__:
            value = getattr(public, name)
            if not (inspect.isfunction(value) or inspect.isclass(value)):
                continue
            assert re.search(rf'id="packidx[\w.]*\.{name}"', api), f"{module}.{name}"


def test_every_command_name_and_variable_is_in_a_page() -> None:
    pages = "\n".join(map(text_of, PAGES))
    for name, _ in commands():
        assert f"packidx {name}" in pages, name
    for module in PUBLIC:
        for name in importlib.import_module(module).__all__:
            assert re.search(rf"\b{name}\b", pages) or name == "__version__", f"{module}.{name}"
    sources = [*(REPO / "packidx").rglob("*.py"), *(REPO / "cli").rglob("*.py")]
    read = {
        variable
        for path in sources
        for variable in re.findall(r"\"(PACKIDX_[A-Z_]+)\"", path.read_text())
    }
    assert read
    for variable in read - {"PACKIDX_FINISHED"}:  # between its own processes
        assert f"`{variable}" in pages or f"{variable}=" in pages, variable


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", text_of(page)):
            path, anchor = target
            if "://" in path:
                continue
            leads_to = (REPO / page).parent / path if path else REPO / page
            assert leads_to.exists(), f"{page} links to {path}"
            if anchor:
                assert anchor[1:] in anchors(leads_to), f"{page} links to {path}{anchor}"


def anchors(page: Path) -> set[str]:
    """Of the page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {word.replace(" ", "-") for word in words}


def test_the_pages_are_no_longer_than_they_may_be() -> None:
    assert len(text_of("README.md").splitlines()) <= 120
    assert len(text_of("docs/architecture.md").splitlines()) <= 120


def test_nothing_is_said_twice_in_readme() -> None:
    lines = [line.strip() for line in text_of("README.md").splitlines()]
    said = [line for line in lines if len(line) > 20 and not line.startswith("|---")]
    assert len(said) == len(set(said))


def test_the_format_is_read_in_ten_minutes() -> None:
    lines = text_of("FORMAT.md").splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 140
    assert len((REPO / "examples/core_reader.py").read_text().splitlines()) <= 150


def test_format_names_every_column() -> None:
    text = text_of("FORMAT.md")
    for table in (schema.LENGTHS_WITH_SPANS, schema.PACKS, schema.SAMPLES, schema.DROPPED):
        for name in table.names:
            assert f"`{name}`" in text, f"FORMAT.md says nothing of {name}"
    for field in schema.MEDIA.value_type:
        assert f"`{field.name}`" in text


def test_make_targets_are_documented() -> None:
    makefile = text_of("Makefile")
    shown = subprocess.run(["make", "help"], cwd=REPO, capture_output=True, text=True, check=True)
    for target in ("help", "plan", "test", "check", "bench", "docs", "clean"):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)
        assert re.search(rf"^{target}\b", shown.stdout, re.MULTILINE)


def test_queries_are_the_same_in_packidx_and_in_duckdb() -> None:
    """What docs/inspecting.md asks of DuckDB, it asks of `packidx sql` word by word."""
    asked = re.findall(r'packidx sql \S+ "(.*)"$', text_of("docs/inspecting.md"), re.M)
    shown = re.findall(r'(?:duckdb|db)\.sql\("(SELECT .*?)"\)', text_of("docs/inspecting.md"))
    shown += re.findall(r'^    "(SELECT .*?)"', text_of("docs/inspecting.md"), re.M)
    assert len(shown) == 5 and {*shown} < {*asked}


CONTRIBUTING = (REPO / "CONTRIBUTING.md").read_text()
QUOTED = re.findall(r"`([^`\n]+)`", CONTRIBUTING)
PATHS = [
    word for word in QUOTED if re.fullmatch(r"[\w.]+(/[\w.]+)+/?|\w+\.(md|toml|py)|\w+/", word)
]


def test_every_path_exists() -> None:
    assert len(PATHS) > 50
    assert [path for path in PATHS if not (REPO / path).exists()] == []


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", CONTRIBUTING)) | {"test-lowest"}
    assert len(named) > 6 and named <= targets


def test_every_name_in_code_is_in_code() -> None:
    """`FAMILIES`, `count_images`, `_BY_ITEM` and the like stand somewhere in the sources."""
    names = {word for word in QUOTED if re.fullmatch(r"_?[A-Za-z]+(_[A-Za-z]+)*", word)}
    folders = ("packidx", "cli", "tests")
    sources = "\n".join(file.read_text() for one in folders for file in (REPO / one).rglob("*.py"))
    sources += (REPO / "pyproject.toml").read_text() + (REPO / "FORMAT.md").read_text()
    missing = [name for name in names if not re.search(rf"\b{name}\b", sources)]
    assert len(names) > 25 and missing == []


def test_contributing_is_short() -> None:
    assert len(CONTRIBUTING.splitlines()) <= 120


SECURITY = (REPO / "SECURITY.md").read_text()
NAMED = re.findall(r"^- `(tests/[\w/]+\.py)::(\w+)`$", SECURITY, re.MULTILINE)


def threats() -> dict[str, str]:
    """Each paragraph of the threats, by its first words."""
    body = SECURITY.partition("## Threats and what holds")[2].partition("\n## ")[0]
    parts = re.split(r"^\*\*(.+?)\*\*", body, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_named_test_exists() -> None:
    assert len(NAMED) > 30
    for path, name in NAMED:
        tree = ast.parse((REPO / path).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{path}::{name}"


def test_every_threat_has_a_test() -> None:
    assert len(threats()) > 12
    for title, text in threats().items():
        assert "\n- `tests/" in text, title
    assert len(NAMED) == sum(text.count("\n- `tests/") for text in threats().values())


def test_it_says_how_to_report_and_names_no_address() -> None:
    assert "security advisories" in SECURITY
    assert "@" not in SECURITY

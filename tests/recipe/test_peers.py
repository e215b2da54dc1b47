"""Other trainers' files: a recipe is made of each, says what it leaves out, and can be packed."""

from __future__ import annotations

import json
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packidx_cli.main import main
from PIL import Image

from packidx import open_index
from packidx.errors import OptionError
from packidx.recipe.peers.read import PEERS, imported
from packidx.recipe.recipe import Recipe, recipe_of

NEMO = """\
recipe: FinetuneRecipeForVLM
step_scheduler: {global_batch_size: 8, local_batch_size: 1}
model:
  _target_: nemo_automodel.NeMoAutoModelForImageTextToText.from_pretrained
  pretrained_model_name_or_path: PROCESSOR
processor:
  _target_: transformers.AutoProcessor.from_pretrained
  pretrained_model_name_or_path: PROCESSOR
  max_pixels: 50176
dataset:
  _target_: nemo_automodel.components.datasets.vlm.datasets.make_meta_dataset
  path_or_dataset: data/meta.json
  split: train
packed_sequence: {pack_size: 1024, packing_ratio: 0.9, drop_long_samples: true, pretokenize: true}
optimizer: {_target_: torch.optim.AdamW, lr: 2.0e-5}
"""
LMMS = """\
trainer_type: fsdp2_trainer
dataset_config:
  dataset_type: qwen3_vl_iterable
  dataset_format: yaml
  dataset_path: data/list.yaml
  processor_config: {processor_name: PROCESSOR, processor_type: qwen2_5_vl, max_pixels: 50176}
  packing: true
  packing_length: 1024
  fps: 1
trainer_args: {learning_rate: 0.0002, per_device_train_batch_size: 1}
model_config: {load_from_pretrained_path: PROCESSOR}
"""
LOONGFORGE = """\
data: {wds_dir: data/wds, template_text_key: messages, packed_json_dir: out}
model:
  model_type: qwenvl
  processor_kwargs:
    pretrained_model_name_or_path: PROCESSOR
    max_pixels: 50176
    trust_remote_code: true
media_preprocess: {image: custom_image_preprocess}
sample: {max_token_len: 1024, task_type: vqa}
process: {chunk_size: 5000}
log: {level: INFO}
"""
AXOLOTL = """\
base_model: PROCESSOR
processor_type: AutoProcessor
skip_prepare_dataset: true
sample_packing: false
chat_template: qwen2_vl
datasets:
  - {path: data/chats.jsonl, type: chat_template, field_messages: messages, split: "train[:50%]"}
  - {path: data/told.jsonl, type: chat_template, field_messages: dialog,
     message_property_mappings: {role: who, content: says},
     roles: {user: [asker], assistant: [bot]}}
val_set_size: 0.0
sequence_len: 1024
micro_batch_size: 1
learning_rate: 0.0002
"""
LLAMAFACTORY = """\
model_name_or_path: PROCESSOR
image_max_pixels: 50176
stage: sft
finetuning_type: lora
dataset: photos, told
dataset_dir: data
template: qwen2_vl
cutoff_len: 1024
max_samples: 1000
neat_packing: true
learning_rate: 1.0e-4
"""
SWIFT = """\
model: PROCESSOR
train_type: lora
dataset: ["data/chats.jsonl#20", data/photos.jsonl]
columns: '{"chat": "messages"}'
split_dataset_ratio: 0.1
max_length: 1024
packing: true
learning_rate: 1e-4
"""
TRL = """\
model_name_or_path: PROCESSOR
dataset_name: data/chats.jsonl
packing: true
max_length: 1024
assistant_only_loss: true
report_to: none
"""
INTERNVL = """{
  "photos": {"root": "data/", "annotation": "data/photos.jsonl", "data_augment": false,
\t     "repeat_time": 2, "length": 30},
  "chats": {"root": "", "annotation": "data/chats.jsonl", "data_augment": true, "repeat_time": 1,
             "length": 30}
}"""
PIXELS = {"images.max_pixels": 50176}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with data as each of the trainers has it."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    (data / "wds").mkdir(parents=True)
    Image.new("RGB", (400, 300)).save(data / "wide.png")
    for name, image in (("chats", None), ("photos", "wide.png")):
        records = [{"messages": turns(number, image is not None)} for number in range(30)]
        for record in records if image else []:
            record["images"] = [image]  # type: ignore[list-item]
        write(data / f"{name}.jsonl", records)
    words = {"user": "asker", "assistant": "bot"}
    told = [[{"who": words[t["role"]], "says": t["content"]} for t in turns(n)] for n in range(30)]
    write(data / "told.jsonl", [{"dialog": dialog} for dialog in told])
    (data / "list.yaml").write_text(
        "datasets:\n- {path: data/photos.jsonl, data_folder: data, data_type: jsonl,"
        " sampling_strategy: 'random:50%'}\n- {path: data/chats.jsonl, data_type: jsonl}\n"
    )
    tags = {"role_tag": "who", "content_tag": "says", "user_tag": "asker", "assistant_tag": "bot"}
    meta = {
        "photos": {"file_name": "photos.jsonl", "columns": {"images": "images"}},
        "told": {"file_name": "told.jsonl", "columns": {"messages": "dialog"}, "tags": tags},
    }
    for entry in meta.values():
        entry["formatting"] = "sharegpt"
    online: dict[str, Any] = {"hub": {"hf_hub_url": "org/name", "subset": "en"}}
    (data / "dataset_info.json").write_text(json.dumps({**meta, **online}))
    meta["photos"]["sample_ratio"] = 0.5  # type: ignore[assignment]
    (data / "meta.json").write_text(json.dumps(meta))
    with tarfile.open(data / "wds" / "shard-000.tar", "w") as tar:
        for number in range(30):
            text = json.dumps({"messages": turns(number, True)}).encode()
            for suffix, content in (("jpg", (data / "wide.png").read_bytes()), ("json", text)):
                member = tarfile.TarInfo(f"{number:04}.{suffix}")
                member.size = len(content)
                tar.addfile(member, BytesIO(content))
    return tmp_path


def turns(number: int, with_image: bool = False) -> list[dict[str, str]]:
    asked = f"{'<image>' * with_image}What is {number}?"
    answer = f"A number. {'Indeed. ' * (number % 20)}"
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]


def write(path: Path, records: list[Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def made_of(text: str, processor: Path | str, suffix: str = "yaml") -> tuple[Recipe, str, str]:
    """The recipe of a trainer's file, its text, and what it is said to leave out."""
    Path(f"train.{suffix}").write_text(text.replace("PROCESSOR", str(processor)))
    result = imported(f"train.{suffix}")
    assert not result.todo
    return recipe_of(result.text, "r.yaml"), result.text, "\n".join(result.lost)


EXAMPLES = [
    (NEMO, "yaml", {"photos": 15, "told": 30}, PIXELS, ()),
    (LMMS, "yaml", {"photos": 15, "chats": 30}, PIXELS, ("dataset_config.fps is 1: LMMS Engine",)),
    (LOONGFORGE, "yaml", {"wds": 30}, PIXELS, ("media_preprocess.image is 'custom_image",)),
    (
        AXOLOTL,
        "yaml",
        {"chats": 30, "told": 30},
        None,
        ("chat_template is 'qwen2_vl': a template", "datasets[0].split is 'train[:50%]': all of"),
    ),
    (
        LLAMAFACTORY,
        "yaml",
        {"photos": 30, "told": 30},
        PIXELS,
        ("max_samples is 1000", "template is 'qwen2_vl'"),
    ),
    (
        SWIFT,
        "json",
        {"chats": 27, "photos": 27},
        None,
        ("dataset is 'data/chats.jsonl#20': all its samples are taken, and not 20",),
    ),
    (TRL, "yaml", {"chats": 30}, None, ()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "suffix", "samples", "pixels", "lost"), EXAMPLES)
def test_a_trainers_file_is_packed(
    folder: Path,
    processors: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    suffix: str,
    samples: dict[str, int],
    pixels: dict[str, int] | None,
    lost: tuple[str, ...],
) -> None:
    if suffix == "json":
        import yaml

        text = json.dumps({**yaml.safe_load(text), "columns": None})
    recipe, written, said = made_of(text, processors / "qwen2.5-vl", suffix)
    assert recipe.estimate.get("processor_settings") == pixels
    assert recipe.plan.capacity == 1024
    assert all(sentence in said for sentence in lost) and (bool(said) == bool(lost))
    assert all(f"# - {sentence}\n" in written for sentence in said.splitlines())
    assert main(["recipe", f"train.{suffix}", "-o", "recipe.yaml"]) == 0
    told = capsys.readouterr()
    assert told.out == "recipe.yaml is a recipe: packidx pack recipe.yaml\n"
    assert all(f"note: train.{suffix}: {line}\n" in told.err for line in said.splitlines())
    assert Path("recipe.yaml").read_text() == written
    assert main(["pack", "recipe.yaml", "--quiet", "--workers", "1"]) == 0
    index = open_index("packs/index")
    sources = index.samples(["source"]).column("source").to_pylist()
    counted = {name: sources.count(name) for name in samples}
    held_out = 0.3 if "split_dataset_ratio" in text else 0
    for name, number in samples.items():
        assert number * (1 - held_out) <= counted[name] <= number * (1 + held_out) + (number == 15)
    assert set(sources) == set(samples)
    assert "16 samples encoded as in training" in capsys.readouterr().out


@pytest.mark.slow
def test_internvls_meta_file_is_packed(folder: Path, processors: Path) -> None:
    Path("meta.json").write_text(INTERNVL)
    assert main(["recipe", "meta.json", "-o", "recipe.yaml"]) == 0
    text = Path("recipe.yaml").read_text()
    with pytest.raises(OptionError, match="estimate.processor is still to be filled in"):
        recipe_of(text, "recipe.yaml")
    text = text.replace("TODO tokens of a pack", "1024")
    text = text.replace("TODO folder or hub name of the processor", str(processors / "qwen2.5-vl"))
    Path("recipe.yaml").write_text(text)
    assert main(["pack", "recipe.yaml", "--quiet", "--workers", "1"]) == 0
    sources = open_index("packs/index").samples(["source"]).column("source").to_pylist()
    assert (sources.count("photos"), sources.count("chats")) == (60, 30)
    # The meta file is a source as it is, too: the same samples, seen as often.
    direct = ["pack", "meta.json", "--processor", str(processors / "qwen2.5-vl"), "-o", "direct"]
    assert main([*direct, "--capacity", "1024", "--quiet"]) == 0
    assert open_index("direct/index").id == open_index("packs/index").id


def recipe_in(text: str, name: str = "train.yaml", named: str | None = None) -> tuple[Any, str]:
    """What a file comes to as YAML, and all that it is said to leave out."""
    import yaml

    Path(name).write_text(text)
    result = imported(name, named)
    return yaml.safe_load(result.text), "\n".join(result.lost)


def test_data_sets_of_the_hub_keep_their_config_split_and_revision(folder: Path) -> None:
    text = """
base_model: org/model
datasets:
  - {path: org/chats, name: en, split: train+more, revision: v1, type: alpaca}
  - {path: json, data_files: data/chats.jsonl, type: {field_instruction: ask, format: "{x}"}}
  - {path: org/files, data_files: [a.jsonl, b.jsonl], type: oasst}
  - path
"""
    recipe, lost = recipe_in(text)
    assert recipe["sources"] == {
        "chats": "hf://datasets/org/chats@v1:en#train,more",
        "chats-2": {"path": "data/chats.jsonl", "columns": {"prompt": "ask"}},
        "a": ["hf://datasets/org/files/a.jsonl", "hf://datasets/org/files/b.jsonl"],
        "data": "TODO the data of datasets[3]",
    }
    assert recipe["plan"]["capacity"] == 512  # axolotl's default
    for said in ("datasets[1].type.format is '{x}'", "datasets[2].type is 'oasst'", "no path"):
        assert said in lost


def test_a_dataset_info_that_is_not_here_is_told(folder: Path) -> None:
    text = LLAMAFACTORY.replace("photos, told", "hub, mine")
    recipe, lost = recipe_in(text)
    assert recipe["sources"]["hub"] == {
        "path": "hf://datasets/org/name:en#train",
        "media_root": "data",
    }
    assert recipe["sources"]["mine"].startswith("TODO the data of mine")
    recipe, lost = recipe_in(text.replace("dataset_dir: data", "dataset_dir: away"))
    assert "cannot read away/dataset_info.json: No such file or directory" in lost
    online = text.replace("dataset_dir: data", "dataset_dir: ONLINE").replace("hub, ", "org/")
    assert recipe_in(online)[0]["sources"] == {"mine": "hf://datasets/org/mine#train"}


@pytest.mark.parametrize(
    ("given", "sources", "said"),
    [
        ("org/name", {"name": "TODO org/name of ModelScope, downloaded, or hf://datasets/…"}, "Mo"),
        ("HF::org/name:en#9", {"name": "hf://datasets/org/name:en#train"}, "and not 9"),
        ("data/chats.jsonl data/told.jsonl", {"chats": "data/chats.jsonl"}, ""),
        ("s3://bucket/chats.jsonl", {"chats": "s3://bucket/chats.jsonl"}, ""),
    ],
)
def test_where_ms_swift_has_its_data(
    folder: Path, given: str, sources: dict[str, str], said: str
) -> None:
    recipe, lost = recipe_in(json.dumps({"model": "m", "tuner_type": "lora", "dataset": given}))
    assert sources.items() <= recipe["sources"].items()
    assert said in lost


def test_a_function_that_makes_conversations_is_to_be_written(folder: Path) -> None:
    text = NEMO.replace("make_meta_dataset", "make_cord_v2_dataset")
    recipe, lost = recipe_in(text.replace("data/meta.json", "naver-clova-ix/cord-v2"))
    assert recipe["sources"] == {"cord-v2": "hf://datasets/naver-clova-ix/cord-v2#train"}
    assert recipe["estimate"]["transform"].startswith("TODO MODULE:NAME")
    assert "make_cord_v2_dataset" in lost
    recipe, lost = recipe_in(text.replace("  path_or_dataset: data/meta.json\n", ""))
    assert recipe["sources"] == {"data": "TODO the data that make_cord_v2_dataset makes"}


def test_a_trainers_default_that_no_key_states_is_told(folder: Path) -> None:
    _, lost = recipe_in(LLAMAFACTORY.replace("image_max_pixels: 50176\n", ""))
    assert "image_max_pixels is not given: LLaMA-Factory shrinks images to 589824" in lost
    _, lost = recipe_in(TRL.replace("assistant_only_loss: true\n", ""))
    assert "assistant_only_loss is not given: TRL trains every turn" in lost
    for text in (LLAMAFACTORY, TRL):
        assert "is not given" not in recipe_in(text)[1]


def test_what_is_nobodys_business_is_named_too(folder: Path) -> None:
    Path("train.yaml").write_text(LLAMAFACTORY + "my_key: 3\npacking_lenght: 9\n")
    result = imported("train.yaml")
    assert "# The training's own business:\n# - finetuning_type, learning_rate, my_key" in (
        result.text
    )
    assert any("packing_lenght is no key of LLaMA-Factory" in sentence for sentence in result.lost)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "something: else\n", "has no key of a trainer that packidx knows: NeMo"),
        ("a.yaml", "{packing: true, max_length: 8}", "--config-format llamafactory|swift|trl"),
        ("a.yaml", "{model_name_or_path: m, learning_rate: 1}", "say whose it is"),
        ("a.yaml", "sources: [a.jsonl]\nplan: {capacity: 8}\n", "is a recipe already"),
        ("a.yaml", "[1, 2]", "has no sections"),
        ("a.json", '{"a": 1', "is not valid JSON"),
        ("a.yaml", "sequence_len: 8\npacking: {\n", "is not valid YAML"),
        ("a.yaml", "sequence_len: 8\npackidx: {capcity: 8}\n", "unknown key packidx.capcity"),
        ("none.yaml", None, "cannot read none.yaml"),
    ],
)
def test_what_is_no_trainers_file(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None, said: str
) -> None:
    if text is not None:
        Path(name).write_text(text)
    assert main(["recipe", name, "-o", "recipe.yaml"]) == 1
    assert said in capsys.readouterr().err
    assert not Path("recipe.yaml").exists()


def test_the_trainer_may_be_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.yaml").write_text("{packing: true, max_length: 8, model_name_or_path: m}")
    assert main(["recipe", "train.yaml", "--config-format", "trl"]) == 0
    told = capsys.readouterr()
    assert "processor: m\n" in told.out and "on_long: truncate" in told.out
    assert "still to be filled in: sources.data\n" in told.err
    assert main(["recipe", "train.yaml", "--config-format", "torchtune"]) == 1
    assert "choose one of nemo, lmms" in capsys.readouterr().err


def test_another_file_is_not_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.yaml").write_text(TRL)
    assert main(["recipe", "train.yaml", "-o", "recipe.yaml"]) == 0
    assert main(["recipe", "train.yaml", "-o", "recipe.yaml"]) == 0  # the same again
    Path("recipe.yaml").write_text("mine")
    assert main(["recipe", "train.yaml", "-o", "recipe.yaml"]) == 1
    assert "says something else: give another -o" in capsys.readouterr().err
    assert Path("recipe.yaml").read_text() == "mine"
    assert main(["recipe", "train.yaml", "-o", "data"]) == 1


def test_what_no_comment_can_hold_is_escaped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {"model_name_or_path": "m", "dataset_name": "é\x1b[2J\n", "\x1b]0;\n": 1, "packing": True}
    Path("train.json").write_text(json.dumps(odd))
    assert main(["recipe", "train.json"]) == 0
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert "m" in told.out and recipe_of(told.out, "r.yaml").sources


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 9000)
    | st.text(max_size=8)
    | st.just("data/a.jsonl"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["path", "type", "split", "roles", "user", "name", "data_files", "field"]
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("peer", PEERS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_file_says_it_is_a_recipe_or_a_sentence(
    tmp_path: Path, peer: str, data: st.DataObject
) -> None:
    known = [*PEERS[peer].keys, "other"]
    if PEERS[peer].trainer is not None:
        known += PEERS[peer].trainer.keys  # type: ignore[union-attr]
    file: dict[str, Any] = {}
    for dotted in data.draw(st.lists(st.sampled_from(known), max_size=6)):
        *sections, member = dotted.split(".")
        inside = file
        for section in sections:
            inside = inside.setdefault(section, {})
            if not isinstance(inside, dict):
                break
        else:
            inside[member] = data.draw(values)
    path = tmp_path / "train.json"
    path.write_text(json.dumps(file))
    try:
        result = imported(str(path), peer)
    except OptionError:
        return
    text = result.text.replace("TODO tokens of a pack", "65536")
    recipe_of(text.replace("TODO", "done"), "r.yaml")

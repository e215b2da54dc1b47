"""Write a small real training corpus: five data sets in four dialects, and their images.

It is made of what package registries ship: dialogues (`chitchat-dataset`, MIT), drawings with
questions and answers (`easy-vqa`, MIT) and photographs (`scikit-image`, `scikit-learn`, BSD). The
packages are only read as files, never imported, so none of their dependencies are needed:

    pip install --no-deps chitchat-dataset easy-vqa scikit-image scikit-learn
    python tools/make_corpus.py data/corpus

The same packages give the same bytes. Image paths are relative to the output folder.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import orjson
from PIL import Image, ImageOps

VERSION = 1
"""Raise it whenever the output changes: an output of another version is written anew."""
STAMP = ".corpus_complete.json"
PACKAGE_FOLDER = str(Path(sys.prefix, "corpus-packages"))
"""Where `make` puts them: apart, because without their dependencies they cannot be imported."""
PACKAGES = ("chitchat-dataset", "easy-vqa", "scikit-image", "scikit-learn")

NUM_VQA_SINGLE, NUM_VQA_MULTI_IMAGE, NUM_PHOTOS = 8000, 2500, 600
ONE_WORD = "Answer with one word."

Record = dict[str, Any]
Question = tuple[str, str]
"""A question and its answer."""

# The photographs among the files (the rest are drawings), and what each shows.
SUBJECTS = {
    "astronaut.png": "an astronaut in an orange suit",
    "brick.png": "a brick wall",
    "camera.png": "a man with a camera on a tripod",
    "cell.png": "a cell under a microscope",
    "chelsea.png": "a cat",
    "china.jpg": "a Chinese building",
    "clock_motion.png": "a clock, blurred by motion",
    "coffee.png": "a cup of coffee",
    "coins.png": "old coins",
    "flower.jpg": "a flower",
    "grass.png": "grass",
    "gravel.png": "gravel",
    "hubble_deep_field.jpg": "distant galaxies",
    "ihc.png": "stained tissue under a microscope",
    "moon.png": "the surface of the Moon",
    "motorcycle_left.png": "a motorcycle, seen by the left camera",
    "motorcycle_right.png": "a motorcycle, seen by the right camera",
    "page.png": "a printed page",
    "retina.jpg": "the retina of an eye",
    "rocket.jpg": "a rocket on its launch pad",
    "text.png": "handwriting on paper",
}
# Longer sides of the enlarged copies: many of one or two thousand pixels, a few that alone exceed
# 8,192 tokens. Odd numbers on purpose: a size that divides evenly hides rounding mistakes.
LONG_SIDES = (1001, 1083, 1157, 1280, 1333, 1447, 1601, 1733, 1920, 2049, 2251, 2500, 3001, 4097)
MOSAICS = (
    *((2, 1, 1003, 1511), (2, 2, 1201, 1201), (1, 3, 2403, 1009), (3, 2, 1537, 2049)),
    *((3, 3, 1777, 1777), (2, 4, 2600, 1300), (3, 4, 2999, 2111), (4, 4, 3200, 3200)),
    *((4, 6, 4599, 3067), (5, 4, 3001, 4003)),
)
"""Rows, columns, width and height of each mosaic."""


@dataclass(frozen=True)
class Photo:
    """One image file and what can be said of it truthfully."""

    path: str
    names: tuple[str, ...]
    """The photographs in it, row by row: more than one in a mosaic."""
    width: int
    height: int
    """As shown, that is with the EXIF orientation applied."""
    is_grey: bool


@dataclass(frozen=True)
class Drawing:
    """One easy-vqa image, where it goes and what is asked about it."""

    file: Path
    path: str
    size: tuple[int, int]
    """Height and width."""
    questions: list[Question]


def find_inputs() -> dict[str, tuple[Path, str]]:
    """Every data file of the packages: its path inside them → (where it lies, its hash)."""
    inputs = {}
    for name in PACKAGES:
        found = next(iter(Distribution.discover(name=name, path=[*sys.path, PACKAGE_FOLDER])), None)
        if found is None:
            raise SystemExit(f"{name} not found: run `pip install --no-deps {name}`")
        for file in found.files or []:
            if file.suffix in {".json", ".png", ".jpg"} and file.hash:
                inputs[file.as_posix()] = (Path(str(file.locate())), file.hash.value)
    return inputs


def stamp_for(inputs: dict[str, tuple[Path, str]]) -> Record:
    digests = "".join(f"{name} {digest}\n" for name, (_, digest) in sorted(inputs.items()))
    return {"version": VERSION, "inputs": hashlib.sha256(digests.encode()).hexdigest()}


def write_lines(path: Path, records: Iterable[Record]) -> None:
    with path.open("wb") as file:
        file.writelines(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in records)


def sharegpt(questions: Iterable[Question], before: str = "") -> list[Record]:
    """Turns of the ShareGPT dialect; `before` (placeholders) opens the first."""
    turns: list[Record] = []
    for question, answer in questions:
        turns.append({"from": "human", "value": question if turns else before + question})
        turns.append({"from": "gpt", "value": answer})
    return turns


def dialogues(source: Path) -> Iterator[Record]:
    """Conversations of at least one exchange, in full: their long tail is what packing is about.

    A last question without an answer goes; what follows a blank turn too, to keep speakers apart.
    """
    for key, conversation in orjson.loads(source.read_bytes()).items():
        turns = ["\n".join(m["text"] for m in turn) for turn in conversation["messages"]]
        blank = next((i for i, text in enumerate(turns) if not text.strip()), len(turns))
        usable = turns[: blank // 2 * 2]
        if usable:
            questions = zip(usable[::2], usable[1::2], strict=True)
            yield {"id": key, "conversations": sharegpt(questions)}


def find_drawings(inputs: dict[str, tuple[Path, str]]) -> list[Drawing]:
    """easy-vqa's drawings; train and test number theirs alike, so test ones get another prefix."""
    drawings = []
    for split, prefix in (("train", ""), ("test", "test_")):
        folder = f"easy_vqa/data/{split}"
        asked: dict[int, list[Question]] = defaultdict(list)
        triples = orjson.loads(inputs[f"{folder}/questions.json"][0].read_bytes())
        for question, answer, number in triples:
            asked[number].append((question, answer))
        for number, questions in sorted(asked.items()):
            file = inputs[f"{folder}/images/{number}.png"][0]
            with Image.open(file) as image:
                size = (image.height, image.width)
            drawings.append(Drawing(file, f"images/vqa/{prefix}{number}.png", size, questions))
    return drawings


def vqa_single(drawings: list[Drawing]) -> Iterator[Record]:
    """One drawing, one question: the shortest samples; every fourth has a system turn."""
    pairs = [(drawing, question) for drawing in drawings for question in drawing.questions]
    chosen = random.Random("vqa_single").sample(pairs, NUM_VQA_SINGLE)
    for i, (drawing, (question, answer)) in enumerate(chosen):
        user = [{"type": "image", "image": drawing.path}, {"type": "text", "text": question}]
        system = [{"role": "system", "content": ONE_WORD}] if i % 4 == 0 else []
        turns = [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
        yield {"id": f"vqa_single-{i:05}", "messages": system + turns}


def vqa_multiturn(drawings: list[Drawing]) -> Iterator[Record]:
    """One drawing and all that is asked about it."""
    for i, drawing in enumerate(drawings):
        turns = sharegpt(drawing.questions, before="<image>\n")
        yield {"id": f"vqa_multiturn-{i:05}", "image": drawing.path, "conversations": turns}


def vqa_multi_image(drawings: list[Drawing]) -> Iterator[Record]:
    """2 to 12 drawings: all at once in even samples, one with each question in odd ones."""
    rng = random.Random("vqa_multi_image")
    for i in range(NUM_VQA_MULTI_IMAGE):
        chosen = rng.sample(drawings, rng.randint(2, 12))
        turns: list[Record] = []
        for number, drawing in enumerate(chosen, start=1):
            question, answer = rng.choice(drawing.questions)
            shown = (chosen if number == 1 else []) if i % 2 == 0 else [drawing]
            parts: list[Record] = [{"type": "image", "image": d.path} for d in shown]
            parts.append({"type": "text", "text": f"About image {number}: {question}"})
            turns.append({"role": "user", "content": parts})
            turns.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
        sizes = {"images_meta": [drawing.size for drawing in chosen]}
        yield {"id": f"vqa_multi_image-{i:05}", "conversation": turns, "mm_inputs_meta": sizes}


def load(file: Path) -> Image.Image:
    """The pixels as shown, in colour or in grey."""
    with Image.open(file) as image:
        shown = ImageOps.exif_transpose(image)
        return shown if shown.mode == "L" else shown.convert("RGB")


def save(out: Path, path: str, image: Image.Image, names: Iterable[str], **options: Any) -> Photo:
    """Write the image; a JPEG at quality 80 unless told otherwise."""
    quality = {"quality": 80} if path.endswith(".jpg") else {}
    image.save(out / path, **{**quality, **options})
    return Photo(path, tuple(names), image.width, image.height, image.mode == "L")


def enlarged(out: Path, name: str, file: Path, long_side: int) -> Photo:
    image = load(file)
    scale = long_side / max(image.size)
    size = (round(image.width * scale), round(image.height * scale))
    path = f"images/photos/{Path(name).stem}_{long_side}.jpg"
    return save(out, path, image.resize(size, Image.Resampling.BICUBIC), [name])


def mosaic(out: Path, files: dict[str, Path], number: int) -> Photo:
    """Several photographs side by side, each stretched over its cell so that no gap is left."""
    rows, columns, width, height = MOSAICS[number]
    rng = random.Random(f"mosaic {number}")
    names = [rng.choice(sorted(files)) for _ in range(rows * columns)]
    canvas = Image.new("RGB", (width, height))
    for i, name in enumerate(names):
        row, column = divmod(i, columns)
        left, top = column * width // columns, row * height // rows
        right, bottom = (column + 1) * width // columns, (row + 1) * height // rows
        cell = load(files[name]).resize((right - left, bottom - top), Image.Resampling.BICUBIC)
        canvas.paste(cell, (left, top))
    return save(out, f"images/photos/mosaic_{number}.jpg", canvas, names)


def special_photos(out: Path, files: dict[str, Path]) -> Iterator[Photo]:
    """What readers stumble over: an orientation tag, one channel, a palette, transparency."""
    upright = load(files["rocket.jpg"]).crop((160, 0, 480, 427))
    turned = upright.transpose(Image.Transpose.ROTATE_90)  # orientation 6 turns it back by 90°
    exif = Image.Exif()
    exif[0x0112] = 6
    save(out, "images/photos/orientation_6.jpg", turned, [], exif=exif)
    yield Photo("images/photos/orientation_6.jpg", ("rocket.jpg",), *upright.size, is_grey=False)
    grey = load(files["chelsea.png"]).convert("L")
    yield save(out, "images/photos/grey.jpg", grey, ["chelsea.png"])
    palette = load(files["flower.jpg"]).quantize(64)
    yield save(out, "images/photos/palette.png", palette, ["flower.jpg"])
    see_through = load(files["coffee.png"]).convert("RGBA")
    see_through.putalpha(Image.linear_gradient("L").resize(see_through.size))
    yield save(out, "images/photos/transparent.png", see_through, ["coffee.png"])


def write_photos(out: Path, inputs: dict[str, tuple[Path, str]]) -> list[Photo]:
    """The photographs as shipped, enlarged copies, mosaics and special cases."""
    by_name = {Path(name).name: path for name, (path, _) in sorted(inputs.items())}
    files = {name: by_name[name] for name in SUBJECTS}
    photos = []
    for name, file in files.items():
        image = load(file)
        path = f"images/photos/{name}"
        shutil.copyfile(file, out / path)
        photos.append(Photo(path, (name,), image.width, image.height, image.mode == "L"))
    sides = {name: LONG_SIDES[i % 7 :: 7] for i, name in enumerate(files)}
    jobs = [(name, side) for name, chosen in sides.items() for side in chosen]
    with ThreadPoolExecutor(2) as pool:  # Pillow lets other threads run while it resizes
        photos += pool.map(lambda job: enlarged(out, job[0], files[job[0]], job[1]), jobs)
        photos += pool.map(lambda number: mosaic(out, files, number), range(len(MOSAICS)))
    return photos + list(special_photos(out, files))


def describe(photo: Photo) -> list[Question]:
    """What can be asked about one image, with answers taken from its header and file names."""
    shown = [SUBJECTS[name] for name in photo.names]
    if len(shown) == 1:
        first = ("What does this photograph show?", f"It shows {shown[0]}.")
    else:
        listed = "\n".join(f"{i}. {subject}" for i, subject in enumerate(shown, start=1))
        first = ("What do the parts of this mosaic show, row by row?", listed)
    shape = "wider than it is tall" if photo.width > photo.height else "taller than it is wide"
    shape = "square" if photo.width == photo.height else shape
    tones = "No, it is in shades of grey." if photo.is_grey else "It is a colour image."
    return [
        first,
        ("How large is this photograph?", f"{photo.width} by {photo.height} pixels."),
        ("What is its shape?", f"It is {shape}."),
        ("Is it in colour?", tones),
    ]


def compare(photos: list[Photo]) -> list[Question]:
    """What can be asked about several images."""
    sizes = "\n".join(f"Image {i}: {p.width} by {p.height}" for i, p in enumerate(photos, start=1))
    largest = max(range(len(photos)), key=lambda i: photos[i].width * photos[i].height)
    subjects = "; ".join(SUBJECTS[photo.names[0]] for photo in photos)
    return [
        ("How large are these photographs, in pixels?", sizes),
        ("Which has the most pixels?", f"Image {largest + 1}."),
        ("What does each show first?", f"In this order: {subjects}."),
    ]


def photo_records(photos: list[Photo]) -> Iterator[Record]:
    """1 to 3 photographs a sample; each is used, the smaller ones more often."""
    rng = random.Random("photos")
    weights = [1 / (photo.width * photo.height) ** 0.5 for photo in photos]
    for i in range(NUM_PHOTOS):
        count = rng.choices((1, 2, 3), (6, 3, 1))[0]
        chosen = rng.choices(photos, weights, k=count)
        chosen[0] = photos[i] if i < len(photos) else chosen[0]
        questions = describe(chosen[0]) if count == 1 else compare(chosen)
        asked = rng.sample(questions, rng.randint(1, len(questions)))
        turns = sharegpt(asked, before="<image>\n" * count)
        yield {"id": f"photos-{i:05}", "images": [p.path for p in chosen], "conversations": turns}


def build(out: Path, inputs: dict[str, tuple[Path, str]]) -> None:
    """Write every file of the corpus under `out`."""
    for name in ("vqa", "photos"):
        (out / "images" / name).mkdir(parents=True)
    write_lines(out / "dialogues.jsonl", dialogues(inputs["chitchat_dataset/dataset.json"][0]))
    drawings = find_drawings(inputs)
    for drawing in drawings:
        shutil.copyfile(drawing.file, out / drawing.path)
    write_lines(out / "vqa_single.jsonl", vqa_single(drawings))
    write_lines(out / "vqa_multiturn.jsonl", vqa_multiturn(drawings))
    write_lines(out / "vqa_multi_image.jsonl", vqa_multi_image(drawings))
    write_lines(out / "photos.jsonl", photo_records(write_photos(out, inputs)))


def publish(built: Path, out: Path, stamp: Record) -> None:
    """Move the finished corpus into place, the stamp last: half a corpus never has one."""
    sizes = {path.name: path.stat().st_size for path in sorted(built.glob("*.jsonl"))}
    (built / STAMP).write_text(json.dumps(stamp | {"files": sizes}) + "\n")
    if not out.exists():
        built.rename(out)
        return
    (out / STAMP).unlink(missing_ok=True)
    for name in ("images", *sizes, STAMP):
        target = out / name
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        (built / name).rename(target)
    built.rmdir()


def is_complete(out: Path, stamp: Record) -> bool:
    """Whether `out` was made from the same inputs by this version, and its files are all there."""
    if not (out / STAMP).is_file() or not (out / "images").is_dir():
        return False
    found = json.loads((out / STAMP).read_text())
    paths = {out / name: size for name, size in found.pop("files").items()}
    whole = all(path.is_file() and path.stat().st_size == size for path, size in paths.items())
    return whole and found == stamp


def print_table(out: Path) -> None:
    print(f"{'file':<24}{'samples':>9}{'images':>9}")
    total = 0
    for path in sorted(out.glob("*.jsonl")):
        lines = path.read_bytes().splitlines()
        total += len(lines)
        print(f"{path.name:<24}{len(lines):>9,}{b''.join(lines).count(b'images/'):>9,}")
    files = [path for path in (out / "images").rglob("*") if path.is_file()]
    print(f"{'all':<24}{total:>9,}{len(files):>9,} files")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the example corpus.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write it to")
    out: Path = parser.parse_args().out
    inputs = find_inputs()
    stamp = stamp_for(inputs)
    if is_complete(out, stamp):
        print(f"{out}: complete, nothing to do")
    else:
        building = out.absolute().with_name(f".{out.absolute().name}.building")
        shutil.rmtree(building, ignore_errors=True)
        build(building, inputs)
        publish(building, out, stamp)
    print_table(out)


if __name__ == "__main__":
    main()

"""A sound has as many samples as are said without decoding it; what is broken is named."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clips import write_clip, write_sound
from reading import open_media

from packidx.errors import BadRecord
from packidx.records.media.clips import Audio, audio_info, resampled_length
from packidx.records.media.opener import media_info
from packidx.records.media.paths import MediaRoot
from packidx.records.read import parse_record

FILES: list[tuple[str, dict[str, Any]]] = [
    ("a.wav", {"samples": 16001}),
    ("stereo.wav", {"samples": 7, "rate": 44100, "channels": 2}),
    ("float.wav", {"samples": 333, "rate": 8000, "codec": "pcm_f32le"}),
    ("deep.wav", {"samples": 12345, "rate": 48000, "channels": 2, "codec": "pcm_s24le"}),
    ("coarse.wav", {"samples": 999, "rate": 11025, "codec": "pcm_u8"}),
    ("mu.wav", {"samples": 801, "rate": 8000, "codec": "pcm_mulaw"}),
    ("a.flac", {"samples": 22051, "rate": 22050, "channels": 2, "codec": "flac"}),
    ("a.mp3", {"samples": 33333, "rate": 44100, "channels": 2, "codec": "libmp3lame"}),
    ("a.ogg", {"samples": 4801, "rate": 48000, "codec": "libopus"}),
    ("a.m4a", {"samples": 24000, "rate": 24000, "codec": "aac"}),
    ("a.aiff", {"samples": 1600, "codec": "pcm_s16be"}),
]


def decoded(path: Path) -> np.ndarray:
    """All that PyAV decodes, as float32 ``[channels, n]``."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        same = av.AudioResampler("fltp", stream.layout.name, stream.rate)
        frames = [f for frame in container.decode(stream) for f in same.resample(frame)]
    return np.concatenate([frame.to_ndarray() for frame in frames], axis=1)


@pytest.mark.parametrize(("name", "options"), FILES)
def test_what_is_said_is_what_decoding_gives(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    path = write_sound(tmp_path / name, **options)
    pieces = decoded(path)
    info = audio_info(str(path))
    assert (info.num_samples, info.sampling_rate) == (pieces.shape[1], options.get("rate", 16000))
    if name != "a.m4a":  # whose last frame is decoded whole
        assert info.num_samples == options["samples"]
    assert audio_info(path.read_bytes()) == info == Audio(path.read_bytes()).info
    same = Audio(str(path)).waveform(info.sampling_rate)
    assert same.dtype == np.float32
    np.testing.assert_allclose(same, pieces.mean(axis=0), atol=1e-6)
    for wanted in (8000, 16000, 24000, 48000):
        length = resampled_length(info.num_samples, info.sampling_rate, wanted)
        assert length == math.ceil(info.num_samples * wanted / info.sampling_rate)
        assert len(Audio(str(path)).waveform(wanted)) == length


def corrupted(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def test_what_is_broken_is_named(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "silent.mp4", frames=3).read_bytes()
    for data, words in [
        (b"", "empty"),
        (b"nothing at all, and certainly no sound", "cannot be read as audio"),
        (clip, "no audio stream"),
    ]:
        with pytest.raises(BadRecord, match=words) as caught:
            audio_info(data)
        assert caught.value.reason == "broken_media"


def test_a_header_that_lies_is_told_when_the_sound_is_opened(tmp_path: Path) -> None:
    flac = write_sound(tmp_path / "a.flac", samples=4000, codec="flac").read_bytes()
    sound = Audio(corrupted(flac, 24, (4001).to_bytes(2, "big")))
    assert sound.info.num_samples == 4001
    with pytest.raises(BadRecord, match="4000 samples at 16000 Hz where its header says 4001"):
        sound.waveform(16000)


def test_a_wave_written_to_a_pipe_is_decoded_to_be_counted(tmp_path: Path) -> None:
    data = write_sound(tmp_path / "a.wav", samples=4000).read_bytes()
    at = data.index(b"data") + 4
    piped = corrupted(corrupted(data, 4, b"\xff" * 4), at, b"\xff" * 4)
    assert audio_info(piped).num_samples == 4000


def test_every_dialect_opens_the_same_sound(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "a.wav", samples=4000)
    content = path.read_bytes()
    encoded = base64.b64encode(content).decode()
    uri = f"data:audio/wav;base64,{encoded}"
    root = MediaRoot(str(tmp_path))
    parts = [
        {"type": "audio", "audio": "a.wav"},
        {"type": "audio", "audio": {"bytes": content, "path": None}},
        {"type": "audio", "path": str(path)},
        {"type": "audio_url", "audio_url": {"url": uri}},
        {"type": "audio_url", "audio_url": "a.wav"},
        {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": uri, "format": "wav"}},
        {"audio": "a.wav"},
    ]
    records: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]}
        for part in parts
    ]
    turns = [{"from": "human", "value": "<audio>?"}]
    for entry in ("a.wav", {"path": "a.wav"}, {"bytes": content, "path": "x"}, content):
        records.append({"conversations": turns, "audios": [entry]})
        records.append({"conversations": turns, "audio": entry})
    records.append({"audio": {"bytes": content, "path": None}, "text": "what is said"})
    for record in records:
        [medium] = parse_record(record).media
        assert medium.kind == "audio"
        assert media_info(medium, root).num_samples == 4000, record
        opened = parse_record(open_media(record, root))
        assert isinstance(opened.media[0].ref, Audio), record
        assert len(opened.media[0].ref.waveform(16000)) == 4000
        assert len(opened.turns[0].parts) == (2 if "text" not in record else 1)

"""Small files of video and sound for tests, written with PyAV."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np


def write_clip(
    path: Path,
    *,
    frames: int,
    size: tuple[int, int] = (96, 64),
    fps: str = "10",
    codec: str = "libx264",
    rotation: int = 0,
    times: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
) -> Path:
    """A clip in which every frame differs from every other.

    Args:
        size: (width, height) in pixels, even.
        rotation: degrees that the metadata says.
        times: when each frame is shown, in 1 / fps; one after the other by default.
        options: of the container.
    """
    rate = Fraction(fps)
    with av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        if rotation:
            stream.set_display_rotation(rotation)
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(_picture(number, size), format="rgb24")
            frame.pts = number if times is None else times[number]
            frame.time_base = 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def trim(source: Path, target: Path, first: int, fps: int = 10) -> Path:
    """`source` from frame `first` on, the frames before it kept in the file and hidden."""
    options = {"avoid_negative_ts": "disabled", "use_editlist": "1"}
    with av.open(str(source)) as old, av.open(str(target), "w", options=options) as new:
        stream = old.streams.video[0]
        copy = new.add_stream_from_template(stream)
        for packet in old.demux(stream):
            if packet.dts is not None:
                shift = int(first / fps / stream.time_base)
                packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
                packet.stream = copy
                new.mux(packet)
    return target


def decode(path: Path) -> np.ndarray:
    """All frames as PyAV has them, ``[n, height, width, 3]``, not rotated."""
    with av.open(str(path)) as container:
        found: list[Any] = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    return np.stack(found)


def _picture(number: int, size: tuple[int, int]) -> np.ndarray:
    x, y = np.arange(size[0]), np.arange(size[1])[:, None]
    shades = [x * 2 + number * 9 + 0 * y, y * 3 + number * 5 + 0 * x, (x + y) // 2 + number * 17]
    return np.stack(shades, axis=2).astype(np.uint8)


def write_sound(
    path: Path, *, samples: int, rate: int = 16000, channels: int = 1, codec: str = "pcm_s16le"
) -> Path:
    """A falling tone, half as loud in the second channel."""
    tone = np.sin(np.arange(samples) ** 0.9 * 0.05).astype(np.float32) * 0.4
    layout = "mono" if channels == 1 else "stereo"
    wave = np.stack([tone, tone / 2][:channels], axis=1).reshape(1, -1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wave), "flt", layout)
        frame.sample_rate, frame.pts = rate, 0
        size = stream.codec_context.frame_size or None
        resampler = av.AudioResampler(stream.format, layout, rate, frame_size=size)
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return path

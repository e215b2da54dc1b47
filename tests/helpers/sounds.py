"""Small files of sound for tests, written with PyAV."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np


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

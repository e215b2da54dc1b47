"""Sound: how long a file's is, and the sound itself, as one channel at the rate that is wanted.

A header is believed where it counts samples (WAV, FLAC); a file of any other kind is decoded once
to count them, since its packets hold more than is heard. What is opened must have as many samples
as were counted. Sound is mixed down, and its length after resampling rounded up, as transformers'
`load_audio` does with its back end soundfile. A video's own sound is not looked at.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from packidx.errors import BadRecord
from packidx.records.conversation import MediaInfo
from packidx.records.media.images import Source, label_of
from packidx.records.media.video import local, opened

Samples = NDArray[np.float32]

_PIECE = 1 << 16


class Audio:
    """Sound that can be looked at and decoded; holds no file open.

    Args:
        source: a path, a URL, a file's bytes, or where they lie.
        label: how errors name it; by default the path.
    """

    def __init__(self, source: Source, label: str | None = None) -> None:
        self.source = source
        self.label = label or label_of(source, "a sound")

    @functools.cached_property
    def info(self) -> MediaInfo:
        """How many samples it has, and its rate.

        Raises:
            BadRecord, MissingExtraError: as `audio_info`.
        """
        stated = _stated_by_header(self.source, self.label)
        if stated is None:
            samples, rate = self._decoded  # kept: who asks for this wants the sound as well
            stated = _info(len(samples), rate, self.label)
        return stated

    def waveform(self, sampling_rate: int) -> Samples:
        """All of it, in one channel.

        Args:
            sampling_rate: samples per second that are wanted.

        Returns:
            float32 ``[n]`` within -1 and 1, n as `resampled_length` has it.

        Raises:
            BadRecord: ``broken_media``: it cannot be decoded, or not as its header says.
            MissingExtraError: PyAV is not installed.
        """
        samples, rate = self._decoded
        if (len(samples), rate) != (self.info.num_samples, self.info.sampling_rate):
            stated = f"{self.info.num_samples} at {self.info.sampling_rate} Hz"
            raise BadRecord(
                "broken_media",
                f"{self.label} has {len(samples)} samples at {rate} Hz where its header says "
                f"{stated}: write it anew",
            )
        return _resampled(samples, rate, sampling_rate)

    @functools.cached_property
    def _decoded(self) -> tuple[Samples, int]:
        """All samples, mixed down, and their rate."""
        pieces, rate = [], 0
        for piece, rate in _decode(self.source, self.label):  # noqa: B007, the last rate is all's
            pieces.append(piece.mean(axis=0, dtype=np.float32))
        return np.concatenate([np.zeros(0, np.float32), *pieces]), rate


def resampled_length(num_samples: int, rate: int, wanted: int) -> int:
    """Samples that sound has at another rate."""
    return -(-num_samples * wanted // rate)


def audio_info(source: Source, label: str | None = None) -> MediaInfo:
    """Return how many samples a file of sound has in each channel, and its rate.

    Raises:
        BadRecord: ``missing_media`` or ``broken_media``.
        MissingExtraError: PyAV, which decodes all but WAV and FLAC, is not installed.
    """
    label = label or label_of(source, "a sound")
    stated = _stated_by_header(source, label)
    if stated is not None:
        return stated
    num_samples = rate = 0
    for piece, rate in _decode(source, label):  # noqa: B007, the last rate is all's
        num_samples += piece.shape[1]
    return _info(num_samples, rate, label)


def _info(num_samples: int, rate: int, label: str) -> MediaInfo:
    if num_samples < 1 or rate < 1:
        raise BadRecord("broken_media", f"{label} has {num_samples} samples at {rate} Hz")
    return MediaInfo(0, 0, num_samples=num_samples, sampling_rate=rate)


def _stated_by_header(source: Source, label: str) -> MediaInfo | None:
    """Return what the header of a WAV or a FLAC counts; None of any other file, or where it does
    not."""
    with opened(source, label, "audio") as (container, stream):
        rate, num_samples = int(stream.rate), int(stream.duration or 0)
        is_pcm = container.format.name == "wav" and stream.codec_context.name.startswith("pcm_")
        is_counted = stream.time_base == Fraction(1, rate or 1) and num_samples > 0
        if not is_counted or not (is_pcm or container.format.name == "flac"):
            return None
    return _info(num_samples, rate, label)


# -- samples ---------------------------------------------------------------------------------------


def _decode(source: Source, label: str) -> Iterator[tuple[Samples, int]]:
    """Pieces ``[channels, n]`` with their rate, which is the same for all."""
    with opened(local(source, label), label, "audio") as (container, stream):
        import av

        as_floats = av.AudioResampler(format="fltp")  # and an error where rate or channels change
        for frame in itertools.chain(container.decode(stream), [None]):
            for piece in as_floats.resample(frame):
                yield np.asarray(piece.to_ndarray(), np.float32), int(piece.sample_rate)


def _resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """By FFmpeg's resampler, which transformers' first back end, torchcodec, has as well."""
    if rate == wanted:
        return samples
    import av

    resampler = av.AudioResampler(format="flt", layout="mono", rate=wanted)
    pieces = []
    for start in range(0, len(samples), _PIECE):
        frame = av.AudioFrame.from_ndarray(samples[None, start : start + _PIECE], "flt", "mono")
        frame.sample_rate = rate
        pieces += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
    pieces += [piece.to_ndarray()[0] for piece in resampler.resample(None)]
    length = resampled_length(len(samples), rate, wanted)
    whole = np.concatenate([*pieces, np.zeros(length, np.float32)])
    return np.ascontiguousarray(whole[:length], np.float32)

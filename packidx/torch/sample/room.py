"""``on_mismatch="fit"``: samples as long as they are, in packs that were planned of other lengths.

What does not fit a pack is left out of it, as little as can be: of all ways to leave samples out
until the rest fits, the one with the fewest tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from packidx.errors import OptionError
from packidx.format.index import IndexManifest
from packidx.index import Pack, Sample
from packidx.torch.sample.encoded import Encoded, PlanMismatch
from packidx.torch.sample.events import Happened, event
from packidx.torch.sample.fitting import extend, pad_tokens, up_to


def room_of(snapshot: IndexManifest) -> int:
    """Tokens that the samples of one pack may take, its margin included.

    Raises:
        OptionError: the plan has pieces of samples at places that were guessed, or pairs.
    """
    if snapshot.has_pairs:
        raise OptionError(
            "on_mismatch 'fit' may leave one side of a preference pair out, and this plan has"
            " pairs: count their lengths exactly, and read them with 'error'"
        )
    options, result = snapshot.options, snapshot.result
    each = result.num_samples * options.epochs
    is_cut = result.num_pieces != each or bool(options.weights)
    if options.on_long == "split" and is_cut and not is_exact(snapshot):
        raise OptionError(
            "on_mismatch 'fit' cannot read this plan: --on-long split has cut samples of lengths"
            " that were not counted exactly, so nobody knows where their pieces really begin: plan"
            " with --on-long drop or truncate"
        )
    return (options.capacity - options.reserve) // options.pad_pack_to * options.pad_pack_to


def is_exact(snapshot: IndexManifest) -> bool:
    """Whether all lengths of a plan were counted exactly."""
    methods = snapshot.lengths.methods
    return bool(methods.get("exact")) and not any(
        number for name, number in methods.items() if name != "exact"
    )


@dataclass(slots=True)
class Fitted:
    """What fits of a pack: its samples as planned and as encoded, padded to `align`.

    Attributes:
        filler: pad tokens that stand in a pack of which no sample is left; else None.
    """

    pack: Pack
    samples: list[Encoded]
    padded: list[int] = field(default_factory=list)
    filler: Encoded | None = None


def fit_in(
    pack: Pack,
    samples: Sequence[Encoded | None],
    room: int,
    align: int,
    pad_token_id: int,
    happened: Happened,
) -> Fitted:
    """The samples of `pack` that fit its room, in order of their positions.

    Args:
        samples: as long as they are; None for those that were left out already.
        room: tokens that they may take.
        happened: what does not fit is added here.
    """
    read = [(number, sample) for number, sample in enumerate(samples) if sample is not None]
    padded = [up_to(sample.length, align) for _, sample in read]
    out = set(fewest_tokens(padded, room))
    for at in sorted(out):
        number, sample = read[at]
        planned = pack.samples[number]
        beside = sum(padded) - padded[at]
        error = PlanMismatch(
            f"encoded to {sample.length} tokens but planned as {planned.length}: beside {beside}"
            f" tokens of {len(read) - 1} others there is no room for it in the {room} of its pack"
        )
        happened.append(event("no_room", "left_out", planned, error, sample.length))
    kept = [at for at in range(len(read)) if at not in out]
    left = replace(pack, samples=[_known_of(pack.samples[read[at][0]], read[at][1]) for at in kept])
    filler = None
    if not kept:
        shape = replace(read[0][1].between(0, 0), media={}) if read else pad_tokens(0, pad_token_id)
        filler = extend(shape, align, pad_token_id)
    return Fitted(left, [read[at][1] for at in kept], [padded[at] for at in kept], filler)


def _known_of(planned: Sample, sample: Encoded) -> Sample:
    """`planned` without media that may be others than those of `sample`."""
    return planned if planned.length == sample.length else planned._replace(media=None)


def fewest_tokens(sizes: Sequence[int], room: int) -> list[int]:
    """Which of `sizes` to leave out so that the rest fits `room`, with the fewest tokens.

    Of equal ways the one that keeps the earlier ones. None that is left out would fit the rest: it
    would then have been kept. Subset sums as the bits of one integer (Bellman, Dynamic Programming,
    1957): bit s of `sums` says that some of the sizes so far add up to s.
    """
    if sum(sizes) <= room:
        return []
    mask = (1 << (room + 1)) - 1
    reached = [1]
    for size in sizes:
        reached.append((reached[-1] | reached[-1] << size if size <= room else reached[-1]) & mask)
    total = reached[-1].bit_length() - 1
    out = []
    for number in range(len(sizes) - 1, -1, -1):
        if reached[number] >> total & 1:
            out.append(number)
        else:
            total -= sizes[number]
    return out[::-1]

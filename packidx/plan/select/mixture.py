"""Copies of each source's samples in an epoch: weights in, a number of copies each out.

A weight w is the mean number of copies of a sample of the source. Each gets ⌊w⌋, and one more if
the hash of (seed, source, place in the source) lies below the fraction of w: exact integer
arithmetic, so the copies do not depend on what other sources are in the table, and a larger weight
only adds some. Weights are exact
fractions out of the decimals that the user wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from packidx.arrays import Int64s, Uint64s
from packidx.errors import FormatError, OptionError
from packidx.hashing import is_below_share
from packidx.plan.options import number_text, read_number, round_number

MAX_REPEATS = 1 << 16


@dataclass(frozen=True, slots=True)
class SourceTotals:
    """Usable samples of one source, added up.

    Attributes:
        num_samples: samples that are not rejected and have a length.
        num_tokens: Σ length.
    """

    num_samples: int = 0
    num_tokens: int = 0


def weights_of(
    mix: Sequence[str], totals: Mapping[str | None, SourceTotals], sources: Sequence[Any]
) -> dict[str, str]:
    """Return how often samples of each source are seen per epoch, of sources not seen once.

    Args:
        mix: of `PlanOptions`.
        totals: by source.
        sources: of a manifest.

    Raises:
        OptionError, FormatError: as of `Mixture` and `sample_ratios`.
    """
    resolved = Mixture.parse(mix).resolve(totals, sample_ratios(sources))
    named = {name: weight for name, weight in resolved.items() if name is not None}
    return {name: number_text(named[name]) for name in sorted(named) if named[name] != 1}


@dataclass(frozen=True, slots=True)
class Mixture:
    """The weights that the user asked for, source by source.

    Attributes:
        is_shared: weights are percents of the epoch's tokens, whose sum may be anything; else the
            number of times that each sample of the source is seen per epoch.
        weights: by source, sorted by its name.
    """

    is_shared: bool
    weights: dict[str, Fraction]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Mixture:
        """A mixture out of ``source=weight`` or ``source=percent%`` texts.

        Raises:
            OptionError: one has another form, no number from 0 on as weight, or a source that an
                earlier one has; some are percents, and some are not; or all percents are 0.
        """
        is_shared = any(text.endswith("%") for text in texts)
        weights: dict[str, Fraction] = {}
        for text in texts:
            if text.endswith("%") != is_shared:
                raise OptionError(
                    f"mix has shares, such as web=30%, and {text!r:.80}, which is none: give all "
                    "sources a share, or none"
                )
            source, equals, number = text.removesuffix("%").rpartition("=")
            if not equals or not source:
                text = text.removesuffix("%")
                raise OptionError(f"mix has {text!r:.80}: write source=weight, such as web=2")
            weight = read_number(number)
            if weight is None:
                raise OptionError(
                    f"mix gives source {source!r} weight {number!r:.40}, which is not a number: "
                    "write one such as 2, 0.5 or 1/3"
                )
            if weight < 0:
                raise OptionError(
                    f"mix gives source {source!r} weight {number}: it must be 0 or more"
                )
            if source in weights:
                raise OptionError(f"mix names source {source!r} twice: give it one weight")
            if not is_shared:
                _check_repeats(source, weight)
            weights[source] = weight
        if is_shared and not sum(weights.values()):
            raise OptionError("mix shares out no tokens: give a source a share above 0")
        return cls(is_shared, dict(sorted(weights.items())))

    def resolve(
        self, totals: Mapping[str | None, SourceTotals], ratios: Mapping[str, Fraction]
    ) -> dict[str | None, Fraction]:
        """The mean number of copies of a sample, by source; 0 drops the source.

        A source that no weight names keeps its `sample_ratio`, else 1. Shares are turned into
        repeats such that the epoch has as many tokens as without a mix, and rounded to 9 decimals.

        Args:
            totals: what the samples that a plan may use add up to, by source, None if unnamed.
            ratios: the sample_ratio of the sources that state one (`sample_ratios`).

        Raises:
            OptionError: a weight names no source of the table, or shares cannot be computed.
        """
        self._check_names(totals)
        repeats = {
            name: ratios.get(name, Fraction(1)) if name is not None else Fraction(1)
            for name in totals
        }
        if not self.is_shared:
            asked = {name: self.weights.get(name or "", repeats[name]) for name in totals}
            if totals and not any(asked.values()):
                raise OptionError("mix gives every source weight 0: keep one")
            return asked
        epoch = sum(repeats[name] * totals[name].num_tokens for name in totals)
        resolved: dict[str | None, Fraction] = dict.fromkeys(totals, Fraction(0))
        for name, weight in self.weights.items():
            if weight and not totals[name].num_tokens:
                raise OptionError(
                    f"mix asks for tokens of source {name!r}, which has none: give it share 0"
                )
            if weight:
                share = weight / sum(self.weights.values())
                resolved[name] = round_number(epoch * share / totals[name].num_tokens)
                _check_repeats(name, resolved[name])
        return resolved

    def _check_names(self, totals: Mapping[str | None, SourceTotals]) -> None:
        known = sorted(name for name in totals if name is not None)
        listed = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
        for name in self.weights:
            if name not in totals:
                raise OptionError(
                    f"mix gives source {name!r} a weight, and these lengths have no such source: "
                    f"choose from {listed or 'none, as they have no column `source`'}"
                )
        missing = [name for name in totals if name not in self.weights and totals[name].num_samples]
        if self.is_shared and missing:
            raise OptionError(
                f"mix shares out tokens and leaves out source {missing[0]!r}: give every source a "
                f"share ({listed}), 0% to drop it"
            )


def _check_repeats(source: str, weight: Fraction) -> None:
    if weight > MAX_REPEATS:
        raise OptionError(
            f"mix repeats source {source!r} {float(weight):g} times: {MAX_REPEATS} are the most"
        )


def sample_ratios(sources: Sequence[Any]) -> dict[str, Fraction]:
    """The sample_ratio of each source of a manifest that has another one than 1.

    Raises:
        FormatError: one is not a number from 0 on.
    """
    ratios = {}
    for source in sources:
        if source.layout is None or source.layout.sample_ratio == 1:
            continue
        ratio = source.layout.sample_ratio
        # str() first: 0.1 means 1/10, not the binary fraction next to it.
        weight = read_number(str(ratio))
        if weight is None or not 0 <= weight <= MAX_REPEATS:
            raise FormatError(
                f"sources of the lengths: {source.name!r} has sample_ratio {ratio!r}, "
                f"which is not a number from 0 to {MAX_REPEATS}"
            )
        ratios[source.name] = weight
    return ratios


def copies_of(weight: Fraction, hashes: Uint64s) -> Int64s:
    """⌊weight⌋, and one more where hash < the rest * 2^64: int64 [n]; `hashes` are of each sample's
    place and the seed, uint64 [n]."""
    floor = weight.numerator // weight.denominator
    return floor + is_below_share(hashes, weight - floor).astype(np.int64)

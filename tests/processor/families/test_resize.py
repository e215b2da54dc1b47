"""Image arithmetic equals transformers', bit for bit, on more than a million sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize as reference

from packidx.processor.families import FAMILIES, find_family
from packidx.processor.families.base import smart_resize

LIMITS = [
    (28, 56 * 56, 28 * 28 * 1280),
    (28, 3136, 12_845_056),
    (32, 65_536, 16_777_216),
    (28, 4 * 28 * 28, 16_384 * 28 * 28),
    (32, 1, 1024),
]


def expected(height: int, width: int, *limits: int) -> tuple[int, int]:
    try:
        return reference(height, width, *limits)
    except (ValueError, ZeroDivisionError):
        return 0, 0


def check(heights: np.ndarray, widths: np.ndarray, limits: tuple[int, int, int]) -> None:
    got = np.stack(smart_resize(heights, widths, *limits), axis=1)
    pairs = zip(heights.tolist(), widths.tolist(), strict=True)
    want = np.array([expected(h, w, *limits) for h, w in pairs])
    wrong = np.flatnonzero((got != want).any(axis=1))
    assert wrong.size == 0, (heights[wrong[:3]], widths[wrong[:3]], got[wrong[:3]], want[wrong[:3]])


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("scale", [64, 3000, 60_000])
def test_random_sizes(limits: tuple[int, int, int], scale: int) -> None:
    rng = np.random.default_rng(scale)
    check(*rng.integers(1, scale, (2, 60_000)), limits)


@pytest.mark.parametrize("limits", LIMITS)
def test_exact_quotients_ties_and_limits(limits: tuple[int, int, int]) -> None:
    factor, min_pixels, max_pixels = limits
    near = np.arange(1, 60)[:, None] * factor // 2 + np.array([-1, 0, 1])  # ties are odd multiples
    sides = np.unique(near[near > 0])
    check(*(axis.ravel() for axis in np.meshgrid(sides, sides)), limits)
    # Products on the limits, and sizes whose quotient by beta is whole (Polars gets them wrong).
    heights = np.arange(1, 3000)
    for pixels in (min_pixels, max_pixels, 4 * max_pixels, 9 * max_pixels):
        for off in (-1, 0, 1):
            check(heights, np.maximum(pixels // heights + off, 1), limits)
    check(np.array([2250, 20_000]), np.array([20_000, 2250]), limits)
    check(np.array([1, 1, 200, 201, 400, 401]), np.array([200, 201, 1, 1, 2, 2]), limits)


@pytest.mark.parametrize("limits", LIMITS[:3])
def test_quotients_that_are_whole(limits: tuple[int, int, int]) -> None:
    """Shapes whose shrunk sides are exact multiples: another order of operations fails."""
    factor, _, max_pixels = limits
    cells = max_pixels // factor**2
    times = np.arange(1, 1200)
    for rows in (n for n in range(1, cells + 1) if cells % n == 0):
        columns = cells // rows
        if max(rows, columns) <= 200 * min(rows, columns):
            check(rows * times, columns * times, limits)


@given(
    st.lists(st.tuples(st.integers(-1, 10**6), st.integers(-1, 10**6)), min_size=1),
    st.sampled_from(LIMITS),
)
def test_any_sizes(sizes: list[tuple[int, int]], limits: tuple[int, int, int]) -> None:
    heights, widths = np.array(sizes).T
    got = np.stack(smart_resize(heights, widths, *limits), axis=1).tolist()
    for (height, width), pair in zip(sizes, got, strict=True):
        possible = height > 0 and width > 0
        assert tuple(pair) == (expected(height, width, *limits) if possible else (0, 0))


def test_grids_and_tokens() -> None:
    vision = FAMILIES["Qwen2_5_VLProcessor"].read({"max_pixels": 12_845_056}, None, {})[0]
    counts = vision.count_images([(300, 400), (1, 201), (56, 56)])
    assert counts.grids.tolist() == [[1, 22, 28], [0, 0, 0], [1, 4, 4]]
    assert counts.tokens.tolist() == [154, 0, 4]
    assert counts.patches.tolist() == [616, 0, 16]
    assert counts.cost.tolist() == [616**2, 0, 256]
    assert vision.count_images([]).grids.shape == (0, 3)


def test_families_are_told_apart() -> None:
    image = {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16}
    assert find_family(None, image) is FAMILIES["Qwen3VLProcessor"]
    assert find_family(None, image | {"patch_size": 14}) is FAMILIES["Qwen2_5_VLProcessor"]
    assert find_family("Qwen2VLProcessor", image) is FAMILIES["Qwen2VLProcessor"]
    assert find_family("Qwen2_5OmniProcessor", image) is None
    assert find_family(None, {"image_processor_type": "CLIPImageProcessor"}) is None

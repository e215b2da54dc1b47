"""Packs of one shape for compiled models and CUDA graphs: `--pad-pack-to` and `max_samples`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_packs import make_index, record
from tiny_models import TinyEncode, fresh

from packidx.errors import OptionError
from packidx.torch import Pack, PackedDataset, collate
from packidx.torch.prepare import prepare_model

LENGTH, MOST = 96, 12
STEPS = 50
TEXT_KEYS = ("input_ids", "labels", "position_ids", "padding_mask")
BOUNDS = {
    "flash": ("cu_seq_lens_q", "cu_seq_lens_k"),
    "thd": ("cu_seqlens", "cu_seqlens_padded", "max_seqlen"),
}


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> list[Pack]:
    """Packs of 96 tokens, of 1 to 12 samples each."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(3, 90, (160,), generator=generator).tolist()
    records = [record(number, [length]) for number, length in enumerate(lengths)]
    index = make_index(
        tmp_path_factory.mktemp("index"), {"all": records}, capacity=LENGTH, pad_pack_to=LENGTH
    )
    packs = list(PackedDataset(index, TinyEncode("qwen3", None)))
    assert len(packs) >= STEPS and len({len(pack) for pack in packs}) > 2
    return packs


@pytest.mark.parametrize("attention", ["flash", "thd"])
def test_every_tensor_of_text_has_one_shape(attention: str, packs: list[Pack]) -> None:
    batches = [collate(pack, attention, max_samples=MOST) for pack in packs]
    for key in (*TEXT_KEYS, *BOUNDS[attention]):
        assert len({tuple(batch[key].shape) for batch in batches}) == 1, key
    longest = {"flash": "max_length_q", "thd": "max_seqlen"}[attention]
    assert {int(batch[longest]) for batch in batches} == {LENGTH}
    assert len({frozenset(batch) for batch in batches}) == 1


def test_empty_samples_stand_at_the_end(packs: list[Pack]) -> None:
    for pack in packs[:10]:
        lengths = [len(sample["input_ids"]) for sample in pack.samples]
        empty = [0] * (MOST - len(lengths))
        own = collate(pack, "thd", max_samples=MOST)
        assert own["cu_seqlens"].diff().tolist() == [*lengths, *empty]
        slots = own["cu_seqlens_padded"].diff()
        assert slots.sum() == LENGTH and slots[: len(pack) - 1].tolist() == lengths[:-1]
        flash = collate(pack, "flash", max_samples=MOST)
        assert torch.equal(flash["cu_seq_lens_q"].diff(), slots)


def test_more_samples_than_there_is_room_for_are_refused(packs: list[Pack]) -> None:
    most = max(packs, key=len)
    with pytest.raises(
        OptionError, match=f"{len(most)} samples and max_samples is {len(most) - 1}"
    ):
        collate(most, "flash", max_samples=len(most) - 1)
    with pytest.raises(OptionError, match="attention 'sdpa' does not have"):
        collate(most, "sdpa", max_samples=MOST)


def test_compiled_text_layers_are_one_graph_in_fifty_steps(packs: list[Pack]) -> None:
    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = prepare_model(fresh("qwen3"))
    text = model.model
    model.model.forward = torch.compile(text.forward, backend=count, dynamic=False, fullgraph=True)
    torch._dynamo.reset()
    with torch.no_grad():
        for pack in packs[:STEPS]:
            model(**collate(pack))
    assert len(graphs) == 1

"""A run without memory knows what follows from whole numbers, assumes the rest by rule, and never mixes the two up."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from day0.models.fake import FakeValues, KnownTensor, known
from day0.models.known import KNOWN_BYTES


def test_whole_numbers_keep_their_values_and_others_have_none() -> None:
    with FakeValues() as fake:
        ids = known(torch.tensor([[1, 5, 5]]))
        weights = torch.empty(8, 4)
        rows = torch.nn.functional.embedding(ids, weights)
        assert (ids == 5).sum().item() == 2
        assert (ids + 1).tolist() == [[2, 6, 6]]
        assert (rows.device.type, tuple(rows.shape), type(rows)) == ("meta", (1, 3, 4), torch.Tensor)
    assert not fake.assumed


def test_every_tensor_is_on_meta_whatever_was_asked_for() -> None:
    with FakeValues():
        made = [torch.arange(3), torch.zeros(2, device="cpu"), torch.tensor([1.0], device="meta"), torch.randn(2)]
        assert [one.device.type for one in made] == ["meta"] * 4
        assert made[0].to("cpu").device.type == "meta"


@pytest.mark.parametrize("make", [lambda: torch.tensor([3], device="meta"), lambda: torch.arange(9).new_tensor([3])])
def test_data_given_to_a_meta_tensor_is_kept(make: object) -> None:
    with FakeValues():
        assert callable(make)
        assert make().tolist() == [3]
        assert torch.tensor([torch.arange(4).sum(), 1]).tolist() == [6, 1]


def test_what_is_written_to_with_unknown_values_is_forgotten() -> None:
    with FakeValues() as fake:
        counts = torch.zeros(4)
        part = counts[1:]
        assert isinstance(part, KnownTensor)
        assert part.sum().item() == 0.0
        part.copy_(torch.empty(3))
        total = counts.sum()
        assert not isinstance(total, KnownTensor), "a view's new values are the base's too"
        assert total.item() == 1.0  # assumed
    assert sum(fake.assumed.values()) == 1


def test_in_place_on_known_values_stays_known() -> None:
    with FakeValues():
        mask = torch.zeros(3, dtype=torch.bool)
        assert mask.fill_(True) is mask
        assert mask.all().item() is True


def test_chosen_experts_are_spread_evenly() -> None:
    with FakeValues() as fake:
        scores_TE = torch.empty(6, 4)
        _, chosen_TK = torch.topk(scores_TE, 2, dim=-1)
        assert torch.bincount(chosen_TK.flatten(), minlength=4).tolist() == [3, 3, 3, 3]
        assert all(len(set(row)) == 2 for row in chosen_TK.tolist())
    assert fake.assumed == {"topk indices": 1}


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_indices_fit_the_dimension_that_they_index(dim: int) -> None:
    with FakeValues():
        values, indices = torch.empty(5, 3, 7).topk(2, dim=dim)
        assert values.shape == indices.shape
        assert isinstance(indices, KnownTensor)
        assert int(indices.held.max()) < (5, 3, 7)[dim]
        assert torch.empty(5, 3).argmax(-1).tolist() == [0, 1, 2, 0, 1]


def test_masks_of_known_values_select_as_many_as_they_do() -> None:
    with FakeValues() as fake:
        rows = torch.empty(4, 2)
        mask = torch.arange(4) > 1
        assert tuple(rows[mask].shape) == (2, 2)
        assert tuple(rows.masked_select(mask[:, None]).shape) == (4,)
    assert not [name for name in fake.assumed if name != "masked_select"]


def test_a_mask_and_its_negation_fit_together() -> None:
    with FakeValues():
        likely = torch.empty(6) > 0.5
        assert int(likely.sum()) + int((~likely).sum()) == 6


def test_checks_on_unknown_values_hold() -> None:
    with FakeValues() as fake:
        values = torch.empty(3)
        assert bool((values == values.abs()).all())
        assert not bool(values.isnan().any())
    assert fake.assumed["all"] and fake.assumed["any"]


def test_large_tensors_are_not_computed() -> None:
    with FakeValues():
        large = torch.zeros(KNOWN_BYTES + 1, dtype=torch.uint8)
        assert type(large) is torch.Tensor
        wide = torch.arange(1 << 12)[:, None] * torch.arange(1 << 12)
        assert type(wide) is torch.Tensor


def test_a_module_is_built_without_memory_and_runs() -> None:
    with FakeValues():
        model = nn.Sequential(nn.Embedding(1 << 20, 1 << 14), nn.LayerNorm(1 << 14))
        out = model(known(torch.tensor([[1, 2]])))
    assert tuple(out.shape) == (1, 2, 1 << 14)


def test_outside_the_mode_a_known_tensor_still_works() -> None:
    one = KnownTensor(torch.tensor([2, 3]))
    assert (one + 1).tolist() == [3, 4]
    assert "tensor([2, 3])" in repr(one)

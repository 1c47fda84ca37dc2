"""The vision branch: images keep to themselves, places matter, and pruned tokens keep their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from day0.errors import Day0Error
from day0.models.toy.vision import VisionTower
from tests.models.toys import CONFIG, ids, image, logits, normal, toy

CLOSE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-11}
PATCH = CONFIG.vision_patch


def tower(**changes: Any) -> VisionTower:
    return toy(replace(CONFIG, **changes)).vision_tower


@pytest.mark.parametrize("changes", [{}, {"vision_window": 1}, {"vision_keep": 3}], ids=str)
def test_other_images_of_a_batch_do_not_matter(changes: dict[str, Any]) -> None:
    model, pixels = tower(**changes), image(4)
    order = torch.tensor([2, 0, 3, 1])
    together = model(pixels)
    torch.testing.assert_close(model(pixels[order]), together[order], **CLOSE)
    torch.testing.assert_close(model(pixels[1:2]), together[1:2], **CLOSE)
    assert not torch.allclose(together[0], together[1])


def without_places(**changes: Any) -> VisionTower:
    """Return a tower without a table of positions: what knows of places is the rotation alone."""
    model = tower(**changes)
    model.position_table.zero_()
    return model


def test_a_shifted_image_moves_its_tokens() -> None:
    """Rotation sees differences of places only, so a picture that goes round moves its inner tokens along."""
    model, cell = without_places(vision_window=1, vision_layers=1), PATCH * CONFIG.vision_merge
    pixels = image(1, (5, 6))
    before, after = (model(one).unflatten(1, (5, 6)) for one in (pixels, pixels.roll((cell, 2 * cell), dims=(-2, -1))))
    torch.testing.assert_close(after[:, 2:-1, 3:-1], before[:, 1:-2, 1:-3], **CLOSE)
    assert not torch.allclose(after, before)


def test_the_table_of_positions_tells_places_apart() -> None:
    cell = PATCH * CONFIG.vision_merge
    pixels = image(1, (5, 6))
    before, after = (
        tower(vision_window=1, vision_layers=1)(one).unflatten(1, (5, 6))
        for one in (pixels, pixels.roll((cell, 2 * cell), dims=(-2, -1)))
    )
    assert not torch.allclose(after[:, 2:-1, 3:-1], before[:, 1:-2, 1:-3], rtol=1e-2)


def test_rows_are_not_columns() -> None:
    model = without_places()
    pixels = image(1, (3, 3))
    turned = model(pixels.transpose(-1, -2)).unflatten(1, (3, 3)).transpose(1, 2).flatten(1, 2)
    assert not torch.allclose(turned, model(pixels), rtol=1e-2)


def changed_tokens(model: VisionTower, row: int, column: int) -> torch.Tensor:
    """Return which tokens [rows, columns] of an image of 6 x 6 notice another patch."""
    pixels = image(1, (6, 6))
    other = pixels.clone()
    other[..., row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH] += 1.0
    noticed = (model(pixels) != model(other)).any(dim=-1).unflatten(1, (6, 6))
    return torch.as_tensor(noticed[0])


def test_patches_are_cut_from_where_they_stand() -> None:
    """Without attention a patch reaches its own token: the one of its row and column."""
    model = tower(vision_layers=1, vision_window=0)
    for row, column in ((0, 0), (3, 8), (10, 5), (11, 11)):
        seen = changed_tokens(model, row, column)
        assert seen.nonzero().tolist() == [[row // 2, column // 2]]


@pytest.mark.parametrize(("window", "layers"), [(1, 1), (2, 1), (2, 2)])
def test_a_window_ends_where_it_says(window: int, layers: int) -> None:
    seen = changed_tokens(tower(vision_layers=layers, vision_window=window), 5, 6)
    reach = window * layers
    rows, columns = ({place // 2 for place in range(at - reach, at + reach + 1)} for at in (5, 6))
    expected = torch.zeros(6, 6, dtype=torch.bool)
    expected[min(rows) : max(rows) + 1, min(columns) : max(columns) + 1] = True
    assert torch.equal(seen, expected)


def test_without_a_window_everything_is_seen_and_global_patches_see_everything() -> None:
    assert bool(changed_tokens(tower(vision_layers=1), 5, 6).all())
    model = tower(vision_layers=1, vision_window=1, vision_global_tokens=1)
    assert bool(changed_tokens(model, 0, 0).all()), "the first patch is not seen by all"
    seen = changed_tokens(model, 10, 10)
    assert bool(seen[0, 0]) and not bool(seen[0, 1]), "the first patch does not see all, or another one does"


def test_pruning_keeps_the_most_important_tokens_in_their_order() -> None:
    pruned, whole = (toy(replace(CONFIG, vision_keep=keep)).vision_tower for keep in (4, 9))
    pixels = image(3, (3, 3))
    all_BGD, kept_BGD = whole(pixels), pruned(pixels)
    assert kept_BGD.shape[1] == 4 == pruned.tokens(pixels)
    orders = []
    for row in range(3):
        score_G = (all_BGD[row] * pruned.importance.weight[0]).sum(dim=-1)
        expected = sorted(sorted(range(9), key=lambda place: -float(score_G[place]))[:4])
        torch.testing.assert_close(kept_BGD[row], all_BGD[row, expected], **CLOSE)
        orders.append(expected)
    assert len({tuple(one) for one in orders}) > 1, "every image keeps the same places"


def test_pruning_more_than_there_is_keeps_all() -> None:
    pixels = image(2, (1, 2))
    torch.testing.assert_close(tower(vision_keep=9)(pixels), tower()(pixels), **CLOSE)
    assert tower(vision_keep=9).tokens(pixels) == 2


@pytest.mark.parametrize("cells", [(1, 1), (1, 3), (4, 2), (6, 5)])
def test_any_image_of_whole_cells_fits(cells: tuple[int, int]) -> None:
    pixels, model = image(2, cells), toy()
    visual = cells[0] * cells[1]
    assert model.vision_tower.tokens(pixels) == visual
    assert logits(model, ids(2, visual + 2), pixels).shape == (2, visual + 2, CONFIG.vocab_size)


def test_placeholders_say_nothing() -> None:
    model, pixels = toy(), image(1)
    one, other = ids(1, 12), ids(1, 12)
    other[:, :6] = 7
    assert torch.equal(logits(model, one, pixels), logits(model, other, pixels))
    assert not torch.allclose(logits(model, one, pixels), logits(model, one, image(1, seed=1)))


def test_a_tower_refuses_what_it_cannot_cut() -> None:
    with pytest.raises(Day0Error, match="expected height and width to be multiples of 8, got 12 x 16"):
        tower()(normal(1, 3, 12, 16))

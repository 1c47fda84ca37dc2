"""Every adapter on models of transformers: what they compute with it against what they compute by themselves."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from day0.models.adapters.adapt import adapt, adapted
from day0.models.adapters.load import load_adapters
from day0.reference_ops.agreement._widened import Widened
from tests.models.adapters.models import FITS, ids, logits, small


def test_every_adapter_is_tried_on_a_model() -> None:
    assert {name for fits in FITS.values() for name in fits} == set(load_adapters())


def away(values: list[torch.Tensor], golden: list[torch.Tensor]) -> float:
    """Return the median of the tokens' relative errors: rounding alone sends a token or two to other experts."""
    rows, gold = (torch.cat([one.double().flatten(0, 1) for one in side]) for side in (values, golden))
    return float(((rows - gold).norm(dim=-1) / gold.norm(dim=-1)).median())


def runs() -> list[Any]:
    """Return each model with whether narrow dtypes are tried; what takes long and fits others too is in the long suite."""
    slow = [pytest.param(name, True, marks=pytest.mark.slow) for name in ("mixtral", "deepseek_v4", "glm5_next")]
    names = {one.values[0] for one in slow}
    return [*((name, True) for name in FITS if name not in names), ("glm5_next", False), *slow]


@pytest.mark.parametrize(("name", "narrow"), runs())
def test_a_model_computes_the_same_with_adapters(name: str, narrow: bool) -> None:
    """Tight in float64; in the narrow dtypes no further from that than its own code, with the ratio of the operators."""
    ids_BS = ids(name, 34)
    model = small(name, torch.float64)
    with torch.no_grad(), Widened():
        golden = logits(model, ids_BS)
        done = adapt(model, ("all",))
        assert {key: sum(kinds.values()) for key, kinds in done.classes.items()} == FITS[name]
        torch.testing.assert_close(logits(model, ids_BS), golden, rtol=1e-11, atol=1e-12)
    for dtype in (torch.float32, torch.bfloat16) if narrow else ():
        model = small(name, dtype)
        with torch.no_grad():
            own = logits(model, ids_BS)
            with adapted(model, ("all",)):
                ours = logits(model, ids_BS)
            torch.testing.assert_close(logits(model, ids_BS), own, rtol=0.0, atol=0.0)
        assert [one.dtype for one in ours] == [one.dtype for one in own]
        assert away(ours, golden) < max(3.0 * away(own, golden), {torch.float32: 1e-5, torch.bfloat16: 0.02}[dtype])


@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa"])
def test_the_indexer_chooses_the_same_tokens(name: str) -> None:
    """What its own code fills rows with that see fewer tokens is masked again, so it is not compared."""
    model, ids_BS = small(name), ids(name, 30)
    for one in model.modules():
        if type(one).__name__.endswith("Indexer"):
            one.index_topk = 7
    kept: list[tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]] = []

    def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> None:
        kept.append((args, {**kwargs, "cache": None}, result))

    indexer = next(part for part in model.modules() if type(part).__name__.endswith("Indexer"))
    indexer.register_forward_hook(keep, with_kwargs=True)
    with torch.no_grad():
        model(input_ids=ids_BS, use_cache=False)
        (args, kwargs, own_BSK), ours = kept[0], copy.deepcopy(indexer)
        ours._forward_hooks.clear()
        adapt(ours, ("lightning_indexer",))
        ours_BSK = ours(*args, **kwargs)
    assert own_BSK.shape[-1] == 7
    keys = torch.arange(ids_BS.shape[1])
    chosen = [torch.zeros(2, 30, 30, dtype=torch.bool).scatter(-1, one.long(), True) for one in (own_BSK, ours_BSK)]
    visible_ST = keys[None, :] <= keys[:, None]
    assert torch.equal(chosen[0] & visible_ST, chosen[1] & visible_ST)
    assert int((chosen[1] & visible_ST).sum()) > 0
    assert ours_BSK.dtype == own_BSK.dtype


def test_padding_is_hidden_from_the_indexer() -> None:
    model, ids_BS = small("deepseek_v32", torch.float64), ids("deepseek_v32", 30)
    for one in model.modules():
        if type(one).__name__.endswith("Indexer"):
            one.index_topk = 7
    mask_BS = torch.ones_like(ids_BS)
    mask_BS[0, :7] = 0
    with torch.no_grad(), Widened():
        own = model(input_ids=ids_BS, attention_mask=mask_BS).logits
        adapt(model, ("all",))
        ours = model(input_ids=ids_BS, attention_mask=mask_BS).logits
    torch.testing.assert_close(ours[0, 7:], own[0, 7:], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(ours[1], own[1], rtol=1e-11, atol=1e-12)

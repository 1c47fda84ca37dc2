"""Models that are called in their own way: encoder-decoder, state space, codebooks, languages, draft heads, images."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from day0.models.driver import step, style_of
from day0.models.fake import FakeValues, known
from day0.models.hf import open_hf
from day0.models.vision import image_inputs
from day0.playbook import ModelPlan


def _model(name: str, *, shrink: bool = True, **changes: Any) -> Any:
    torch.manual_seed(0)
    return open_hf(ModelPlan(source=f"hf:{name}", shrink=shrink, set=changes, dtype="float32")).build("cpu")


IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])


@pytest.mark.parametrize("name", ["gpt2", "mamba", "bart", "musicgen"])
def test_a_cached_step_gives_what_the_whole_text_gives(name: str) -> None:
    model = _model(name)
    style = style_of(model)
    whole = step(model, IDS, style=style)
    first = step(model, IDS[:, :4], style=style)
    again = step(model, IDS if style.all_tokens else IDS[:, 4:], first.cache, style=style, earlier=first)
    torch.testing.assert_close(again.logits_BSV[:, -1], whole.logits_BSV[:, -1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [pytest.param("rwkv", marks=pytest.mark.slow), "cpmant"])
def test_a_cached_step_knows_the_text_before(name: str) -> None:
    # Neither gives what the whole text gives: one sees its whole prompt at once, the other sums in another order.
    model = _model(name)
    style = style_of(model)
    caches = [step(model, ids, style=style).cache for ids in (IDS[:, :4], IDS[:, :4].flip(1))]
    last = [IDS if style.all_tokens else IDS[:, 4:]] * 2
    rows = [step(model, ids, cache, style=style).logits_BSV[:, -1] for ids, cache in zip(last, caches, strict=True)]
    assert not torch.allclose(rows[0], rows[1])


def test_the_encoder_runs_once() -> None:
    model = _model("t5")
    style = style_of(model)
    assert style.encoder_decoder
    calls: list[int] = []
    model.get_encoder().register_forward_hook(lambda *_: calls.append(1))
    first = step(model, IDS, style=style)
    step(model, IDS[:, :1], first.cache, style=style, earlier=first)
    assert len(calls) == 1


def test_inputs_that_a_model_cannot_do_without_are_made() -> None:
    assert step(_model("xmod"), IDS).logits_BSV.shape[:2] == IDS.shape
    assert style_of(_model("musicgen")).streams == 4
    assert style_of(_model("openai-gpt")).cache_name is None


@pytest.mark.parametrize(
    ("name", "tokens"), [("kimi_k25", 64), ("glm5_next", 64), ("qwen2_vl", 64), ("internvl", 256), ("git", 0)]
)
def test_an_image_reaches_the_text(name: str, tokens: int) -> None:
    spec = open_hf(ModelPlan(source=f"hf:{name}", shrink=True))
    assert spec.image_inputs is not None
    with FakeValues():
        model: Any = spec.build("cpu")
        seen: list[str] = []
        for path, module in model.named_modules():
            module.register_forward_hook(lambda *_, path=path: seen.append(path))
        made = image_inputs(model, torch.randint(0, 1024, (2, 8)), known)
        assert f"{tokens * 2} visual tokens" in made.text or f"{tokens} visual tokens" in made.text
        seen.clear()
        step(model, known(made.ids_BS), inputs=made.arguments)
    assert any("vis" in path or "image_encoder" in path for path in seen)
    placeholder = getattr(model.config, "image_token_id", -1)
    assert int((made.ids_BS[0] == placeholder).sum()) == tokens


def test_a_text_model_has_no_images() -> None:
    assert open_hf(ModelPlan(source="hf:llama")).image_inputs is None

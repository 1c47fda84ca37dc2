"""Images go to the server and to the reference alike; other images, or another vision branch, are found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from day0.errors import Day0Error
from tests.analyzers.endpoint.conftest import Report
from tests.analyzers.endpoint.served import Service, serve
from tests.analyzers.endpoint.tiny import save_tiny_vision

ASK: dict[str, object] = {
    "id": "squares",
    "max_tokens": 6,
    "messages": [{"role": "user", "content": [{"image": "squares.png"}, {"text": "Which colors?"}]}],
}
TWO: dict[str, object] = {
    "id": "both",
    "max_tokens": 6,
    "messages": [
        {"role": "user", "content": [{"text": "Compare"}, {"image": "stripes.png"}, {"image": "squares.png"}]}
    ],
}


@pytest.fixture(scope="module")
def sighted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_vision(tmp_path_factory.mktemp("endpoint") / "sighted")


def test_images_are_asked_and_compared(sighted: Path, report: Report) -> None:
    with serve(Service(folder=sighted)) as service:
        found = report(service.url, reference=sighted, api="chat", lines=(ASK, TWO))
    assert found.verdict == "successful", found.reason
    assert [one.prompt_tokens for one in found.results] == [one.reference_prompt_tokens for one in found.results]
    assert "image_url" in str(service.bodies[0]["messages"])


def test_one_changed_weight_of_the_vision_branch_fails(sighted: Path, tmp_path: Path, report: Report) -> None:
    changed = shutil.copytree(sighted, tmp_path / "changed")
    tensors = load_file(changed / "model.safetensors")
    name = next(one for one in tensors if one.endswith("multi_modal_projector.linear_1.weight"))
    tensors[name][2, 3] += 40.0
    save_file(tensors, changed / "model.safetensors", metadata={"format": "pt"})
    with serve(Service(folder=changed)) as service:
        found = report(service.url, reference=sighted, api="chat", lines=(ASK, TWO))
    assert found.verdict == "failed"
    assert found.reason.startswith("prompt ")


def test_a_model_without_eyes_is_not_asked_about_images(tiny: Path, report: Report) -> None:
    with pytest.raises(Day0Error, match="'squares' has images, and this model has no processor"):
        report("http://127.0.0.1:9", api="chat", lines=(ASK,))

"""Folders that are not what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from day0.converters.folder import open_folder
from day0.errors import Day0Error


def indexed(kit: Any, folder: Path) -> dict[str, Any]:
    kit.write(folder, kit.gpt_oss(), shards=2)
    document: dict[str, Any] = json.loads((folder / "model.safetensors.index.json").read_text())
    return document


def put(folder: Path, document: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "x.bin", "", "c:x.safetensors"]
)
def test_an_index_that_points_outside(kit: Any, tmp_path: Path, name: str) -> None:
    document = indexed(kit, tmp_path / "m")
    document["weight_map"]["evil"] = name
    put(tmp_path / "m", document)
    with pytest.raises(Day0Error, match="no safetensors file of this folder"):
        open_folder(tmp_path / "m")


def test_a_shard_that_is_absent(kit: Any, tmp_path: Path) -> None:
    indexed(kit, tmp_path / "m")
    (tmp_path / "m" / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(Day0Error, match=r"1 of the 2 files that model.safetensors.index.json names are missing"):
        open_folder(tmp_path / "m")


def test_a_tensor_that_the_index_misplaces_invents_or_forgets(kit: Any, tmp_path: Path) -> None:
    document = indexed(kit, tmp_path / "m")
    for change, wanted in (
        ({"more": "model-00001-of-00002.safetensors"}, "names more, and no file holds it"),
        ({"model.norm.weight": "model-00002-of-00002.safetensors"}, "the index says model-00002"),
    ):
        put(tmp_path / "m", {**document, "weight_map": {**document["weight_map"], **change}})
        with pytest.raises(Day0Error, match=wanted):
            open_folder(tmp_path / "m")
    del document["weight_map"]["model.norm.weight"]
    put(tmp_path / "m", document)
    with pytest.raises(Day0Error, match="the index says nothing of it"):
        open_folder(tmp_path / "m")


def test_one_name_in_two_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"x": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(Day0Error, match=r"x is in a.safetensors and in b.safetensors"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    "text", ["{", "[]", '"x"', "null", "[" * 50_000, '{"weight_map": []}', '{"weight_map": {"a": 1}}']
)
def test_an_index_that_is_none(kit: Any, tmp_path: Path, text: str) -> None:
    indexed(kit, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors.index.json").write_text(text)
    with pytest.raises(Day0Error, match=r"not JSON|no JSON object|no weight_map"):
        open_folder(tmp_path / "m")


def test_links(kit: Any, tmp_path: Path) -> None:
    """A hub cache links into its blobs; anything else that leads out is not followed."""
    kit.write(tmp_path / "hub" / "blobs" / "x", kit.gpt_oss())
    snapshot = tmp_path / "hub" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(Path("../../blobs/x") / name)
    (tmp_path / "secret").write_text("s")
    (snapshot / "notes.txt").symlink_to(tmp_path / "secret")
    found = open_folder(snapshot)
    assert "model.safetensors" in found.shards and found.others == () and found.left == ("notes.txt",)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    (tmp_path / "hub" / "blobs" / "x" / "model.safetensors").replace(tmp_path / "elsewhere.safetensors")
    with pytest.raises(Day0Error, match="outside the checkpoint"):
        open_folder(snapshot)


def test_pickles_only_and_nothing_at_all(tmp_path: Path) -> None:
    with pytest.raises(Day0Error, match="holds no safetensors"):
        open_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(Day0Error, match=r"pickled \(pytorch_model.bin\)"):
        open_folder(tmp_path)
    with pytest.raises(Day0Error, match="no such folder"):
        open_folder(tmp_path / "nowhere")


def test_what_comes_along_and_what_stays(kit: Any, tmp_path: Path) -> None:
    kit.write(tmp_path, kit.gpt_oss())
    (tmp_path / "model.bin").write_bytes(b"x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("x")
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "chat.py").write_text("x")
    found = open_folder(tmp_path)
    assert found.others == ("assets/chat.py", "tokenizer.json") and found.left == ("model.bin",)

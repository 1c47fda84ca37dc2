"""Prompts are data: what is wrong with a file is said with its line, and no image leads out of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from day0.analyzers.endpoint.prompts import SETS, Image, bundled_sets, read_prompts
from day0.analyzers.endpoint.protocol import Asked, body_of
from day0.errors import Day0Error

IMAGE = '{"messages": [{"role": "user", "content": [{"image": "NAME"}]}]}'
PNG = (SETS / "squares.png").read_bytes()


def write(folder: Path, *lines: str) -> str:
    path = folder / "mine.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", bundled_sets())
def test_a_bundled_set_can_be_read(name: str) -> None:
    found = read_prompts(name)
    assert found.prompts
    assert bool(any(one.images for one in found.prompts)) == (name == "vision")


def test_a_line_holds_a_text_or_a_chat(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"prompt": "a", "max_tokens": 3, "answer": "b"}',
        "",
        '{"id": "chat", "messages": [{"role": "user", "content": "hi"}], "answer": ["x", "y"]}',
    )
    text, chat = read_prompts(path).prompts
    assert (text.name, text.text, text.max_tokens, text.answers) == ("line-1", "a", 3, ("b",))
    assert chat.wire_messages() == [{"role": "user", "content": "hi"}]
    assert chat.answers == ("x", "y")


def test_an_image_travels_as_a_data_url(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.png").write_bytes(PNG)
    line = '{"messages": [{"role": "user", "content": [{"image": "in/x.png"}, {"text": "what?"}]}]}'
    prompt = read_prompts(write(tmp_path, line)).prompts[0]
    assert isinstance(prompt.messages[0].parts[0], Image)
    body = body_of(prompt, "m", "chat", Asked(top=2))
    assert isinstance(body["messages"], list)
    image, text = body["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert text == {"type": "text", "text": "what?"}
    assert (body["logprobs"], body["top_logprobs"], body["temperature"], body["seed"]) == (True, 2, 0, 0)


def test_another_image_is_another_set(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(PNG)
    path = write(tmp_path, '{"messages": [{"role": "user", "content": [{"image": "x.png"}]}]}')
    before = read_prompts(path).sha256
    (tmp_path / "x.png").write_bytes(PNG + b"more")
    assert read_prompts(path).sha256 != before


GOOD = '{"prompt": "a"}'
BAD = {
    "nothing": ("", "it has no prompts"),
    "half": ('{"prompt": "a', "it is not JSON"),
    "a list": ('["a"]', "the line: input should be"),
    "no prompt": ('{"id": "a"}', "either 'prompt' or 'messages'"),
    "both": ('{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "either 'prompt' or 'messages'"),
    "empty": ('{"prompt": ""}', "prompt: string should have at least 1 character"),
    "a field too many": ('{"prompt": "a", "temprature": 1}', "temprature: extra inputs are not permitted"),
    "a number": ('{"prompt": 7}', "prompt: input should be a valid string"),
    "no tokens": ('{"prompt": "a", "max_tokens": 0}', "max_tokens: input should be greater than or equal to 1"),
    "many tokens": ('{"prompt": "a", "max_tokens": 1000000000}', "max_tokens: input should be less than"),
    "half of a character": (r'{"prompt": "\ud800"}', "half of a character"),
    "deep": ('{"prompt": ' + "[" * 30_000, "it is not JSON"),
    "a role of its own": ('{"messages": [{"role": "tool", "content": "b"}]}', "messages.0.role"),
    "texts in parts": (
        '{"messages": [{"role": "user", "content": [{"text": "a"}, {"text": "b"}]}]}',
        "a message without an image is one text",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_refused_with_its_number(name: str, tmp_path: Path) -> None:
    line, what = BAD[name]
    with pytest.raises(Day0Error) as caught:
        read_prompts(write(tmp_path, GOOD, line) if line else write(tmp_path, "", " "))
    assert what in caught.value.what
    assert not line or caught.value.where.endswith("mine.jsonl:2")


def test_an_id_may_stand_there_once(tmp_path: Path) -> None:
    with pytest.raises(Day0Error, match="twice"):
        read_prompts(write(tmp_path, '{"id": "a", "prompt": "b"}', '{"id": "a", "prompt": "c"}'))


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "link.png", "a/../../secret.png", "\\u0000.png"])
def test_no_image_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(PNG)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(Day0Error, match="not within the folder"):
        read_prompts(write(folder, IMAGE.replace("NAME", name)))


@pytest.mark.parametrize(
    ("name", "what"), [("no.png", "cannot be read"), ("text.png", "is no PNG"), (".", "cannot be")]
)
def test_what_is_no_image_is_refused(name: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(Day0Error, match=what):
        read_prompts(write(tmp_path, IMAGE.replace("NAME", name)))


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(Day0Error, match="byte 0 is not UTF-8"):
        read_prompts(str(tmp_path / "mine.jsonl"))
    with pytest.raises(Day0Error) as caught:
        read_prompts("visoin")
    assert caught.value.hint == "did you mean vision?"

"""Headers that lie."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from day0.converters.header import BITS, read_header
from day0.errors import Day0Error


def entry(dtype: str = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def file(folder: Path, header: Any, data: bytes = b"abcd", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


BAD: dict[str, tuple[Any, bytes, str]] = {
    "shape larger than its bytes": ({"a": entry(shape=(128, 128))}, b"abcd", "takes 16,384 bytes, and its place has 4"),
    "overlap": ({"a": entry(), "b": entry(offsets=(2, 6))}, b"abcdef", "overlaps another tensor"),
    "hole": ({"a": entry(), "b": entry(offsets=(5, 9))}, b"abcdefghi", "leaves 1 bytes of nobody"),
    "data missing": ({"a": entry(offsets=(0, 8), shape=(8,))}, b"abcd", "cut off"),
    "data left": ({"a": entry()}, b"abcdefgh", "longer than its tensors"),
    "backwards": ({"a": entry(offsets=(4, 0))}, b"abcd", "takes 4 bytes, and its place has -4"),
    "negative": ({"a": entry(offsets=(-4, 0))}, b"abcd", "no short list of whole numbers"),
    "absurd shape": ({"a": entry(shape=(2**40, 2**40))}, b"abcd", "no file holds shape"),
    "absurd number": ({"a": entry(shape=(10**30,))}, b"abcd", "no short list of whole numbers"),
    "many dimensions": ({"a": entry(shape=(1,) * 100)}, b"abcd", "no short list of whole numbers"),
    "fraction": ({"a": entry(shape=(4.0,))}, b"abcd", "no short list of whole numbers"),
    "true": ({"a": entry(shape=(True, 4))}, b"abcd", "no short list of whole numbers"),
    "no dtype": ({"a": {"shape": [4], "data_offsets": [0, 4]}}, b"abcd", "incomplete"),
    "unknown dtype": ({"a": entry(dtype="I4")}, b"abcd", "does not know its dtype 'I4'"),
    "a list": ([1], b"", "no JSON object"),
    "not JSON": (b"{nonsense", b"", "not JSON"),
    "deep": (b"[" * 100_000, b"", "not JSON"),
    "not unicode": (b'{"\xff": 1}', b"", "not JSON"),
    "twice": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":1}', b"abcd", "'a' stands twice"),
    "long number": (b'{"a": ' + b"9" * 5000 + b"}", b"", "not JSON"),
    "metadata": ({"__metadata__": {"a": 1}}, b"", "no map from texts to texts"),
    "half a byte": ({"a": entry(dtype="F4", shape=(3,), offsets=(0, 1))}, b"a", "no whole number of bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_is_refused(tmp_path: Path, name: str) -> None:
    header, data, wanted = BAD[name]
    with pytest.raises(Day0Error, match=wanted.replace("[", r"\[")):
        read_header(file(tmp_path, header, data))


@pytest.mark.parametrize("length", [2**63, 2**40, 101 << 20, 1000])
def test_a_header_longer_than_its_file_is_not_read(tmp_path: Path, length: int) -> None:
    with pytest.raises(Day0Error, match=f"its header claims {length:,}"):
        read_header(file(tmp_path, {"a": entry()}, length=length))


@pytest.mark.parametrize("size", [0, 3, 7, 8])
def test_tiny_files(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"\x08\0\0\0\0\0\0\0"[:size])
    with pytest.raises(Day0Error, match="cut off"):
        read_header(path)


def test_every_cut_of_a_real_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(2, dtype=torch.uint8)}, path)
    whole = path.read_bytes()
    assert set(read_header(path).tensors) == {"a", "b"}
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(Day0Error):
            read_header(path)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_raise(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(struct.pack("<Q", max(0, len(data) - 8)) + data)
        try:
            read_header(path)
        except Day0Error:
            return


def test_every_dtype_of_the_library_is_read(tmp_path: Path) -> None:
    tensors = {
        str(dtype): torch.zeros(4, dtype=torch.uint8).view(torch.uint8).to(torch.float32).to(dtype)
        for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int16, torch.int64, torch.bool)
    }
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e8m0fnu):
        tensors[str(dtype)] = torch.zeros(4, dtype=torch.uint8).view(dtype)
    tensors["fp4"] = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    save_file(tensors, tmp_path / "x.safetensors")
    found = read_header(tmp_path / "x.safetensors").tensors
    assert set(found) == set(tensors) and {one.dtype for one in found.values()} <= set(BITS)
    assert found["fp4"].shape == (8,) and found["fp4"].nbytes == 4

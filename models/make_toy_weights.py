"""Make the toy's weights: `python -m day0.models.make_toy_weights`. The same seed gives the same bytes."""

from __future__ import annotations

from day0.hashing import hash_bytes
from day0.models.toy_weights import weights_bytes, weights_path

__all__ = ["main"]


def main() -> None:
    """Write the file and print its hash, which stands in toy_weights.py."""
    data = weights_bytes()
    path = weights_path()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    print(f"{path}: {len(data):,} bytes, {hash_bytes(data)}")


if __name__ == "__main__":
    main()

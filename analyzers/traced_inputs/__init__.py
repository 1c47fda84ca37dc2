"""The public traced-inputs text (`Operator: …` / `cnt: 3, ((T([2, 3], f16),), {})`): read, kept, written."""

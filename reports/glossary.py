"""The words of a report, for readers who meet them here for the first time."""

from __future__ import annotations

from day0.reports.findings import MEANINGS
from day0.reports.tables import Table, make_table
from day0.reports.words import CASES, STAGES

__all__ = ["WORDS", "glossary"]

WORDS: dict[str, str] = {
    "operator": "what is computed: a contract with name, schema, reference, sample inputs, comparison and tolerance",
    "implementation": "code that computes an operator somewhere: a kernel, a decomposition or a reference",
    "signature": "how an operator was called once: shape, dtype, stride, offset and sharing of each tensor, and scalars",
    "trace": "the deduplicated signatures of a model under a workload, with counts",
    "workload": "phases, batch and lengths that a model was run with",
    "device profile": "what a device can do, each line with its evidence: probed, static or claimed",
    "verdict": "what the inventory says of one signature on one device",
    "gap": "a signature that the device cannot run by itself",
    "namespace": "where an implementation is registered, family and version; base is the root",
    "lock": "the chosen implementation for every signature that needs one, pinned by the hash of its content",
    "golden": "the result in float64, or in exact whole numbers, that a check measures against",
    "error": "relative L2 distance from the golden",
    "dtype's own": "the yardstick: the same error of the reference in the same dtype on the CPU",
    "limit": "the largest error that would have passed",
    "regime": "the kind of values that a case was made of",
    "gate": "a rule that a canary stage must satisfy",
    "evidence": "the file that shows why a gate was kept or not",
    "reproducer": "a folder with the inputs of a failed case and one short script that runs it again",
    "receipt": "proof that a locked implementation ran, and how often",
    "roofline time": "what a call takes at the device's bandwidth and peak rate, and the time of its launch",
    "modelled": "computed from the profile, nothing ran",
    "simulated": "told by the clock of the simulated device",
    "measured": "told by the device's clock or by the host's after a wait",
}
"""The vocabulary of day0."""


def glossary() -> tuple[Table, ...]:
    """Return the tables: words, verdicts, statuses of cases, statuses of stages."""
    kinds = (
        ("Words", "word", WORDS),
        ("Verdicts", "verdict:code", {str(name): text for name, text in MEANINGS.items()}),
        ("Statuses of cases", "status:status", CASES),
        ("Statuses of stages", "status:status", STAGES),
    )
    return tuple(
        make_table(title, f"{first} | meaning", values.items(), lambda pair: pair) for title, first, values in kinds
    )

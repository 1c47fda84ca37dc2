"""The records that carry the flow from one stage to the next. Frozen, plain data, no torch.

Shapes and strides are ints, dtypes are torch's names without the prefix (`bfloat16`), so that a record can be
read where torch is not installed. A new optional field is free; anything else is a new schema number.
"""

from day0.records._base import Record
from day0.records.calls import ListValue, ScalarValue, Signature, TensorValue, Value
from day0.records.canary import CanaryReport, FigureResult, GateResult, LastGood, OperatorFigures, Receipt, StageResult
from day0.records.convert import ConversionParameters, ConvertedFile, ConvertedWeight, ConvertReport
from day0.records.endpoint import EndpointFailure, EndpointPrompt, EndpointReport
from day0.records.evidence import EvidenceProblem, Manifest, ManifestFile, VerifyReport
from day0.records.fit import FitCard, FitOption, FitPlan, FitProposal, FitReport, FitRow
from day0.records.inventory import (
    GAP_VERDICTS,
    Effort,
    Evidence,
    Inventory,
    InventoryBlock,
    InventoryEntry,
    Leaf,
    Replacement,
    Verdict,
)
from day0.records.lock import Decision, Gap, Identity, Lock, LockEntry, Verification
from day0.records.modules import LogitsResult, ModelCheck, ModuleError, ModuleResult, NonFinite, WaysResult
from day0.records.numerics import WARNING, CaseResult, CaseStatus, NumericsReport
from day0.records.ranks import RankCollective, RankResult, RankScale, RanksReport, RanksRun
from day0.records.selftest import Alarm, FaultScore, Found, How, RightScore, SelftestReport
from day0.records.trace import (
    Amount,
    CallEntry,
    Collective,
    FloatStats,
    ImportedText,
    ModelInfo,
    ParallelInfo,
    PhaseInfo,
    Site,
    TextLine,
    Trace,
    TraceEntry,
)

__all__ = [
    "GAP_VERDICTS",
    "WARNING",
    "Alarm",
    "Amount",
    "CallEntry",
    "CanaryReport",
    "CaseResult",
    "CaseStatus",
    "Collective",
    "ConversionParameters",
    "ConvertReport",
    "ConvertedFile",
    "ConvertedWeight",
    "Decision",
    "Effort",
    "EndpointFailure",
    "EndpointPrompt",
    "EndpointReport",
    "Evidence",
    "EvidenceProblem",
    "FaultScore",
    "FigureResult",
    "FitCard",
    "FitOption",
    "FitPlan",
    "FitProposal",
    "FitReport",
    "FitRow",
    "FloatStats",
    "Found",
    "Gap",
    "GateResult",
    "How",
    "Identity",
    "ImportedText",
    "Inventory",
    "InventoryBlock",
    "InventoryEntry",
    "LastGood",
    "Leaf",
    "ListValue",
    "Lock",
    "LockEntry",
    "LogitsResult",
    "Manifest",
    "ManifestFile",
    "ModelCheck",
    "ModelInfo",
    "ModuleError",
    "ModuleResult",
    "NonFinite",
    "NumericsReport",
    "OperatorFigures",
    "ParallelInfo",
    "PhaseInfo",
    "RankCollective",
    "RankResult",
    "RankScale",
    "RanksReport",
    "RanksRun",
    "Receipt",
    "Record",
    "Replacement",
    "RightScore",
    "ScalarValue",
    "SelftestReport",
    "Signature",
    "Site",
    "StageResult",
    "TensorValue",
    "TextLine",
    "Trace",
    "TraceEntry",
    "Value",
    "Verdict",
    "Verification",
    "VerifyReport",
    "WaysResult",
]

"""Does the static verdict say what a device really does? Every kind of call that six models make, asked and then made.

    python benchmarks/verdict_agreement.py                                     # sim, sim-strict, s5000, sim+cpu, null, cpu
    python benchmarks/verdict_agreement.py --device cuda --trace a/trace.json  # on a machine with that device

A kind of call is an overload with the dtypes, ranks and layouts of its tensors. For each, `classify` says from profile
and registrations alone what the device will do; then the call is made on the device inside a module's forward, and
`day0.devices.observe` says what happened from what it saw: kernels entered, waits and fallbacks counted, the error
raised, torch's own dispatch table and profiler. The observation uses no code that verdicts are made with. They agree
if the verdicts are equal and, for composites, if the predicted operators are those that ran. `unknown` agrees with
nothing. `sim`'s dispatcher is ours, so for each call torch's own table is compared with it, too.

`figure: agreement` is the smallest share over the devices. Calls that are too large are made smaller, and calls
for which no valid values are found are left out; both are said.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from day0.analyzers.trace import trace_model
from day0.codec import decode
from day0.devices.agreement import disagreement
from day0.devices.leaves import leaf_dtypes, leaf_ranks
from day0.devices.observe import observe
from day0.devices.open import open_torch_device
from day0.devices.probe_calls import try_call
from day0.devices.profile import DeviceProfile, load_profile
from day0.devices.profile_parts import layout_of
from day0.devices.smaller import signature_bytes, smaller
from day0.devices.verdict import classify
from day0.errors import Day0Error
from day0.models.source import open_model
from day0.models.workload import plan_phases
from day0.playbook import ModelPlan, WorkloadPlan
from day0.records import Signature, Trace
from day0.reference_ops.signatures import shapes_text, tensor_values
from day0.reference_ops.torch_ops import register_operators

GLM5_NEXT = {
    "hidden_size": 48,
    "hc_mult": 2,
    "index_head_dim": 16,
    "index_kpool": 4,
    "index_n_heads": 4,
    "index_topk": 16,
    "intermediate_size": 80,
    "kv_lora_rank": 16,
    "linear_head_dim": 16,
    "linear_num_heads": 3,
    "mlp_layer_types": ["dense"] + 4 * ["sparse"],
    "moe_intermediate_size": 32,
    "n_routed_experts": 6,
    "num_attention_heads": 3,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 5,
    "num_key_value_heads": 3,
    "pad_token_id": 0,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
    "vocab_size": 128,
}
"""Small, since it reads values while it runs, so that shapes alone do not trace it."""

MODELS: dict[str, dict[str, object]] = {
    "toy": {},
    "hf:deepseek_v32": {"num_hidden_layers": 4, "index_topk": 16},
    "hf:glm_moe_dsa": {"num_hidden_layers": 5, "index_topk": 16},
    "hf:kimi_linear": {},
    "hf:gpt_oss": {"num_hidden_layers": 2},
    "hf:deepseek_v4": {"num_hidden_layers": 5},
    "hf:glm5_next": {"text_config": GLM5_NEXT},
}
"""With fewer layers where the operators are the same."""

DEVICES = ("sim", "sim-strict", "s5000", "sim+cpu", "null", "cpu")
"""`s5000` is run as a simulated device with that profile, `sim+cpu` is `sim` that falls back to the CPU by itself."""

MOST_BYTES = 16 << 20
"""Larger calls are made smaller."""

DEAD = ("device-side assert", "illegal memory access", "unspecified launch failure")
"""After these a process has no use of its CUDA device any more."""

Kinds = dict[object, Signature]


def main() -> None:
    """Trace, ask, run, compare."""
    options = _options()
    torch.set_num_threads(1)
    register_operators()
    calls = _fitting(_smallest(_traces(options.trace)))
    shares = [_judge(name, calls) for name in options.device]
    print(f"signatures compared: {len(calls)} kinds of calls on {len(shares)} devices: {', '.join(options.device)}")
    print(f"figure: agreement {min(shares):.4f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", action="append", help="name or YAML file of a profile, again for more")
    parser.add_argument("--trace", action="append", type=Path, help="trace.json of a run folder, again for more")
    options = parser.parse_args()
    options.device = options.device or list(DEVICES)
    return options


def _traces(files: list[Path] | None) -> Iterator[Trace]:
    for file in files or ():
        yield decode(Trace, file.read_text(), where=str(file), remake="day0 trace").record
    for source, changes in MODELS.items() if not files else ():
        try:
            spec = open_model(ModelPlan(source=source, set=changes))
            trace = trace_model(spec, plan_phases(spec, WorkloadPlan()))
        except Day0Error as error:
            print(f"left out: {source}: {error.what}")
            continue
        yield trace


def _smallest(traces: Iterable[Trace]) -> Kinds:
    """Return the smallest call of each kind."""
    kinds: Kinds = {}
    for trace in traces:
        before = len(kinds)
        for entry in trace.entries:
            one = entry.signature
            key = _kind(one)
            if key not in kinds or signature_bytes(one) < signature_bytes(kinds[key]):
                kinds[key] = one
        print(f"{trace.model.source}: {len(trace.entries)} signatures, {len(kinds) - before} new kinds of calls")
    return kinds


def _kind(signature: Signature) -> object:
    layouts = tuple(layout_of(one.shape, one.stride) for one in tensor_values(signature))
    return signature.op, leaf_dtypes(signature), leaf_ranks(signature), layouts


def profiles_of(name: str) -> tuple[DeviceProfile, DeviceProfile]:
    """Return the profile that is asked, and the one that the device is opened with."""
    if name == "sim+cpu":
        asked = load_profile("sim").model_copy(update={"name": name, "fallback": "cpu"})
        return asked, asked
    asked = load_profile(name)
    if asked.name == "s5000":
        return asked, asked.model_copy(update={"torch_device": "sim", "kernels": "CPU", "import_module": None})
    return asked, asked


def _fitting(kinds: Kinds) -> list[Signature]:
    """Return all calls that are small enough, or can be made so."""
    fitting = []
    for traced in kinds.values():
        one = smaller(traced, MOST_BYTES)
        if one is None:
            print(f"left out: {traced.op} {shapes_text(traced)}: cannot be made smaller")
            continue
        if one is not traced:
            print(f"made smaller: {traced.op} {shapes_text(traced)} -> {shapes_text(one)}")
        fitting.append(one)
    return fitting


def _judge(name: str, calls: list[Signature]) -> float:
    asked, opened = profiles_of(name)
    device = open_torch_device(opened)
    print(f"\n== {name}")
    agreed, compared, verdicts = 0, 0, Counter[str]()
    for one in calls:
        said, seen = classify(asked, one), observe(one, device)
        text = f"{one.op} {shapes_text(one)}"
        if any(sign in seen.reason for sign in DEAD):
            print(f"the device is out of order after {text}, so the rest is left out: {seen.reason}")
            break
        if seen.verdict == "not_run":
            print(f"left out: {text}: {seen.reason}")
            continue
        fault = disagreement(said, seen)
        if fault and "wrong results" in said.reason and try_call(one, device, max_bytes=MOST_BYTES).status == "wrong":
            fault = ""  # how a call ran does not show what it computed, so its values are compared
        compared += 1
        verdicts[said.verdict] += 1
        agreed += not fault
        if fault:
            print(f"  {text}\n    {fault}\n    said: {said.reason}\n    seen: {seen.reason or seen.verdict}")
    told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    print(f"{name}: {agreed} of {compared} agree; said: {told}")
    return agreed / compared if compared else 0.0


if __name__ == "__main__":
    main()

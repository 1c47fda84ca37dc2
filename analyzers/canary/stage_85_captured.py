"""A prompt captured in a graph of the device and replayed: the same bits as without.

Shape suffixes: B batch, S tokens.
"""

from __future__ import annotations

import torch

from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.canary.gates import Figure
from day0.errors import USER_ERRORS
from day0.models.driver import step
from day0.models.workload import token_ids
from day0.playbook import Gate

TITLE = "a prompt captured in a graph"
GATES = (Gate(metric="captured_differs", rule="==", limit=0),)
METRICS = {
    "captured_differs": "logits with other bits when a captured graph is replayed with the tokens of another prompt",
}


def run(context: CanaryContext) -> Measured:
    """Capture a prefill without a cache, replay it with another prompt, and compare with the model as it is.

    A model that cannot be captured, since the host waits in it, is no failure: the figure says why it is not known.
    """
    if context.device.type != "cuda":
        return Measured(metrics={}, unfit=f"graphs are captured on CUDA devices, and this is {context.device.type}")
    try:
        differs = _captured(context)
    except USER_ERRORS as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        return Measured(metrics={"captured_differs": Figure(None, why=f"it cannot be captured: {first}")})
    return Measured(metrics={"captured_differs": float(differs)})


def _captured(context: CanaryContext) -> int:
    model, device = context.on_device(), context.device
    first_BS, other_BS = (token_ids(context.spec, 1, context.prompt_tokens, seed=seed).to(device) for seed in (10, 11))
    expected_BSV = step(model, other_BS, use_cache=False).logits_BSV
    static_BS = first_BS.clone()
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(2):
            step(model, static_BS, use_cache=False)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed_BSV = step(model, static_BS, use_cache=False).logits_BSV
    static_BS.copy_(other_BS)
    graph.replay()
    torch.cuda.synchronize(device)
    return int((replayed_BSV != expected_BSV).sum())

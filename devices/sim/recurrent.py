"""Cells of recurrent networks: torch gives accelerators fused operators for them, which the CPU does not have.

Legend: B rows, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from day0.devices.sim.tensor import raw
from day0.devices.sim.wrap import wrap

__all__ = ["RECURRENT_KERNELS"]


def _lstm(inputs: Any, hidden: Any, cell: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    """Return the new state, the new cell, both [B, H], and the activated gates [B, 4 H] for backward."""
    total = raw(inputs) + raw(hidden)
    if input_bias is not None:
        total = total + raw(input_bias) + raw(hidden_bias)
    i_BH, f_BH, g_BH, o_BH = total.chunk(4, 1)
    i_BH, f_BH, g_BH, o_BH = i_BH.sigmoid(), f_BH.sigmoid(), g_BH.tanh(), o_BH.sigmoid()
    cell_BH = f_BH * raw(cell) + i_BH * g_BH
    return wrap((o_BH * cell_BH.tanh(), cell_BH, torch.cat((i_BH, f_BH, g_BH, o_BH), 1)), (inputs,))


def _lstm_backward(grad_state: Any, grad_cell: Any, cell: Any, new_cell: Any, gates: Any, has_bias: bool) -> Any:
    """Return gradients of the gates [B, 4 H], the old cell [B, H], and the bias [4 H] if there was one."""
    if grad_state is None and grad_cell is None:
        return None, None, None
    i_BH, f_BH, g_BH, o_BH = raw(gates).chunk(4, 1)
    tanh_BH = raw(new_cell).tanh()
    state_BH = torch.zeros_like(tanh_BH) if grad_state is None else raw(grad_state)
    cell_BH = state_BH * o_BH * (1 - tanh_BH**2)
    if grad_cell is not None:
        cell_BH = cell_BH + raw(grad_cell)
    grads = torch.cat(
        (
            cell_BH * g_BH * i_BH * (1 - i_BH),
            cell_BH * raw(cell) * f_BH * (1 - f_BH),
            cell_BH * i_BH * (1 - g_BH**2),
            state_BH * tanh_BH * o_BH * (1 - o_BH),
        ),
        1,
    )
    return wrap((grads, cell_BH * f_BH, grads.sum(0) if has_bias else None), (gates,))


def _gru(inputs: Any, hidden: Any, state: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    """Return the new state [B, H], and for backward what it was made of [B, 5 H]."""
    inner, outer, state_BH = raw(inputs), raw(hidden), raw(state)
    if input_bias is not None:
        inner, outer = inner + raw(input_bias), outer + raw(hidden_bias)
    (ri_BH, zi_BH, ni_BH), (rh_BH, zh_BH, nh_BH) = inner.chunk(3, 1), outer.chunk(3, 1)
    r_BH, z_BH = (ri_BH + rh_BH).sigmoid(), (zi_BH + zh_BH).sigmoid()
    n_BH = (ni_BH + r_BH * nh_BH).tanh()
    new_BH = (state_BH - n_BH) * z_BH + n_BH
    return wrap((new_BH, torch.cat((r_BH, z_BH, n_BH, state_BH, nh_BH), 1)), (inputs,))


def _gru_backward(grad: Any, workspace: Any, has_bias: bool) -> Any:
    """Return gradients of both gates [B, 3 H], the old state [B, H], and both biases [3 H] if there were any."""
    grad_BH = raw(grad)
    r_BH, z_BH, n_BH, state_BH, nh_BH = raw(workspace).chunk(5, 1)
    n_grad_BH = grad_BH * (1 - z_BH) * (1 - n_BH**2)
    z_grad_BH = grad_BH * (state_BH - n_BH) * z_BH * (1 - z_BH)
    r_grad_BH = n_grad_BH * nh_BH * r_BH * (1 - r_BH)
    inputs = torch.cat((r_grad_BH, z_grad_BH, n_grad_BH), 1)
    hidden = torch.cat((r_grad_BH, z_grad_BH, n_grad_BH * r_BH), 1)
    biases = (inputs.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return wrap((inputs, hidden, grad_BH * z_BH, *biases), (grad,))


RECURRENT_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_thnn_fused_lstm_cell": _lstm,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
    "aten::_thnn_fused_gru_cell": _gru,
    "aten::_thnn_fused_gru_cell_backward": _gru_backward,
}
"""By overload."""

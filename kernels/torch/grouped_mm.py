"""aten::_grouped_mm without a host sync: every group multiplies all rows, masks keep its own."""

from __future__ import annotations

import torch

from day0.implementation import Constraints, Implementation, Limit, TensorLimit

__all__ = ["IMPLEMENTATIONS"]


def grouped_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """[N, K] x [G, K, M] with group ends `offs` [G], or [G, N, K] x [G, K, M] without.

    The composite kernel of torch reads the ends on the host, once for every group. This one costs G times the
    arithmetic and none of the waiting: right for the few tokens of a decode step, and for a first bring-up.
    """
    if bias is not None:
        raise NotImplementedError("grouped_mm: bias is not covered")
    if offs is None:
        return torch.bmm(self, mat2).to(out_dtype or self.dtype)
    if self.dim() != 2 or mat2.dim() != 3:
        raise NotImplementedError("grouped_mm: with offsets only [N, K] x [G, K, M] is covered")
    wide = torch.float64 if self.dtype == torch.float64 else torch.float32
    row_N1 = torch.arange(self.shape[0], device=self.device)[:, None]
    begin_G = torch.cat((torch.zeros_like(offs[:1]), offs[:-1]))
    out_NM = torch.zeros(self.shape[0], mat2.shape[-1], dtype=wide, device=self.device)
    for group in range(mat2.shape[0]):
        mine_N1 = (row_N1 >= begin_G[group]) & (row_N1 < offs[group])
        # Choose, do not multiply by 0: infinity times 0 would leak from one group into another.
        out_NM = torch.where(mine_N1, torch.mm(self.to(wide), mat2[group].to(wide)), out_NM)
    return out_NM.to(out_dtype or self.dtype)


IMPLEMENTATIONS = (
    Implementation(
        operator="aten::_grouped_mm",
        contract=1,
        id="masked_groups",
        version="1.1",
        kind="decomposition",
        run=grouped_mm,
        why="one product for each group with masks: no host sync, so it can be captured in a graph",
        constraints=Constraints(
            arguments={"bias": Limit(one_of=(None,))},
            any_of=(
                Constraints(arguments={"offs": Limit(one_of=(None,))}),
                Constraints(
                    arguments={
                        "self": TensorLimit(min_rank=2, max_rank=2),
                        "mat2": TensorLimit(min_rank=3, max_rank=3),
                    }
                ),
            ),
        ),
    ),
)

"""Two ways to the same logits, and logits by position: what is an error, what a near tie, what a warning."""

from __future__ import annotations

import torch

from day0.analyzers.modules.logits import GREEDY, SAMPLED, History, judge_logits
from day0.analyzers.modules.places import Logits
from day0.analyzers.modules.ways import Way, compare_ways
from day0.records import LogitsResult, WaysResult

POSITIONS, WORDS = 12, 50


def noise(size: float, seed: int) -> torch.Tensor:
    return size * torch.randn(POSITIONS, WORDS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


GOLD = noise(4.0, 0)
SAME = (GOLD + noise(0.02, 1)).float()


def ways(one: torch.Tensor, other: torch.Tensor, *, lost: bool = False, golden: torch.Tensor = GOLD) -> WaysResult:
    left = Way(name="all at once", golden=GOLD, same=SAME, device=one)
    right = Way(name="one by one", golden=golden, same=(GOLD + noise(0.02, 2)).float(), device=other, lost=lost)
    return compare_ways("prefill against decode", left, right)


def test_two_ways_that_round_otherwise_pass() -> None:
    found = ways((GOLD + noise(0.02, 3)).float(), (GOLD + noise(0.02, 4)).float())
    assert (found.status, found.flips, found.positions) == ("pass", 0, POSITIONS)


def test_a_way_that_is_wrong_is_named() -> None:
    found = ways(SAME, (GOLD + noise(1.0, 4)).float())
    assert found.status == "fail"
    assert found.reason.startswith("one by one: relative error")


def test_a_flip_of_a_near_tie_is_a_warning_and_one_of_a_clear_choice_a_failure() -> None:
    """vLLM 48271: the kernel's block size depends on the number of tokens, so the best token may differ."""
    near = GOLD.clone()
    best = near[3].topk(2).indices
    near[3, best[1]] = near[3, best[0]] - 0.01
    flipped = near.clone()
    flipped[3, best[1]] += 0.02

    def way(name: str, device: torch.Tensor) -> Way:
        return Way(name=name, golden=near, same=(near + noise(0.02, 1)).float(), device=device.float())

    found = compare_ways("w", way("one", near), way("other", flipped))
    assert (found.status, found.flips, found.unexplained_flips) == ("warning", 1, 0)
    clear = GOLD.clone()
    two = GOLD.topk(2)
    place = int((two.values[:, 0] - two.values[:, 1]).argmax())
    clear[place, two.indices[place, 1]] = clear[place, two.indices[place, 0]] + 1e-3
    found = ways(SAME, clear.float())
    assert (found.status, found.unexplained_flips) == ("fail", 1)


def test_a_model_that_gives_other_logits_in_float64_too_is_not_compared() -> None:
    found = ways(SAME, SAME, golden=GOLD + noise(0.1, 5))
    assert found.status == "skipped" and "in float64 too" in found.reason


def test_after_choices_that_were_lost_nothing_is_said() -> None:
    assert ways(SAME, (GOLD + noise(1.0, 4)).float(), lost=True).status == "skipped"


def judged(device: torch.Tensor, row: int = GREEDY, *, draw: float = 0.5, lost: bool = False) -> LogitsResult:
    new = 4
    chosen = GOLD.argmax(dim=-1)
    if row == SAMPLED:
        shares = torch.softmax(GOLD, dim=-1).cumsum(dim=-1)
        chosen = torch.searchsorted(shares, torch.full((POSITIONS, 1), draw, dtype=torch.float64), right=True)[:, 0]
    ids = torch.cat((torch.zeros(1, dtype=torch.int64), chosen))[None].expand(2, -1)
    history = History(
        seed=9, ids_BS=ids, new_tokens=new, draws=(draw,) * new, logits_BSV=GOLD[None].expand(2, -1, -1), choices={}
    )
    three = (one[None].expand(2, -1, -1) for one in (GOLD, SAME, device))
    return judge_logits(history, row, Logits(**dict(zip(("golden", "same", "device"), three, strict=True)), lost=lost))


def test_logits_as_good_as_the_cpus_pass_greedily_and_sampled() -> None:
    for row in (GREEDY, SAMPLED):
        found = judged((GOLD + noise(0.02, 6)).float(), row)
        assert (found.status, found.seed, found.prompt_tokens) == ("pass", 9, POSITIONS + 1 - 4)
        assert found.kl_mean <= found.kl_limit and found.overlap > 0.9


def test_a_divergence_that_the_dtype_does_not_explain_fails() -> None:
    found = judged((GOLD + noise(0.5, 6)).float())
    assert found.status == "fail" and "mean divergence" in found.reason
    assert found.kl_mean > 100 * found.kl_mean_cpu
    assert judged((GOLD + noise(0.5, 6)).float(), lost=True).status == "skipped"


def test_one_bad_position_fails() -> None:
    device = GOLD.clone()
    device[2] = device[2].roll(1)
    assert judged(device.float()).status == "fail"


def test_nan_never_passes() -> None:
    assert judged(torch.full_like(SAME, float("nan"))).status == "fail"


def test_the_first_other_token_is_named_with_its_margin() -> None:
    device = GOLD.clone()
    place = POSITIONS - 4 + 1
    best = GOLD[place].topk(2)
    device[place, best.indices[1]] = best.values[0] + 1e-3
    found = judged(device.float())
    assert (found.first_divergent, found.expected_token, found.got_token) == (1, *best.indices.tolist())
    assert found.margin == float(best.values[0] - best.values[1])


def test_a_draw_near_the_edge_of_two_tokens_is_explained() -> None:
    place = POSITIONS - 4
    edge = float(torch.softmax(GOLD[place], dim=-1).cumsum(dim=-1)[WORDS // 2])
    found = judged((GOLD + noise(0.02, 8)).float(), SAMPLED, draw=edge - 1e-6)
    assert found.status == "pass"

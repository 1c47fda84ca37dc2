"""`day0 ops list`, `show` and `verify`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from day0.cli.app import app
from day0.reference_ops.agreement import _verify
from day0.reference_ops.agreement._comparison import Comparison
from day0.reference_ops.agreement._load import load_comparisons
from day0.reference_ops.load import load_operators

NAME = "day0::rms_norm"


def day0(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "400", "NO_COLOR": "1"})


def one(run: Callable[[], float], *, distribution: str = "torch", limit: float = 1e-3) -> Comparison:
    return Comparison(
        operator=NAME, variant="[bold]v", against="their_norm", distribution=distribution, limit=limit, run=run
    )


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put other comparisons in the place of those that ship."""
    return lambda *given: monkeypatch.setattr(_verify, "load_comparisons", lambda: given)


def raising(error: BaseException) -> Callable[[], float]:
    def run() -> float:
        raise error

    return run


def test_verify_runs_the_comparisons_of_one_operator() -> None:
    done = day0("ops", "verify", "day0::topk_tokens")
    mine = [it for it in load_comparisons() if it.operator == "day0::topk_tokens"]
    assert done.exit_code == 0, done.output
    rows = [line for line in done.stdout.splitlines() if line.startswith("day0::topk_tokens")]
    assert len(rows) == len(mine) and all("agrees" in row for row in rows)
    assert done.stdout.split("\n")[0].split() == [
        "operator",
        "variant",
        "compared",
        "with",
        "version",
        "largest",
        "error",
        "limit",
        "verdict",
    ]
    assert f"operators 1, comparisons {len(mine)}: {len(mine)} agrees" in done.stdout


def test_verify_fails_on_an_error_beyond_its_limit(comparisons: Callable[..., None]) -> None:
    comparisons(one(lambda: 1e-3), one(lambda: 2e-3), one(lambda: float("nan")))
    done = day0("ops", "verify")
    assert done.exit_code == 1
    assert [row.split()[-1] for row in done.stdout.splitlines()[1:4]] == ["agrees", "differs", "differ"]
    assert "operators 1, comparisons 3: 1 agrees, 2 differs" in done.stdout
    assert "[bold]v" in done.stdout  # markup in a name is text


def test_verify_gives_json_without_infinities(comparisons: Callable[..., None]) -> None:
    comparisons(one(lambda: 0.5), one(lambda: float("inf")))
    done = day0("ops", "verify", "--json")
    assert done.exit_code == 1
    rows = json.loads(done.stdout, parse_constant=pytest.fail)
    assert [(row["verdict"], row["error"], row["limit"]) for row in rows] == [
        ("differs", 0.5, 1e-3),
        ("differs", None, 1e-3),
    ]
    assert "not finite" in rows[1]["reason"] and rows[0]["version"] == _verify.release("torch")
    assert "comparisons 2" in done.stderr


def test_what_is_not_installed_is_counted_and_no_failure(comparisons: Callable[..., None]) -> None:
    absent = ModuleNotFoundError("No module named 'zz_absent'", name="zz_absent.part")
    comparisons(one(lambda: 0.0), one(lambda: 0.0, distribution="zz-nobody"), one(raising(absent)))
    done = day0("ops", "verify", NAME)
    assert done.exit_code == 0, done.output
    assert "operators 1, comparisons 3: 1 agrees, 2 not installed" in done.stdout
    assert "to run the rest: pip install zz-nobody zz_absent" in done.stdout


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'torch.zz_moved'", name="torch.zz_moved"),
        ImportError("cannot import name 'their_norm'"),
        TypeError("their_norm() takes 2 positional arguments"),
    ],
)
def test_other_code_that_stops_is_a_failure_and_not_an_absence(
    error: Exception, comparisons: Callable[..., None]
) -> None:
    comparisons(one(raising(error)), one(lambda: 0.0))
    done = day0("ops", "verify")
    assert done.exit_code == 1
    assert f"broken: {type(error).__name__}: {error}" in done.stdout and "1 agrees, 1 broken" in done.stdout


@pytest.mark.parametrize("command", ["verify", "show"])
def test_an_unknown_name_exits_2_with_near_names(command: str) -> None:
    done = day0("ops", command, "day0::rms_nrom")
    assert done.exit_code == 2 and done.stdout == ""
    assert "there is no 'day0::rms_nrom'" in done.stderr and NAME in done.stderr


def test_an_operator_without_comparisons_is_no_success() -> None:
    done = day0("ops", "verify", "aten::sort")
    assert done.exit_code == 2
    assert "nothing to verify" in done.stderr and "day0 ops show aten::sort" in done.stderr


def test_list_says_against_whom_each_operator_was_verified() -> None:
    done, asked = day0("ops", "list"), day0("ops", "list", "--json")
    assert done.exit_code == asked.exit_code == 0
    assert "verified against" in done.stdout.splitlines()[0]
    rows = json.loads(asked.stdout)
    assert rows.keys() == load_operators().keys()
    assert rows[NAME]["verified_against"] == ["torch", "transformers"]
    line = next(line for line in done.stdout.splitlines() if line.startswith(f"{NAME} "))
    assert "torch, transformers" in line and "base:reference==1.0" in line
    # Without comparisons the file itself says what its reference rests on.
    words = load_operators()["aten::sort"].verified_against
    assert words in next(line for line in done.stdout.splitlines() if line.startswith("aten::sort "))
    assert rows["aten::sort"]["verified_against"] == [words]


def test_show_says_everything_that_the_file_says() -> None:
    operator = load_operators()[NAME]
    done = day0("ops", "show", NAME)
    assert done.exit_code == 0, done.output
    limits = operator.tolerance
    for text in (
        operator.summary,
        operator.schema,
        operator.mathematics,
        operator.source,
        operator.verified_against,
        limits.reason,
        f"as floats, ratio {limits.ratio:g}, ceiling {limits.ceiling:g}, ulps {limits.ulps:g}",
        *(f"{attribute.name}: {attribute.meaning}" for attribute in operator.attributes),
        *(it.against for it in load_comparisons() if it.operator == NAME),
        "1 small, 2 odd, 2 corner, 1 traced",
        "bfloat16[1, 4, 7168]",
        "second reference",
        "flops formula",
        "base:reference==1.0",
    ):
        assert text in done.stdout, text


def test_show_gives_the_same_as_json() -> None:
    done = day0("ops", "show", "day0::mxfp4_decode", "--json")
    assert done.exit_code == 0, done.output
    facts, operator = json.loads(done.stdout), load_operators()["day0::mxfp4_decode"]
    assert (facts["name"], facts["version"], facts["mathematics"]) == (
        operator.name,
        operator.version,
        operator.mathematics,
    )
    assert facts["tolerance"]["reason"] == operator.tolerance.reason
    assert list(facts["attributes"]) == [attribute.name for attribute in operator.attributes]
    assert set(facts["samples"]) >= {"small", "odd", "corner"} and facts["samples"]["odd"] >= 1
    assert len(facts["sample_arguments"]) == sum(facts["samples"].values())
    assert facts["has"]["flops formula"] == (operator.flops is not None)
    assert [it["against"] for it in facts["comparisons"]] == [
        it.against for it in load_comparisons() if it.operator == "day0::mxfp4_decode"
    ]
    assert any("base:reference" in it["identity"] for it in facts["implementations"])


@pytest.mark.parametrize("name", sorted(load_operators()))
def test_every_operator_can_be_shown(name: str) -> None:
    done = day0("ops", "show", name, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["samples"]

"""`day0 ops list`, `show` and `verify`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from day0.cli.app import app
from day0.hashing import hash_file
from day0.reference_ops.agreement import _verify
from day0.reference_ops.agreement._comparison import Comparison
from day0.reference_ops.agreement._load import load_comparisons
from day0.reference_ops.load import load_operators
from day0.registry.collect import collect

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
    assert rows.keys() == {*load_operators(), *(one.operator for one in collect())}
    assert rows[NAME]["verified_against"] == ["torch", "transformers"]
    line = next(line for line in done.stdout.splitlines() if line.startswith(f"{NAME} "))
    assert "torch, transformers" in line and "base:triton==1.0" in line
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


MINE = """\
import torch
from day0.implementation import Accepted, Call, Constraints, Implementation, Limit, Rejected, TensorLimit

NAMESPACES = {"zz/own": "kimi/k3.1"}

def even_rows(call: Call) -> Accepted | Rejected:
    \"\"\"Takes even numbers of rows.\"\"\"
    return Accepted()

IMPLEMENTATIONS = (
    Implementation(
        operator="aten::silu", contract=1, id="mine", version="1.0", kind="kernel", namespace="zz/own",
        run=lambda self: self * torch.sigmoid(self), why="[red]a test[/red]", devices=("cuda",), rank=7,
        predicate=even_rows,
        constraints=Constraints(
            dtypes=frozenset({"float32"}), max_rank=3, multiple_of={0: 8},
            arguments={"self": TensorLimit(sizes={-1: Limit(at_least=8, at_most=64)})},
        ),
    ),
)
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


def test_list_is_filtered_by_name_namespace_and_device(mine: str) -> None:
    def identities(*arguments: str) -> list[str]:
        done = day0("ops", "list", *arguments, "--with", mine, "--json")
        assert done.exit_code == 0, done.output
        return [it["identity"] for row in json.loads(done.stdout).values() for it in row["implementations"]]

    own = "aten::silu@1 zz/own:mine==1.0"
    assert identities("silu") == [own]
    assert own in identities() and own in identities("--namespace", "zz/own")
    assert own not in identities("--namespace", "kimi/k3.1")
    assert own in identities("--device", "cuda") and own not in identities("--device", "sim")
    seen = identities("lightning", "--namespace", "zz/own")
    assert [one.split()[1].split(":")[0] for one in seen] == ["kimi/k3.1"] * 2 + ["base"] * 3  # as they are tried


def test_list_says_who_brought_an_implementation_and_where_it_runs(mine: str) -> None:
    done = day0("ops", "list", "s", "--with", mine)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("aten::silu ")]
    assert line.split()[1:6] == ["1", "zz/own:mine==1.0", "kernel", "cuda", mine]
    assert "day0" in next(line for line in done.stdout.splitlines() if line.startswith("aten::sort "))


def test_show_says_what_an_implementation_takes(mine: str) -> None:
    done, asked = (day0("ops", "show", "aten::silu", "--with", mine, *more) for more in ((), ("--json",)))
    assert done.exit_code == asked.exit_code == 0, done.output
    (facts,) = json.loads(asked.stdout)["implementations"]
    assert facts["constraints"] == [
        "every dtype: float32",
        "every tensor: 0 to 3 dimensions",
        "last dimension of tensor 0: a multiple of 8",
        "self: dimension -1: at least 8 and at most 64",
    ]
    assert (facts["rank"], facts["devices"], facts["source"]) == (7, ["cuda"], mine)
    assert facts["source_hash"] == hash_file(Path(mine))
    texts = ("aten::silu(Tensor self) -> Tensor", "even_rows: Takes even numbers of rows.", "[red]a test[/red]")
    for text in (*facts["constraints"], *texts, "kernel, rank 7", f"{mine}:", facts["source_hash"][:23]):
        assert text in done.stdout, text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("list", "rms_nrom"), "no operator's name holds 'rms_nrom'"),
        (("list", "--namespace", "kmi/k3"), "did you mean kimi/k3"),
        (("list", "--device", "smi"), "there is no such profile"),
        (("show", "aten::slu"), "did you mean aten::silu"),
        (("show", "nonsense"), "there is no 'nonsense'"),
    ],
)
def test_what_nobody_knows_is_refused(arguments: tuple[str, ...], says: str) -> None:
    done = day0("ops", *arguments)
    assert done.exit_code == 2 and done.stdout == "" and says in done.stderr, done.output

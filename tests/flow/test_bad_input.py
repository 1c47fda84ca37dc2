"""Each mistake ends with exit code 2 and a message that says where, what and what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import shell
from tests.flow.conftest import PLAYBOOKS, Day0, only_traced_calls

PLAYBOOK = (PLAYBOOKS / "toy-on-sim.yaml").read_text()
BLOCKED = """\
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name == "transformers":
            raise ModuleNotFoundError("No module named 'transformers'", name="transformers")
sys.meta_path.insert(0, Block())
from day0.cli.app import main
main()
"""


SMALL = """\
import torch

class Small(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.silu(x).rsqrt()

def make():
    return Small(), (torch.ones(4, 8),)
"""


def _small(folder: Path) -> None:
    """Write a model of two operators that the simulated device lacks."""
    (folder / "small.py").write_text(SMALL)


def _expect(done: subprocess.CompletedProcess[str], where: str, what: str, hint: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    first = done.stderr.strip().splitlines()[0]
    assert first.startswith(f"error: {where}"), done.stderr
    assert what in done.stderr
    assert f"hint: {hint}" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_model_type(day0: Day0) -> None:
    _expect(day0("trace", "hf:deepseek_v23"), "hf:deepseek_v23", "neither a model type nor a folder", "did you mean")


def test_an_unknown_kind_of_source(day0: Day0) -> None:
    _expect(day0("trace", "deepseek"), "model source", "'deepseek' is of no known form", "use `toy`")


def test_a_folder_without_a_config(day0: Day0, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    _expect(day0("trace", "hf:checkpoint"), "checkpoint", "there is no config.json", "name the checkpoint's own folder")


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"model_type": "nothing_like_it"}', '{"auto_map": {"AutoConfig": "x.Y"}}']
)
def test_a_config_that_is_no_config(day0: Day0, tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text(text)
    done = day0("trace", "hf:checkpoint")
    assert done.returncode == 2
    assert done.stderr.startswith("error: checkpoint/config.json: ")
    assert "hint: " in done.stderr


def test_a_config_field_that_does_not_exist(day0: Day0) -> None:
    done = day0("trace", "hf:llama", "--set", "num_hiden_layers=2")
    _expect(done, "--set num_hiden_layers", "LlamaConfig has no field", "did you mean num_hidden_layers")


def test_a_config_field_of_the_wrong_type(day0: Day0) -> None:
    done = day0("trace", "hf:llama", "--set", "num_hidden_layers=many")
    _expect(done, "--set num_hidden_layers", "expected a number such as", "write --set")


def test_malformed_yaml_with_its_line(day0: Day0, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(PLAYBOOK.replace("  fallback: cpu", "  fallback: [cpu"))
    line = PLAYBOOK.splitlines().index("  fallback: cpu") + 2
    _expect(day0("run", "p.yaml"), f"p.yaml:{line}", "malformed YAML", "correct that line")


def test_a_wrong_field_in_a_playbook_with_its_line(day0: Day0, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(PLAYBOOK.replace("fallback: cpu", "fallback: gpu"))
    line = PLAYBOOK.splitlines().index("  fallback: cpu") + 1
    _expect(day0("run", "p.yaml"), f"p.yaml:{line}: register.fallback", "got the str 'gpu'", "")


def test_an_unknown_canary_stage(day0: Day0, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(PLAYBOOK.replace("    one_layer:", "    one_layers:"))
    done = day0("run", "p.yaml")
    _expect(done, "canary.stages", "there is no stage 'one_layers'", "did you mean one_layer")


def test_a_profile_with_an_operator_that_torch_does_not_know(day0: Day0, tmp_path: Path) -> None:
    profile = day0("device", "show", "sim").stdout.replace("aten::topk:", "aten::topkk:")
    (tmp_path / "mine.yaml").write_text(profile)
    done = day0("device", "show", "mine.yaml")
    _expect(done, "mine.yaml:", "'aten::topkk' is not an operator of torch", "did you mean aten::topk")


def test_a_profile_with_a_dtype_that_does_not_exist(day0: Day0, tmp_path: Path) -> None:
    profile = day0("device", "show", "sim").stdout.replace("- bfloat16", "- bfloat17")
    (tmp_path / "mine.yaml").write_text(profile)
    done = day0("device", "show", "mine.yaml")
    assert done.returncode == 2
    assert "not a dtype; dtypes are: bool, uint8" in done.stderr


def test_an_unknown_profile(day0: Day0) -> None:
    _expect(day0("device", "show", "smi"), "device 'smi'", "there is no such profile", "did you mean sim")


def test_a_device_that_is_not_here(day0: Day0, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.fail("this test is about a machine without CUDA; give it another device")
    _small(tmp_path)
    (tmp_path / "p.yaml").write_text(
        "schema: day0.playbook/1\nname: p\nmodel: {source: 'py:small.py:make'}\ndevice: sim\n"
    )
    done = day0("run", "p.yaml", "--device", "cuda")
    _expect(done, "device 'cuda'", "cannot use it here", "install a build of torch for it")


def test_hf_without_the_extra(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BLOCKED, "trace", "hf:llama"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    _expect(done, "hf:", "the transformers library is not installed", "install the extra: pip install 'day0[hf]'")


def test_records_that_are_damaged_or_too_new(day0: Day0, tmp_path: Path) -> None:
    _small(tmp_path)
    assert day0("trace", "py:small.py:make", "--run", "r").returncode == 0
    path = tmp_path / "r" / "trace.json"
    good = path.read_text()
    path.write_text(good[: len(good) // 2])
    done = day0("inventory", "--run", "r", "--device", "sim")
    _expect(done, "r/trace.json", "the record is cut off", "make it again with `day0 trace")
    path.write_text(good.replace("day0.trace/1", "day0.trace/2"))
    done = day0("inventory", "--run", "r", "--device", "sim")
    _expect(done, "r/trace.json", "it has schema day0.trace/2, and day0", "update day0")
    newer = path.read_text()
    done = day0("trace", "py:small.py:make", "--run", "r")
    _expect(done, "r/trace.json", "it has schema day0.trace/2", "update day0")
    assert path.read_text() == newer, "a record of a later day0 is not overwritten"
    path.write_text(good)
    assert day0("inventory", "--run", "r", "--device", "sim").returncode == 0


def test_a_run_folder_of_another_model(day0: Day0, tmp_path: Path) -> None:
    _small(tmp_path)
    assert day0("trace", "py:small.py:make", "--run", "r").returncode == 0
    done = day0("trace", "hf:llama", "--run", "r")
    _expect(done, "r", "this run folder belongs to another model, py:small.py:make", "name another folder with --run")


def test_stages_out_of_order(day0: Day0, tmp_path: Path) -> None:
    _small(tmp_path)
    _expect(day0("check", "--run", "r"), "r", "there is no trace yet", "begin with `day0 trace")
    assert day0("trace", "py:small.py:make", "--run", "r").returncode == 0
    _expect(day0("inventory", "--run", "r"), "r", "no device was named yet", "add --device sim")
    done = day0("check", "--run", "r")
    assert done.returncode == 2
    done = day0("report", "--run", "nowhere")
    _expect(done, "nowhere", "there is no trace.json yet", "make it with")


def test_a_phase_longer_than_the_model(day0: Day0) -> None:
    done = day0("trace", "hf:llama", "--phase", "prefill=100000")
    _expect(done, "phase prefill", "more than the 2048 positions", "give a shorter phase")


def test_usage_mistakes_are_2_as_well(day0: Day0) -> None:
    assert day0("trace").returncode == 2
    assert day0("trace", "toy", "--bogus").returncode == 2
    assert day0("nothing").returncode == 2


def test_json_goes_to_stdout_and_talk_to_stderr(day0: Day0) -> None:
    done = day0("trace", "toy", "--phase", "prefill=4", "--run", "r", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == "day0.trace/1"
    assert "phase" in done.stderr
    quiet = json.loads(day0("device", "list", "--json").stdout)
    assert {"sim", "null", "cpu", "cuda"} <= {profile["name"] for profile in quiet}


ENTRY = """\
import sys
from day0.implementation import Implementation
{before}
ONE = Implementation({fields})
IMPLEMENTATIONS = {listed}
"""
FIELDS = {
    "operator": '"aten::silu"',
    "contract": "1",
    "id": '"mine"',
    "version": '"1.0"',
    "kind": '"kernel"',
    "run": "lambda x: x * x.sigmoid()",
    "why": '"x times its sigmoid"',
}


def _entry(before: str = "", listed: str = "(ONE,)", **changes: str) -> str:
    fields = ", ".join(f"{name}={value}" for name, value in {**FIELDS, **changes}.items())
    return ENTRY.format(before=before, fields=fields, listed=listed)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (_entry(operator='"aten::sillu"'), "there is no operator 'aten::sillu'"),
        (_entry(namespace='"no/such"'), "'no/such' is not declared"),
        (_entry(listed="(ONE, ONE)"), "stands in it twice"),
        (_entry(version="1.0"), "version of 'aten::silu': the float 1.0 cannot be used"),
        (_entry(kind='"cpu_fallback"'), "kind of 'aten::silu'"),
        (_entry(devices='"sim"'), "devices of 'aten::silu'"),
        (_entry(run="5"), "run of 'aten::silu'"),
        (_entry(before="sys.exit(0)"), "it does not run: SystemExit"),
        (_entry(before="1 / 0"), "it does not run: ZeroDivisionError"),
        ("def f(:", "it does not run: SyntaxError"),
        ("x = 1", "it has no IMPLEMENTATIONS"),
    ],
)
def test_a_file_with_implementations_that_cannot_be_used(day0: Day0, tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    done = day0("ops", "list", "--with", "mine.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert what in done.stderr
    assert "hint: " in done.stderr
    assert "bug of ours" not in done.stderr


def test_a_kernel_that_ends_the_program_has_crashed(day0: Day0, tmp_path: Path) -> None:
    _small(tmp_path)
    (tmp_path / "mine.py").write_text(_entry(operator='"aten::rsqrt"', rank="1", run="lambda x: sys.exit(0)"))
    assert day0("trace", "py:small.py:make", "--run", "r").returncode == 0
    assert day0("inventory", "--run", "r", "--device", "sim", "--with", "mine.py").returncode == 0
    assert day0("register", "--run", "r").returncode == 0
    only_traced_calls(tmp_path / "r")
    done = day0("check", "--run", "r")
    assert done.returncode == 1
    assert "crashed: SystemExit" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("hf:llama", "--set", "num_hidden_layers=null"),
        ("hf:llama", "--set", "num_attention_heads=7"),
        ("hf:llama", "--set", "hidden_size=0"),
        ("hf:llama", "--set", "vocab_size=0"),
        ("hf:llama", "--set", "to_dict=5"),
        ("hf:llama", "--set", "hidden_size=2026-99-99"),
        ("hf:llama", "--set", "hidden_size=2026-01-01"),
        ("toy", "--dtype", "int8"),
        ("toy", "--set", "nothing=1"),
        ("py:os:sep",),
        ("py:no_such_module_anywhere:f",),
        ("py::",),
    ],
)
def test_models_that_cannot_be_built(day0: Day0, arguments: tuple[str, ...]) -> None:
    done = day0("trace", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert "bug of ours" not in done.stderr


def test_a_config_field_may_be_a_mapping(day0: Day0) -> None:
    small = ("num_hidden_layers=1", "hidden_size=64", "intermediate_size=96", "num_attention_heads=4")
    options = [word for field in small for word in ("--set", field)]
    rope = "rope_parameters={rope_type: linear, factor: 2.0, rope_theta: 10000.0}"
    done = day0("trace", "hf:llama", *options, "--set", rope, "--set", "num_key_value_heads=4")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("  prompt_tokens: 20", "  prompt_tokens: 100000", "more than the 4,096 positions"),
        ("limit: 0.01", "limit: .nan", "finite"),
        ("device: sim", "device: smi", "there is no such profile"),
        ("trace: auto", "trace: magic", "'auto', 'meta', 'fake' or 'real'"),
        ("namespace: kimi/k3.1", "namespace: kimi/k31", "is not declared"),
    ],
)
def test_a_playbook_is_looked_through_before_anything_runs(
    day0: Day0, tmp_path: Path, old: str, new: str, what: str
) -> None:
    assert old in PLAYBOOK
    (tmp_path / "p.yaml").write_text(PLAYBOOK.replace(old, new))
    done = day0("run", "p.yaml")
    assert done.returncode == 2, done.stdout + done.stderr
    assert what in done.stderr
    assert not (tmp_path / "runs").exists(), "and it claims no run folder"


@pytest.mark.parametrize("line", ["tflops: {float32: 0}", "memory_gib: .inf", "kernels: Nothing", "import_module: ''"])
def test_a_profile_with_impossible_values(day0: Day0, tmp_path: Path, line: str) -> None:
    key = line.split(":")[0]
    text = day0("device", "show", "null").stdout
    kept = "".join(
        part for part in text.splitlines(keepends=True) if not part.startswith((f"{key}:", "  float", "  bfloat"))
    )
    (tmp_path / "mine.yaml").write_text(kept + line + "\n")
    done = day0("device", "show", "mine.yaml")
    assert done.returncode == 2, done.stdout
    assert key in done.stderr


def test_a_pipe_is_not_a_playbook_and_a_reader_may_go_away(day0: Day0, tmp_path: Path) -> None:
    _expect(day0("run", "/dev/zero"), "/dev/zero", "this is a device or a pipe", "name a file")
    _small(tmp_path)
    done = shell("day0 trace py:small.py:make --run r | head -1; exit ${PIPESTATUS[0]}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r" / "trace.json").exists()


def test_what_device_show_prints_is_a_profile(day0: Day0, tmp_path: Path) -> None:
    shown = day0("device", "show", "sim").stdout
    assert shown.startswith("schema: day0.device/1\n")
    (tmp_path / "mine.yaml").write_text(shown)
    assert day0("device", "show", "mine.yaml").stdout == shown


def test_replacements_can_be_switched_on_again(day0: Day0, tmp_path: Path) -> None:
    _small(tmp_path)
    assert day0("trace", "py:small.py:make", "--run", "r").returncode == 0
    assert day0("inventory", "--run", "r", "--device", "sim").returncode == 0
    assert day0("register", "--run", "r", "--no-replacements").returncode == 1
    assert day0("register", "--run", "r", "--replacements").returncode == 0

"""Each mistake ends with exit code 2 and a message that says where, what and what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flow.conftest import PLAYBOOKS, Day0

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


def test_a_device_that_is_not_here(day0: Day0) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.fail("this test is about a machine without CUDA; give it another device")
    done = day0("run", PLAYBOOKS / "toy-on-sim.yaml", "--device", "cuda")
    _expect(done, "device 'cuda'", "cannot use it here", "install a build of torch for it")


def test_hf_without_the_extra(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BLOCKED, "trace", "hf:llama"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    _expect(done, "hf:", "the transformers library is not installed", "install the extra: pip install 'day0[hf]'")


def test_records_that_are_damaged_or_too_new(day0: Day0, tmp_path: Path) -> None:
    assert day0("trace", "toy", "--run", "r", "--dtype", "float32").returncode == 0
    path = tmp_path / "r" / "trace.json"
    good = path.read_text()
    path.write_text(good[: len(good) // 2])
    done = day0("inventory", "--run", "r", "--device", "sim")
    _expect(done, "r/trace.json", "the record is cut off", "make it again with `day0 trace")
    path.write_text(good.replace("day0.trace/1", "day0.trace/2"))
    done = day0("inventory", "--run", "r", "--device", "sim")
    _expect(done, "r/trace.json", "it has schema day0.trace/2, and day0", "update day0")
    newer = path.read_text()
    done = day0("trace", "toy", "--run", "r", "--dtype", "float32")
    _expect(done, "r/trace.json", "it has schema day0.trace/2", "update day0")
    assert path.read_text() == newer, "a record of a later day0 is not overwritten"
    path.write_text(good)
    assert day0("inventory", "--run", "r", "--device", "sim").returncode == 0


def test_a_run_folder_of_another_model(day0: Day0) -> None:
    assert day0("trace", "toy", "--run", "r").returncode == 0
    done = day0("trace", "hf:llama", "--run", "r")
    _expect(done, "r", "this run folder belongs to another model, toy", "name another folder with --run")


def test_stages_out_of_order(day0: Day0) -> None:
    _expect(day0("check", "--run", "r"), "r", "there is no trace yet", "begin with `day0 trace")
    assert day0("trace", "toy", "--run", "r").returncode == 0
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
    done = day0("trace", "toy", "--run", "r", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == "day0.trace/1"
    assert "phase" in done.stderr
    quiet = json.loads(day0("device", "list", "--json").stdout)
    assert {"sim", "null", "cpu", "cuda"} <= {profile["name"] for profile in quiet}

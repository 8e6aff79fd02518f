"""The job scripts of docs/scale.md are valid for a shell and consistent for Kubernetes."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    return found


def test_the_slurm_script_is_valid(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(block("bash"), encoding="utf-8")
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    found = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_the_kubernetes_job_starts_one_process_group_on_all_its_pods() -> None:
    service, job = yaml.safe_load_all(block("yaml"))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = [*container["command"], *container["args"]]
    assert f"--nnodes={job['spec']['parallelism']}" in words
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    assert f"--nproc-per-node={container['resources']['limits']['nvidia.com/gpu']}" in words
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert f"--rdzv-endpoint={first}:29500" in words
    assert pod["subdomain"] == service["metadata"]["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }

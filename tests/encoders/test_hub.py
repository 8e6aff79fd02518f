import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"

CODE = """
from shoal.encoders.hub import import_transformers
t = import_transformers()
t.ViTModel(t.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=16))
"""


def test_transformers_is_imported_past_a_torchvision_of_another_torch(tmp_path):
    """Such a torchvision fails half-way through its import, as the real one does when its operators are missing."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import torchvision.ops\nraise RuntimeError('torchvision::nms does not exist')"
    )
    (package / "ops.py").write_text("")
    env = dict(os.environ, PYTHONPATH=f"{tmp_path}{os.pathsep}{SOURCE}")
    ran = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_transformers_keeps_its_verbosity_after_a_model_is_built(transformers, make_transformer, tmp_path):
    from shoal.encoders.hub import load_model

    make_transformer("vit").save_pretrained(tmp_path / "model")
    before = transformers.utils.logging.get_verbosity()
    load_model(str(tmp_path / "model"), offline="it is a folder")
    assert transformers.utils.logging.get_verbosity() == before
    assert transformers.utils.logging.is_progress_bar_enabled()

"""A standalone folder loads without the package and computes the same; a plain one says what to install."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from tiny import build, patched
from tokenizers import Tokenizer, models
from transformers import BertForMaskedLM, PreTrainedTokenizerFast

import hf_relpos
from hf_relpos import PatchStateError, patch_model, unpatch_model
from hf_relpos.checkpoints import bundle, standalone
from hf_relpos.checkpoints.standalone import auto_map, push_to_hub_standalone, save_standalone
from hf_relpos.families import FAMILIES
from hf_relpos.installing import HOW_TO_INSTALL, WITHOUT_INSTALLING
from hf_relpos.schemes import SCHEMES

SCRIPT = Path(__file__).parent / "without_package.py"
TRUST = {"trust_remote_code": True}
NOT_INSTALLED = (
    "The code of this model is the Python package hf_relpos, which is not installed. "
    f"{HOW_TO_INSTALL} {WITHOUT_INSTALLING}"
)


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), **more}


def without_package(tmp_path: Path, tasks: dict[str, Any], **env: str) -> dict[str, Any]:
    """Run tasks (see `without_package.py`) in a process that cannot import the package."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(tasks)],
        env=environment(tmp_path, **env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{index}": index for index in range(tiny.VOCAB)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), unk_token="w0")


def expectations(model: Any, family: str, path: Path) -> Path:
    """What a model computes, in a file."""
    expected: dict[str, Any] = {"batch": tiny.inputs(family)}
    with torch.no_grad():
        expected["output"] = model(**expected["batch"])[0]
        if model.can_generate():
            prompt = {"input_ids": tiny.tokens(2, 4), "max_new_tokens": 5, "do_sample": False}
            expected |= {"prompt": prompt, "generated": model.generate(**prompt)}
    torch.save(expected, path)
    return path


CASES = {
    family: (list(tiny.SCHEMES)[index % len(tiny.SCHEMES)], tiny.NATIVE[index % 3], tiny.GATES[(index + 1) % 3])
    for index, family in enumerate(tiny.FAMILIES, start=2)
}
# Those that are the same in a folder, for every second family.
ENGINES = dict(zip(tiny.FAMILIES, itertools.cycle(("blockwise", "auto"))))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, Any]:
    """What a process without the package says of standalone folders of all families, and of a plain one."""
    tmp_path = tmp_path_factory.mktemp("models")
    patched("bert").save_pretrained(tmp_path / "plain")
    plain = {"name": str(tmp_path / "plain"), "auto_class": "AutoModel"}
    tasks: dict[str, Any] = {"plain": {**plain, "options": TRUST}, "plain, not trusted": plain}
    for family, (scheme, native, gate) in CASES.items():
        model = patched(family, scheme, native, gate, engine=ENGINES[family])
        folder = save_standalone(model, tmp_path / family, tokenizer=tokenizer())
        common = {"name": str(folder), "options": TRUST}
        for auto_class in ("AutoConfig", "AutoModel", "AutoTokenizer"):
            tasks[f"{family} {auto_class}"] = {**common, "auto_class": auto_class}
        expected = str(expectations(model, family, tmp_path / f"{family}.pt"))
        head = {**common, "auto_class": tiny.AUTO_HEAD[family], "expected": expected}
        tasks[f"{family} head"] = {**head, "resave": str(tmp_path / "again" / family)}
        # What such a process saves can be loaded in such a process.
        tasks[f"{family} again"] = {**head, "name": str(tmp_path / "again" / family)}
    return without_package(tmp_path, tasks)


@pytest.mark.core
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_standalone_folder_computes_the_same_without_the_package(family, outcomes):
    """Up to rounding: its engines are those in Python. By the same engine it is bit for bit."""
    model = patched(family)
    for outcome in (outcomes[f"{family} head"], outcomes[f"{family} again"]):
        assert outcome.pop("off") <= (0.0 if ENGINES[family] == "blockwise" else 1e-5)
        assert outcome == {"class": type(model).__name__, "recorded": True, "generated": True}


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_standalone_folder_opens_through_the_general_auto_classes(family, outcomes):
    model = patched(family)
    assert outcomes[f"{family} AutoConfig"] == type(model.config).__name__
    assert outcomes[f"{family} AutoModel"] == type(transformers.AutoModel.from_config(model.config)).__name__
    assert "Tokenizer" in outcomes[f"{family} AutoTokenizer"]


def test_a_plain_folder_says_what_to_install(outcomes):
    assert outcomes["plain"] == f"ModuleNotFoundError: {NOT_INSTALLED}"
    assert "trust_remote_code=True" in outcomes["plain, not trusted"]  # which leads to the other one


FRESH_PROCESS = """
import json, sys
from transformers import AutoModelForMaskedLM
for source, target in json.loads(sys.argv[1]):
    model = AutoModelForMaskedLM.from_pretrained(source, trust_remote_code=True)
    assert type(model).__module__ == "hf_relpos.models", type(model)
    model.save_pretrained(target)
assert not [name for name in sys.modules if name.startswith("transformers_modules.") and "relpos_models" in name]
"""


def test_the_package_wins_where_it_is_installed(tmp_path):
    """Also if nobody imported it, and whether or not the folder's code is trusted once somebody has."""
    model = patched("bert", "sum")
    model.save_pretrained(tmp_path / "plain")
    save_standalone(model, tmp_path / "standalone")
    ways = [(str(tmp_path / kind), str(tmp_path / f"{kind} again")) for kind in ("plain", "standalone")]
    command = [sys.executable, "-P", "-c", FRESH_PROCESS, json.dumps(ways)]
    subprocess.run(command, env=environment(tmp_path), stdin=subprocess.DEVNULL, check=True, timeout=300)
    for source, target in ways:
        # The package's own files are not copied, and nothing points at files that are not there.
        assert [path.name for path in Path(target).glob("*.py")] == [standalone.ENTRY_FILE]
        config = json.loads((Path(target) / "config.json").read_text())
        assert config["auto_map"] == {"AutoConfig": "modeling_hf_relpos.RelPosBertConfig"}
        for options in ({}, TRUST):
            loaded = transformers.AutoModelForMaskedLM.from_pretrained(source, **options)
            assert type(loaded) is type(model)
            batch = tiny.inputs("bert")
            assert torch.equal(tiny.logits(loaded, batch), tiny.logits(model, batch))


def test_a_plain_save_takes_the_code_of_a_standalone_one_out_of_the_folder(tmp_path):
    folder, model = tmp_path / "model", patched("t5")
    save_standalone(model, folder)
    of_another_version = bundle.header("hf_relpos.gone").replace(hf_relpos.__version__, "0.0.1")
    (folder / "relpos_gone.py").write_text(of_another_version)
    (folder / "relpos_notes.py").write_text('"""Mine."""')
    (folder / "notes.py").write_text(bundle.header("hf_relpos.notes"))
    save_standalone(model, folder)  # over itself: what this version does not have goes
    theirs = {standalone.ENTRY_FILE, "notes.py", "relpos_notes.py"}
    assert {path.name for path in folder.glob("*.py")} == theirs | set(bundle.bundled_files())
    model.save_pretrained(folder)
    assert {path.name for path in folder.glob("*.py")} == theirs
    task = {"name": str(folder), "auto_class": tiny.AUTO_HEAD["t5"], "options": TRUST}
    assert without_package(tmp_path, {"plain": task})["plain"].endswith(NOT_INSTALLED)
    assert "with the code in this folder" not in (folder / "README.md").read_text()


def test_a_process_that_does_not_write_leaves_the_folder_alone(tmp_path):
    model = patched("bert")
    save_standalone(model, tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    model.save_pretrained(tmp_path, is_main_process=False)
    assert before <= {path.name for path in tmp_path.iterdir()}


def test_an_unpatched_model_does_not_point_at_our_code(tmp_path):
    save_standalone(patched("bert"), tmp_path / "patched")
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "patched")
    unpatch_model(loaded).save_pretrained(tmp_path / "plain")
    assert "auto_map" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    assert type(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "plain")) is BertForMaskedLM


def test_saving_leaves_the_config_of_the_model_as_it_was(tmp_path):
    model = patched("gpt2")
    before = model.config.to_dict()
    save_standalone(model, tmp_path)
    after = model.config.to_dict()
    assert {**after, "dtype": None, "architectures": None} == {**before, "dtype": None, "architectures": None}


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_auto_class_that_knows_the_family_is_in_the_config(family):
    model = patched(family)
    named = auto_map(model)
    assert {tiny.AUTO_HEAD[family], "AutoModel", "AutoConfig"} <= set(named)
    for auto_class, reference in named.items():
        file, name = reference.split(".")
        assert file == standalone.ENTRY
        assert getattr(hf_relpos, name).__name__ == name
        if auto_class != "AutoConfig":
            assert type(getattr(transformers, auto_class).from_config(model.config)).__name__ == name


def test_a_model_that_is_not_patched_is_refused(tmp_path):
    for save, where in ((save_standalone, tmp_path / "new"), (push_to_hub_standalone, "me/new")):
        with pytest.raises(PatchStateError, match="BertForMaskedLM is not patched"):
            save(build("bert"), where)
    assert not (tmp_path / "new").exists()


def assert_refused(model, words, folder):
    for save, where in ((save_standalone, folder / "new"), (push_to_hub_standalone, "me/new")):
        with pytest.raises(PatchStateError, match=words):
            save(model, where)
    assert not (folder / "new").exists()


def test_a_scheme_that_another_package_has_registered_cannot_be_carried(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Theirs(hf_relpos.Shaw):
        name = "theirs"

    monkeypatch.setitem(SCHEMES, "theirs", Theirs)
    model = patch_model(build("bert"), Theirs(2))
    assert_refused(model, rf"the scheme 'theirs' \(of {__name__}\) was registered by another package", tmp_path)


def test_a_family_that_another_package_has_registered_cannot_be_carried(tmp_path, monkeypatch):
    model = patch_model(build("bert"), "shaw")
    theirs = replace(FAMILIES["bert"], adapters_like="bert")  # an object that no module of ours has
    monkeypatch.setattr(type(model), "relpos_family", theirs)
    assert_refused(model, "the family 'bert' was registered by another package", tmp_path)


# The files


def test_each_file_is_a_module_of_the_package_with_other_imports():
    """Nothing is written twice: what is bundled is the source itself."""
    for name, text in bundle.bundled_files().items():
        module = re.search(r"Generated by hf_relpos \S+ from (hf_relpos\.[\w.]*\w)", text)[1]
        if module == "hf_relpos.checkpoints.bundle":  # which has something else for this one
            continue
        source = Path(importlib.util.find_spec(module).origin).read_text()
        imports = {
            number
            for node in ast.walk(ast.parse(source))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for number in range(node.lineno, node.end_lineno + 1)
        }
        kept = [line for number, line in enumerate(source.splitlines(), start=1) if number not in imports]
        missing = [line for line in kept if line not in text.splitlines()]
        assert missing == (['ATTENTION_NAME = "relpos"'] if module == "hf_relpos.names" else []), name


def test_every_file_is_readable_versioned_licensed_and_found_by_the_loader():
    files = bundle.bundled_files()
    assert {"relpos_modeling_configs.py", "relpos_models.py", "relpos_engines_cuda_kernels.py"} <= set(files)
    for name, text in files.items():
        assert text.startswith("# Copyright"), name
        assert "Apache License, Version 2.0" in text
        assert f"Generated by hf_relpos {hf_relpos.__version__} from hf_relpos." in text
        tree = ast.parse(text)
        assert ast.get_docstring(tree) or name == "relpos_version.py", name
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("hf_relpos") for alias in node.names), name
            elif isinstance(node, ast.ImportFrom) and node.level:
                # The only form in which Transformers sees that a file needs another one.
                assert node.level == 1, name
                assert re.search(rf"^\s*from \.{node.module} import", text, re.MULTILINE)
                assert f"{node.module}.py" in files
            elif isinstance(node, ast.ImportFrom):
                assert not node.module.startswith("hf_relpos"), name


def test_each_copy_of_the_code_has_an_attention_name_of_its_own():
    text = bundle.bundled_files()["relpos_names.py"]
    line = re.search(r"^ATTENTION_NAME = .*$", text, re.MULTILINE)[0]
    assert "sha256(__name__.encode())" in line
    names: list[dict[str, Any]] = [
        {"__name__": name} for name in ("transformers_modules.flash", "transformers_modules.b")
    ]
    for values in names:
        exec(f"from hashlib import sha256\n{line}", values)
    first, second = (values["ATTENTION_NAME"] for values in names)
    assert first != second
    assert "flash" not in first  # Transformers reads meaning into words in the name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"""Doc."""\nimport hf_relpos.terms\n', "line 2: write `from hf_relpos import"),
        ('"""Doc."""\nfrom hf_relpos import Shaw\n', "line 2: import Shaw from where it is defined"),
    ],
)
def test_what_cannot_be_bundled_is_refused_with_its_line(text, message):
    with pytest.raises(bundle.BundleError, match=message):
        bundle.flattened("hf_relpos.layer", text)


def test_relative_imports_and_other_names_are_followed():
    text = (
        '"""Doc."""\n\nfrom .engines import eager as slow, attend\n\n\ndef late():\n    from .terms import widen as w\n'
    )
    flat = bundle.flattened("hf_relpos.layer", text, as_module=True)
    assert "from .relpos_engines_eager import THIS_MODULE as slow\nfrom .relpos_engines import attend\n" in flat
    assert "    from .relpos_terms import widen as w\n" in flat
    assert flat.index("THIS_MODULE = sys.modules[__name__]") < flat.index("from .relpos_engines_eager")


def test_its_card_says_how_to_load_it_without_the_package(tmp_path):
    model = patch_model(build("bert"), "shaw")
    save_standalone(model, tmp_path, max_shard_size="10KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    text = (tmp_path / "README.md").read_text()
    assert "trust_remote_code=True)" in text
    assert HOW_TO_INSTALL in text
    assert "ask for a standalone copy" not in text  # it is one
    assert "patched, not yet trained" in text

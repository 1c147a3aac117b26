"""What docs/extending.md shows works as it stands there, from outside of the package."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import by_formula
import fresh
import pytest
import reference
import tiny
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

import hf_relpos
from hf_relpos import RelPosConfig, RelPosConfigError, patch_model, patch_report, register_scheme
from hf_relpos.calls import AttentionCall
from hf_relpos.cards.card import model_card
from hf_relpos.masks import AttentionMask
from hf_relpos.schemes import SCHEMES, AttentionGeometry, Scheme, SchemeConfig
from hf_relpos.schemes.trial import built
from hf_relpos.terms import RelativeTerms

DOCUMENT = Path(__file__).parents[1] / "docs" / "extending.md"


def code_of(section: str) -> str:
    """The first block of Python in a section of the document."""
    text = DOCUMENT.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2]
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.fixture
def kerple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The document's scheme, as a module of somebody else's."""
    path = tmp_path / "my_kerple.py"
    path.write_text(code_of("A scheme"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("my_kerple", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "my_kerple", module)
    spec.loader.exec_module(module)
    yield module
    del SCHEMES["kerple"]


def formula(p: Tensor, r: Tensor, gate: Tensor) -> by_formula.Formula:
    def attend(query, key, value, offsets, hidden, scale):
        bias = -(gate * p)[:, None, None] * (1 + r.abs()[:, None, None] * offsets.abs()).log()
        return by_formula.weights_of(query @ key.mT * scale + bias, hidden) @ value

    return attend


def test_the_scheme_is_short_and_needs_only_what_is_public():
    code = code_of("A scheme")
    assert len(code.splitlines()) < 40
    for module, names in re.findall(r"^from (hf_relpos\S*) import (.*)$", code, re.MULTILINE):
        for name in names.split(", "):
            assert name in sys.modules[module].__all__
    assert not re.search(r"\._[a-z]", code)


@pytest.mark.core
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("engine", ["auto", "eager", "blockwise"])
def test_the_scheme_is_its_formula_with_its_gradients(kerple: Any, causal: bool, engine: str):
    geometry = AttentionGeometry(num_heads=3, head_dim=4, causal=causal)
    config = RelPosConfig("kerple", engine=engine)
    tensors = by_formula.states(geometry, length=150)
    for name in ("schemes.0.p", "schemes.0.r", "gate.weight"):
        tensors[name] = torch.randn(3, dtype=torch.float64)

    def expected(leaves: dict[str, Tensor]) -> Tensor:
        offsets = torch.arange(150) - torch.arange(150)[:, None]
        attend = formula(leaves["schemes.0.p"], leaves["schemes.0.r"], leaves["gate.weight"])
        hidden = by_formula.causal_of(geometry, offsets)
        return attend(leaves["query"], leaves["key"], leaves["value"], offsets, hidden, 0.5)

    mask = AttentionMask(150, 150, causal=causal)
    reference.assert_all_close(
        reference.output_and_gradients(
            lambda leaves: by_formula.layer_output(config, geometry, leaves, mask, 0.5), tensors
        ),
        reference.output_and_gradients(expected, tensors),
        1e-10,
    )


@pytest.mark.core
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_model_with_it_starts_exact_saves_and_loads_where_it_is_imported(kerple: Any, family: str, tmp_path: Path):
    stock = tiny.build(family, dtype=torch.float64)
    batch = tiny.inputs(family, 13)
    before = tiny.logits(stock, batch)
    model = patch_model(stock, RelPosConfig(kerple.Kerple(scale=0.5), native="keep"))
    tiny.assert_close(tiny.logits(model, batch), before)
    assert all((layer.relpos.schemes[0].r == 0.5).all() for _, layer in tiny.self_attentions(model))

    tiny.fill(model)
    layers = [attention.relpos for _, attention in tiny.self_attentions(model)]
    expected = tiny.build(family, dtype=torch.float64)
    for layer, (_, attention) in zip(layers, tiny.self_attentions(expected), strict=True):
        attention.__dict__["formula"] = formula(layer.schemes[0].p, layer.schemes[0].r, layer.gate.weight)
    expected.set_attn_implementation(by_formula.NAME)
    tiny.assert_close(tiny.real_logits(model, batch), tiny.real_logits(expected, batch), 1e-10)

    model.save_pretrained(tmp_path / "saved")
    torch.save({"batch": batch, "wanted": tiny.logits(model, batch)}, tmp_path / "case.pt")
    load = f"import torch, transformers\nmodel = transformers.{tiny.AUTO_HEAD[family]}.from_pretrained('saved')\n"
    check = (
        "case = torch.load('case.pt')\n"
        "with torch.no_grad():\n"
        "    torch.testing.assert_close(model.eval()(**case['batch']).logits, case['wanted'], rtol=0, atol=1e-10)\n"
    )
    fresh.run("import my_kerple\n" + load + check, folder=tmp_path, paths=[tmp_path])


def test_a_model_whose_scheme_is_not_there_says_which_are(kerple: Any, monkeypatch: pytest.MonkeyPatch):
    written = RelPosConfig("kerple").to_dict()
    monkeypatch.delitem(SCHEMES, "kerple")
    with pytest.raises(RelPosConfigError, match=r"'kerple'.*'shaw', 't5', 'clipped'"):
        RelPosConfig.from_dict(written)
    monkeypatch.undo()
    SCHEMES["kerple"] = kerple.Kerple


@pytest.mark.core
def test_report_card_groups_and_adapters_know_it(kerple: Any):
    model = patch_model(tiny.build("bert"), "kerple")
    assert "Kerple()" in str(patch_report(model))
    text = model_card(model, "x").text
    assert "`kerple` (scale=1.0)" in text
    assert "computes what the pretrained model computed" in text
    assert "does not tell tokens apart" not in text

    groups = hf_relpos.relpos_param_groups(model, lr=1e-3, relpos_lr=0.5)
    fast = {id(parameter) for group in groups if group["lr"] == 0.5 for parameter in group["params"]}
    assert fast == {id(parameter) for parameter in tiny.added(model).values()}

    save = hf_relpos.peft_modules_to_save(model)
    adapted = get_peft_model(model, LoraConfig(target_modules=["query"], modules_to_save=save))
    learning = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert len([name for name in learning if name.endswith((".p", ".r"))]) == 2 * tiny.LAYERS


# Registering


class Bare(Scheme):
    pass


def scheme(**attributes: Any) -> type[SchemeConfig]:
    """A config that fits, but for the attributes given; None takes one away."""
    whole = {
        "name": "bare",
        "parts": frozenset({"bias"}),
        "horizon": None,
        "starts_exact": True,
        "learns": False,
        "build": lambda self, geometry: Bare(),
        **attributes,
    }
    kept = {name: value for name, value in whole.items() if not (name in attributes and value is None)}
    return type("BareConfig", (SchemeConfig,), {"__module__": __name__, **kept})


def frozen(config: type, **fields: Any) -> type:
    config.__annotations__ = dict.fromkeys(fields, "object")
    for name, value in fields.items():
        if value is not dataclasses.MISSING:
            setattr(config, name, value)
    return dataclasses.dataclass(frozen=True)(config)


@pytest.mark.core
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("alibi", "a subclass of hf_relpos.schemes.SchemeConfig"),
        (hf_relpos.Shaw(), "must be a class"),
        (dict, "a subclass of hf_relpos.schemes.SchemeConfig"),
        (scheme(), r"@dataclass\(frozen=True\)"),
        (frozen(scheme(build=None, parts=None)), "must define build, parts"),
        (frozen(scheme(name=None)), "has the name None"),
        (frozen(scheme(name="My scheme")), "lower-case"),
        (frozen(scheme(name="shaw")), r"which is that of hf_relpos\.schemes\.shaw\.Shaw"),
        (frozen(scheme(), type="x"), "a field 'type'"),
        (frozen(scheme(), size=dataclasses.MISSING), "'size' without a default"),
        (frozen(scheme(), sizes=(1, 2)), r"'sizes' whose default \(1, 2\) is nothing that JSON can hold"),
        (frozen(scheme(start_fields=frozenset({"init"}))), r"'init' in `start_fields`"),
        (
            frozen(scheme(parts=frozenset({"biass"}))),
            r"\['biass'\], but must have a frozenset of some of 'bias', 'branch'",
        ),
        (frozen(scheme(parts=frozenset())), r"the parts \[\]"),
        (frozen(scheme(parts="bias")), "the parts 'bias', but must have a frozenset"),
        (frozen(scheme(horizon="far")), "the horizon 'far', but it must be a distance"),
        (frozen(scheme(horizon=-1)), "the horizon -1, but"),
        (frozen(scheme(starts_exact="yes")), "has starts_exact='yes', but it must be True or False"),
        (frozen(scheme(learns=1)), "has learns=1, but it must be True or False"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused_in_words_and_not_registered(given: Any, words: str):
    before = dict(SCHEMES)
    with pytest.raises(RelPosConfigError, match=words):
        register_scheme(given)
    assert before == SCHEMES


@pytest.mark.core
def test_registering_again_and_reloading_are_harmless(monkeypatch: pytest.MonkeyPatch):
    assert register_scheme(hf_relpos.Shaw) is hf_relpos.Shaw
    first, second = frozen(scheme()), frozen(scheme())
    assert register_scheme(first) is first
    try:
        assert register_scheme(second) is second
        assert SCHEMES["bare"] is second
        assert RelPosConfig("bare").schemes == (second(),)
        with pytest.raises(RelPosConfigError, match="'bare'"):
            RelPosConfig("fourier")
    finally:
        del SCHEMES["bare"]


def giving(terms: Any = None, **buffers: bool) -> Scheme:
    """A module that gives such terms, with buffers that are saved or not."""
    module = type("Giving", (Scheme,), {"tables": lambda self, reach, like: terms})()
    for name, saved in buffers.items():
        module.register_buffer(name, torch.zeros(1), persistent=saved)
    return module


@pytest.mark.core
@pytest.mark.parametrize(
    ("module", "said", "words"),
    [
        (torch.nn.Linear(1, 1), {}, "builds a Linear, but must build a hf_relpos.schemes.Scheme"),
        (None, {}, "builds a NoneType"),
        (Bare(), {}, "gives none as tables, but its `parts` have 'bias'"),
        (Bare(), {"learns": True}, "says learns=True, but its module has no parameters"),
        (hf_relpos.T5Bias().build(AttentionGeometry(4, 8, False)), {}, "False, but its module has the parameters"),
        (giving(RelativeTerms(bias=torch.zeros(1, 3)), slopes=False), {}, "keeps slopes in buffers that are not saved"),
        (giving(torch.zeros(1, 3)), {}, "gives a Tensor as tables"),
        (giving(RelativeTerms(bias=torch.zeros(3))), {}, r"'bias' the shape \[3\], but it must be \[4 or 1, 2k \+ 1\]"),
        (giving(RelativeTerms(bias=torch.zeros(3, 3))), {}, r"the shape \[3, 3\]"),
        (giving(RelativeTerms(bias=torch.zeros(1, 4))), {}, r"the shape \[1, 4\]"),
        (
            giving(RelativeTerms(key=torch.zeros(1, 3, 5))), {"parts": frozenset({"key"})},
            r"the shape \[1, 3, 5\], but it must be \[4 or 1, 2k \+ 1, 8\]",
        ),
        (giving(RelativeTerms(bias=torch.zeros(1, 3))), {"parts": frozenset({"key"})}, "gives 'bias' as .* have 'key'"),
        (giving(RelativeTerms()), {"parts": frozenset({"branch"})}, "gives no branch, but its `parts` are 'branch'"),
    ],
    ids=range(13),
)  # fmt: skip
def test_a_module_that_is_not_what_its_scheme_says_is_refused_before_the_model_is_touched(
    module: Any, said: dict[str, Any], words: str
):
    config = frozen(scheme(build=lambda self, geometry: module, **said))()
    model = tiny.build("bert", hidden_size=32, num_attention_heads=4)
    before = tiny.snapshot(model)
    with pytest.raises(RelPosConfigError, match=words):
        patch_model(model, config)
    tiny.assert_same(before, tiny.snapshot(model))


@pytest.mark.core
def test_nothing_is_tried_where_there_are_no_values():
    module = type("Reading", (Scheme,), {"tables": lambda self, reach, like: RelativeTerms(bias=float(like.sum()))})()
    with torch.device("meta"):
        assert built(frozen(scheme(build=lambda self, geometry: module))(), AttentionGeometry(4, 8, False)) is module
    placeholder = giving()
    placeholder.table = torch.nn.Parameter(torch.empty(0))
    config = frozen(scheme(build=lambda self, geometry: placeholder, learns=True))()
    assert built(config, AttentionGeometry(4, 8, False)) is placeholder


@pytest.mark.core
def test_what_is_saved_of_a_scheme_may_be_in_buffers():
    module = giving(RelativeTerms(bias=torch.zeros(1, 3)), slopes=True)
    patch_model(tiny.build("bert"), frozen(scheme(build=lambda self, geometry: module))())


class Placed(Scheme):
    def __init__(self, geometry: AttentionGeometry) -> None:
        super().__init__()
        self.place = (geometry.layer, geometry.num_layers)

    def beside(self, call: AttentionCall) -> Tensor:
        return torch.zeros_like(call.query)


@dataclasses.dataclass(frozen=True)
class PlacedConfig(SchemeConfig):
    name: ClassVar[str] = "placed"
    parts = frozenset({"branch"})
    horizon = None
    starts_exact = True
    learns = False

    def build(self, geometry: AttentionGeometry) -> Scheme:
        return Placed(geometry)


@pytest.mark.core
def test_a_scheme_is_told_its_layer():
    def places(model: Any) -> list[tuple[int, int]]:
        return [module.place for module in model.modules() if isinstance(module, Placed)]

    for family, stacks in (("bert", 1), ("t5", 2)):
        assert places(patch_model(tiny.build(family), PlacedConfig())) == [(0, 2), (1, 2)] * stacks
    shared = RelPosConfig(PlacedConfig(), share_layers=True)
    assert places(patch_model(tiny.build("bert"), shared)) == [(0, 2)]
    assert places(patch_model(tiny.build("bert"), RelPosConfig(PlacedConfig(), layers=[1]))) == [(1, 2)]


# The family


@pytest.mark.core
def test_the_family_is_short_and_needs_only_what_is_public():
    code = code_of("A family")
    assert len(code.splitlines()) < 20
    assert "register_family" in hf_relpos.__all__
    for module, names in re.findall(r"^from (hf_relpos\S*) import (.*)$", code, re.MULTILINE):
        for name in names.split(", "):
            assert name in sys.modules[module].__all__
    assert "._" not in code


@pytest.mark.core
@pytest.mark.parametrize("native", ["keep", "gate", "drop"])
def test_a_model_of_the_family_is_patched_trained_saved_loaded_and_unpatched(native, tmp_path):
    (tmp_path / "my_opt.py").write_text(code_of("A family"), encoding="utf-8")
    fresh.run(
        """
            import sys
            import torch, transformers
            import my_opt
            from hf_relpos import RelPosConfig, Shaw, patch_model, patch_report, unpatch_model

            folder, native = sys.argv[1:]
            torch.manual_seed(0)
            config = transformers.OPTConfig(
                vocab_size=50, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2, dropout=0.0,
                word_embed_proj_dim=16, max_position_embeddings=16, pad_token_id=1, bos_token_id=2, eos_token_id=None,
            )
            model = transformers.OPTForCausalLM(config).eval()
            ids = torch.arange(3, 14)[None]
            before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            with torch.no_grad():
                stock = model(ids).logits
            patch_model(model, RelPosConfig(Shaw(max_distance=3), native=native))
            with torch.no_grad():
                if native != "drop":
                    torch.testing.assert_close(model(ids).logits, stock, atol=1e-6, rtol=1e-6)
                else:
                    assert (model(ids).logits - stock).abs().max() > 1e-3
            report = patch_report(model)
            assert report.num_layers == 2 and report.trained_length == 16, report

            added = {name: parameter for name, parameter in model.named_parameters() if "relpos" in name}
            start = {name: parameter.detach().clone() for name, parameter in added.items()}
            optimizer = torch.optim.SGD(added.values(), 5.0)
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            assert all(not torch.equal(start[name], parameter) for name, parameter in added.items())

            long = torch.arange(3, 23)[None]
            try:
                model(long)
                assert native == "drop"
            except ValueError as error:
                assert native != "drop" and "beyond the 16 positions" in str(error), error
            with torch.no_grad():
                trained = model(ids).logits
            model.save_pretrained(folder + "/saved")
            torch.save((ids, trained), folder + "/expected.pt")
            unpatch_model(model)
            assert type(model) is transformers.OPTForCausalLM
            state = model.state_dict()
            assert list(state) == list(before) and all(torch.equal(state[name], before[name]) for name in before)
            with torch.no_grad():
                assert torch.equal(model(ids).logits, stock)
        """,
        str(tmp_path), native, paths=[tmp_path],
    )  # fmt: skip
    load = """
        import sys
        import torch, transformers
        import my_opt

        ids, trained = torch.load(sys.argv[1] + "/expected.pt")
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            sys.argv[1] + "/saved", output_loading_info=True)
        assert not any(loading.values()), loading
        with torch.no_grad():
            assert torch.equal(model(ids).logits, trained)
        made = model.generate(ids, max_new_tokens=3, do_sample=False)
        with torch.no_grad():
            assert torch.equal(model(made).logits[:, 10:-1].argmax(-1), made[:, 11:])
        print(type(model).__name__, [name for name in sys.modules if ".modeling_bert" in name])
    """
    assert fresh.run(load, str(tmp_path), paths=[tmp_path]).split("\n")[-2] == "RelPosOPTForCausalLM []"
    with pytest.raises(RuntimeError, match="trust_remote_code"):
        fresh.run(load.replace("import my_opt", "import hf_relpos"), str(tmp_path))

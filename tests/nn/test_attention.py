"""dualform.nn.MultiheadAttention against torch.nn.MultiheadAttention."""

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from dualform.errors import RecordingError
from dualform.nn import MultiheadAttention, unfuse
from tests.nn.cases import Spy

HEADS, BATCH, TARGET, SOURCE = 2, 3, 4, 5
EMBED = 6


def twins(dtype: torch.dtype = torch.float64, **options: Any) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    """Equal modules, with biases that are not zero."""
    fused = nn.MultiheadAttention(EMBED, HEADS, dtype=dtype, **options)
    for parameter in fused.parameters():
        nn.init.normal_(parameter, std=0.5)
    visible = MultiheadAttention(EMBED, HEADS, dtype=dtype, **options)
    visible.load_state_dict(fused.state_dict())
    return fused, visible


@dataclass(frozen=True)
class Inputs:
    """What an attention module is called with: of one tensor, of two, or of three."""

    tensors: tuple[Tensor, ...]
    masks: dict[str, Any]

    @property
    def qkv(self) -> tuple[Tensor, ...]:
        return (self.tensors[0], self.tensors[-1] if len(self.tensors) < 3 else self.tensors[1], self.tensors[-1])


def inputs_for(module: nn.MultiheadAttention, distinct: int = 3, batched: bool = True, **masks: Any) -> Inputs:
    """Make `distinct` different tensors: 1 is self-attention, 2 has values that are the keys."""
    dtype = module.out_proj.weight.dtype
    source = TARGET if distinct == 1 else SOURCE
    sizes = [(TARGET, EMBED), (source, module.kdim), (source, module.vdim)][:distinct]

    def shape(time: int, width: int) -> tuple[int, ...]:
        if not batched:
            return time, width
        return (BATCH, time, width) if module.batch_first else (time, BATCH, width)

    return Inputs(tuple(torch.randn(shape(*size), dtype=dtype, requires_grad=True) for size in sizes), masks)


def everything(module: nn.MultiheadAttention, inputs: Inputs) -> tuple[Any, list[Tensor | None]]:
    """What a module returns, and the gradients of all there is: parameters, inputs, masks."""
    torch.manual_seed(7)
    output, weights = module(*inputs.qkv, **inputs.masks)
    loss = output.sin().sum() if weights is None else output.sin().sum() + weights.square().sum()
    learnt = [mask for mask in inputs.masks.values() if isinstance(mask, Tensor) and mask.requires_grad]
    wanted = [*module.parameters(), *inputs.tensors, *learnt]
    return (output, weights), list(torch.autograd.grad(loss, wanted, allow_unused=True))


def masks_of(attn: str, padding: str, module: nn.MultiheadAttention, source: int, batched: bool) -> dict[str, Tensor]:
    """Masks by name: none, bool, float, or bool for each head. The first source is never masked."""
    batch, dtype = BATCH if batched else 1, module.out_proj.weight.dtype
    masks = {}
    if attn != "none":
        shape = (batch * HEADS, TARGET, source) if attn.endswith("3") else (TARGET, source)
        mask = torch.rand(shape) > 0.6
        mask[..., 0] = False
        masks["attn_mask"] = torch.randn(shape, dtype=dtype, requires_grad=True) if "float" in attn else mask
    if padding != "none":
        mask = torch.rand(batch, source) > 0.6
        mask[:, 0] = False
        mask = mask if batched else mask[0]
        masks["key_padding_mask"] = mask if padding == "bool" else torch.randn(mask.shape, dtype=dtype)
    return masks


OPTIONS = st.fixed_dictionaries(
    {
        "bias": st.booleans(),
        "batch_first": st.booleans(),
        "add_bias_kv": st.booleans(),
        "add_zero_attn": st.booleans(),
        "dropout": st.sampled_from([0.0, 0.5]),
        "kdim": st.sampled_from([None, 3]),
        "vdim": st.sampled_from([None, 4]),
    }
)
CALLS = st.fixed_dictionaries({"need_weights": st.booleans(), "average_attn_weights": st.booleans()})
ATTN, PADDING = ["none", "bool", "float", "bool3", "float3"], ["none", "bool", "float"]


@given(
    OPTIONS, CALLS, st.sampled_from(ATTN), st.sampled_from(PADDING), st.integers(1, 3), st.booleans(), st.booleans(),
    st.integers(0, 2**16), st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_everything_equals_torch(
    options: dict[str, Any], how: dict[str, bool], attn: str, padding: str, distinct: int, batched: bool,
    training: bool, seed: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    assume("none" in (attn, padding) or attn.removesuffix("3") == padding)  # torch wants them of one type
    if options["kdim"] or options["vdim"]:
        distinct = 3
    torch.manual_seed(seed)
    fused, visible = twins(dtype, **options)
    masks = masks_of(attn, padding, fused, TARGET if distinct == 1 else SOURCE, batched)
    inputs = inputs_for(fused, distinct, batched, **masks, **how)
    close = 1e-6 if dtype == torch.float32 else 1e-12
    expected, expected_gradients = everything(fused.train(training), inputs)
    found, gradients = everything(visible.train(training), inputs)
    assert_close(found, expected, rtol=0, atol=10 * close)
    assert_close(gradients, expected_gradients, rtol=100 * close, atol=100 * close)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_causal_masks(need_weights: bool, batch_first: bool, padded: bool) -> None:
    fused, visible = twins(batch_first=batch_first)
    causal = nn.Transformer.generate_square_subsequent_mask(TARGET, dtype=torch.float64)
    padding = {"key_padding_mask": torch.zeros(BATCH, TARGET, dtype=torch.float64)} if padded else {}
    masks: dict[str, Any] = {"attn_mask": causal, "is_causal": True, "need_weights": need_weights, **padding}
    inputs = inputs_for(fused, 1, **masks)
    assert_close(everything(visible, inputs), everything(fused, inputs), rtol=0, atol=1e-12)
    with pytest.raises(RuntimeError, match="pass attn_mask, too"):
        visible(*inputs.qkv, is_causal=True)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("distinct", [1, 2])
def test_the_fast_path_of_evaluation_says_the_same(need_weights: bool, distinct: int) -> None:
    fused, visible = twins(torch.float32, batch_first=True)
    inputs = inputs_for(fused, distinct, need_weights=need_weights)
    with torch.no_grad():
        expected = fused.eval()(*inputs.qkv, **inputs.masks)
        assert_close(visible.eval()(*inputs.qkv, **inputs.masks), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("distinct", [1, 2, 3])
def test_autocast(need_weights: bool, distinct: int) -> None:
    fused, visible = twins(torch.float32)
    inputs = inputs_for(fused, distinct, need_weights=need_weights)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = (everything(module, inputs) for module in (fused, visible))
    assert found[0][0].dtype == expected[0][0].dtype == torch.bfloat16
    assert_close(found, expected, rtol=0.05, atol=0.05)


def test_an_empty_batch() -> None:
    fused, visible = twins(torch.float32, batch_first=True)
    spy = Spy()
    visible.tap(spy)
    nothing = torch.zeros(0, TARGET, EMBED)
    assert_close(visible(nothing, nothing, nothing), fused(nothing, nothing, nothing))
    assert not spy.keys


@pytest.mark.parametrize("options", [{}, {"kdim": 3}, {"bias": False}, {"add_bias_kv": True}])
def test_state_dicts_are_interchangeable(options: dict[str, Any]) -> None:
    fused, visible = twins(**options)
    assert list(visible.state_dict()) == list(fused.state_dict())
    assert [*dict(visible.named_parameters())] == [*dict(fused.named_parameters())]
    nn.MultiheadAttention(EMBED, HEADS, **options).load_state_dict(visible.state_dict())


def test_a_seed_makes_the_same_parameters() -> None:
    made = []
    for kind in (nn.MultiheadAttention, MultiheadAttention):
        torch.manual_seed(0)
        made.append(dict(kind(EMBED, HEADS, add_bias_kv=True).state_dict()))
    assert_close(made[1], made[0], rtol=0, atol=0)


def test_masks_of_a_wrong_shape_raise_as_in_torch() -> None:
    for module in twins(torch.float32):
        x = torch.randn(TARGET, BATCH, EMBED)
        for masks in (
            {"attn_mask": torch.zeros(1, TARGET)},
            {"attn_mask": torch.zeros(1, TARGET, TARGET)},
            {"key_padding_mask": torch.zeros(TARGET, BATCH)},
            {"key_padding_mask": torch.zeros(TARGET)},
        ):
            with pytest.raises((AssertionError, RuntimeError), match=r"shape|mask"):
                module(x, x, x, **masks)
        with pytest.raises((AssertionError, RuntimeError), match=r"dim|-D"):
            module(x[0, 0], x, x)


# Taps


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("distinct", [1, 2, 3])
@pytest.mark.parametrize("kdim", [None, 3])
def test_keys_and_errors_are_all_of_the_gradient(
    batch_first: bool, batched: bool, distinct: int, kdim: int | None
) -> None:
    _, visible = twins(batch_first=batch_first, kdim=kdim)
    distinct = 3 if kdim else distinct
    spy, inputs = Spy(), inputs_for(visible, distinct, batched)
    visible.tap(spy)
    visible(*inputs.qkv)[0].sin().sum().backward()
    assert len(spy.keys) == len(spy.errors) == distinct
    gradient = torch.zeros(3 * EMBED, spy.keys[0].shape[-1], dtype=torch.float64)
    bias = torch.zeros(3 * EMBED, dtype=torch.float64)
    errors = sorted(spy.errors, key=lambda e: int(e.flatten(end_dim=-2).any(dim=0).nonzero()[0]))  # first queries'
    for tensor, keys, values in zip(inputs.tensors, spy.keys, errors, strict=True):
        assert keys.shape[:-1] == values.shape[:-1] == tensor.shape[:-1]
        assert not values.requires_grad
        flat = values.reshape(-1, 3 * EMBED)
        gradient += flat.T @ keys.detach().reshape(len(flat), -1)
        bias += flat.sum(0)
    if kdim:
        widths = [EMBED, kdim, EMBED]
        blocks = [part.split(widths, dim=1)[i] for i, part in enumerate(gradient.chunk(3))]
        names = ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
        assert_close(blocks, [visible.get_parameter(name).grad for name in names])
        assert_close(torch.block_diag(*blocks), gradient, rtol=0, atol=0)
    else:
        assert_close(gradient, visible.in_proj_weight.grad)
    assert_close(bias, visible.in_proj_bias.grad)


def test_taps_are_served_until_they_are_removed_and_change_nothing() -> None:
    _, visible = twins()
    inputs = inputs_for(visible, 1)
    plain = everything(visible, inputs)
    first, second, deaf = Spy(), Spy(), []
    handle = visible.tap(first)
    visible.tap(second)
    visible.tap(lambda keys: deaf.append(keys))
    assert_close(everything(visible, inputs), plain, rtol=0, atol=0)
    handle.remove()
    visible(*inputs.qkv)[0].sum().backward()
    assert [len(seen) for seen in (first.keys, first.errors, second.keys, second.errors, deaf)] == [1, 1, 2, 2, 2]
    with torch.no_grad():
        visible(*inputs.qkv)
    assert (len(second.keys), len(second.errors)) == (3, 2)


def test_copies_and_pickles_have_no_taps_but_other_hooks() -> None:
    _, visible = twins()
    calls: list[Any] = []
    visible.register_forward_hook(print)
    visible.tap(lambda keys: calls.append(keys))
    inputs = inputs_for(visible, 1)
    for twin in (copy.deepcopy(visible), pickle.loads(pickle.dumps(visible))):
        assert isinstance(twin, MultiheadAttention)
        assert len(twin._forward_hooks) == 1
        twin._forward_hooks.clear()
        twin(*inputs.qkv)
        assert not calls
    del visible._forward_hooks[min(visible._forward_hooks)]
    visible(*inputs.qkv)
    assert len(calls) == 1


def test_torch_func_is_not_seen() -> None:
    _, visible = twins()
    spy, x = Spy(), torch.randn(BATCH, TARGET, EMBED, dtype=torch.float64)
    expected = visible(*[x.transpose(0, 1)] * 3)[0].transpose(0, 1)
    visible.tap(spy)
    assert_close(torch.vmap(lambda rows: visible(rows, rows, rows)[0])(x), expected)
    assert not spy.keys


# In the place of torch's


def encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(EMBED, HEADS, 8, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2)


def test_unfuse_reaches_into_transformers_and_keeps_results() -> None:
    model = nn.Transformer(EMBED, HEADS, 1, 1, 8, dropout=0.0, batch_first=True, dtype=torch.float64)
    source, target = (torch.randn(BATCH, n, EMBED, dtype=torch.float64) for n in (SOURCE, TARGET))
    expected, before = model(source, target), dict(model.named_parameters())
    assert unfuse(model) is model
    attention = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    assert [type(module) for module in attention] == 3 * [MultiheadAttention]
    after = dict(model.named_parameters())
    assert all(after[name] is before[name] for name in before)
    assert_close(model(source, target), expected)


def test_unfuse_leaves_subclasses_alone_and_refuses_parametrised_weights() -> None:
    class Own(nn.MultiheadAttention):
        pass

    assert type(unfuse(nn.ModuleList([Own(EMBED, HEADS)]))[0]) is Own
    normed = nn.utils.parametrizations.weight_norm(nn.MultiheadAttention(EMBED, HEADS), "in_proj_weight")
    with pytest.raises(RecordingError, match="the MultiheadAttention '0': in_proj_weight"):
        unfuse(nn.ModuleList([normed]))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("tapped", [False, True])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")  # not with norm_first
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_evaluation_of_an_encoder(norm_first: bool, padded: bool, tapped: bool) -> None:
    """Torch's fast paths are taken without taps only, and say the same where there is no padding."""
    torch.manual_seed(0)
    model, x, spies = encoder(norm_first=norm_first).eval(), torch.randn(BATCH, TARGET, EMBED), [Spy(), Spy()]
    real = torch.ones(BATCH, TARGET, dtype=torch.bool)
    if padded:
        real[0, 2:] = False
    mask = {"src_key_padding_mask": ~real} if padded else {}
    with torch.no_grad():
        expected = model(x, **mask)
        unfuse(model)
        for layer, spy in zip(model.layers if tapped else (), spies, strict=False):
            layer.self_attn.tap(spy)
        assert_close(model(x, **mask)[real], expected[real], rtol=0, atol=1e-5)
    assert [len(spy.keys) for spy in spies] == ([1, 1] if tapped else [0, 0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_left_to_torch_and_never_tapped() -> None:
    layer = nn.TransformerEncoderLayer(EMBED, HEADS, 8, batch_first=True)
    layer.self_attn = MultiheadAttention(EMBED, HEADS, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 1).eval(), torch.randn(BATCH, TARGET, EMBED)
    padding = torch.zeros(BATCH, TARGET, dtype=torch.bool)
    padding[0, 2:] = True
    with torch.no_grad():
        nested = model(x, src_key_padding_mask=padding)
        handle = model.layers[0].self_attn.tap(Spy())
        with pytest.raises(RecordingError, match="enable_nested_tensor=False"):
            model(x, src_key_padding_mask=padding)
        handle.remove()
        assert_close(model(x, src_key_padding_mask=padding), nested)
        plain = unfuse(model)(x, src_key_padding_mask=padding)
    assert_close(plain[~padding], nested[~padding], rtol=0, atol=1e-5)

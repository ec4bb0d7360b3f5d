"""The rule that computes the size of the result of each torch operation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ps_service.functions import layer_sizes, sizes
from ps_wire.errors import NotAllowedError

if TYPE_CHECKING:
    from ps_service.functions.sizes import Rule

_aten = torch.ops.aten


def _packets(names: str) -> list[Any]:
    return [getattr(_aten, name) for name in names.split() if hasattr(_aten, name)]


_BY_RULE: Final[tuple[tuple[Rule, str], ...]] = (
    (
        sizes.within,
        "_softmax _log_softmax _cummax_helper _cummin_helper logcumsumexp _logcumsumexp max min flip roll rot90 tril "
        "triu trace native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit "
        "_native_batch_norm_legit_no_training _batch_norm_with_update _fused_rms_norm nll_loss_forward "
        "nll_loss2d_forward nll_loss nll_loss2d multi_margin_loss multilabel_margin_loss_forward binary_cross_entropy "
        "mse_loss smooth_l1_loss huber_loss soft_margin_loss _ctc_loss glu log_sigmoid_forward rrelu_with_noise "
        "rrelu_with_noise_ native_dropout bernoulli_ bernoulli aminmax std var std_mean var_mean equal is_nonzero "
        "_local_scalar_dense linalg_vector_norm norm prelu _prelu_kernel copy_ fill_ zero_ uniform_ normal_ random_ "
        "exponential_ geometric_ count_nonzero masked_scatter index_add index_add_ index_copy index_copy_ index_fill "
        "index_fill_ scatter scatter_ scatter_add scatter_add_ scatter_reduce index_put index_put_ _index_put_impl_ "
        "select_scatter slice_scatter diagonal_scatter channel_shuffle pixel_shuffle pixel_unshuffle "
        "native_channel_shuffle set_data detach_ _coalesce coalesce _reshape_alias _reshape_copy view_as_complex "
        "embedding_renorm_ linalg_cross cross histogram renorm renorm_ _linalg_det _linalg_slogdet linalg_qr "
        "linalg_cholesky_ex linalg_inv_ex cholesky linalg_inv geqrf native_norm _sparse_sum isin quantile nanquantile "
        "dist masked_select argmax argmin any all squeeze squeeze_ unsqueeze_ transpose_ t_ t ones_like zeros_like "
        "full_like empty_like rand_like randn_like randint_like _to_copy hardswish diagonal_copy _unsafe_view "
        "_safe_softmax linalg_matrix_exp scalar_tensor threshold _to_dense to_dense",
    ),
    (sizes.pointwise, "rsub floor_divide heaviside binary_cross_entropy_with_logits polar complex copysign normal"),
    (
        sizes.indices,
        "sort topk argsort kthvalue mode median nanmedian cummax cummin cumsum cumprod bucketize searchsorted "
        "unique_dim _unique2 unique_consecutive unique_dim_consecutive",
    ),
    (
        layer_sizes.pooled,
        "avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices max_pool1d max_pool2d "
        "max_pool3d mkldnn_max_pool2d mkldnn_max_pool3d",
    ),
    (sizes.drawn, "multinomial"),
    (sizes.tallied, "bincount"),
    (sizes.multiplied, "repeat_interleave"),
    (layer_sizes.grid, "affine_grid_generator"),
    (layer_sizes.trilinear, "_trilinear"),
    (sizes.together, "cat stack _cat _stack hstack vstack dstack column_stack block_diag meshgrid"),
    (
        sizes.matrices,
        "mm bmm mv dot vdot addmm addmv baddbmm addbmm matmul _sparse_mm addmm_ baddbmm_ _addmm_activation",
    ),
    (sizes.solutions, "linalg_lstsq"),
    (sizes.outer, "ger outer addr kron"),
    (sizes.sized(0), "zeros ones full empty empty_strided rand randn"),
    (sizes.sized(1), "new_zeros new_ones new_full new_empty new_empty_strided"),
    (sizes.sized(1, 2), "randint"),
    (sizes.stepped, "arange range"),
    (sizes.expanded, "expand"),
    (sizes.repeated, "repeat"),
    (sizes.windows, "unfold"),
    (sizes.rows, "embedding"),
    (layer_sizes.bags, "_embedding_bag _embedding_bag_forward_only"),
    (sizes.chosen, "index_select"),
    (sizes.gathered, "gather take"),
    (sizes.indexed, "index"),
    (sizes.positions, "nonzero"),
    (
        layer_sizes.padded,
        "constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
        "replication_pad3d",
    ),
    (
        layer_sizes.resized,
        "adaptive_max_pool2d adaptive_max_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool2d "
        "adaptive_avg_pool3d",
    ),
    (
        layer_sizes.enlarged,
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
        "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d "
        "_upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    ),
    (layer_sizes.sampled, "grid_sampler_2d grid_sampler_3d"),
    (layer_sizes.convolved, "convolution _convolution convolution_overrideable"),
    (layer_sizes.columns, "im2col"),
    (layer_sizes.folded, "col2im"),
    (layer_sizes.unpooled, "max_unpool2d max_unpool3d"),
    (sizes.distances, "_cdist_forward cdist"),
    (sizes.pairs, "_pdist_forward"),
    (sizes.squared, "diag_embed"),
    (sizes.flat_squared, "diagflat diag"),
    (sizes.square, "eye"),
    (
        layer_sizes.attended,
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math "
        "_scaled_dot_product_fused_attention_overrideable",
    ),
    (sizes.binned, "histc"),
    (sizes.cut, "split unsafe_split"),
    (sizes.unbound, "unbind"),
    (sizes.counted(0), "randperm hann_window hamming_window bartlett_window blackman_window kaiser_window"),
    (sizes.counted(2), "linspace logspace"),
    (sizes.counted(0, 1), "tril_indices triu_indices"),
)

RULES: Final[dict[Any, Rule]] = {packet: rule for rule, names in _BY_RULE for packet in _packets(names)}

_REFUSED: Final = frozenset(
    _packets("as_strided as_strided_ set_ resize_ resize_as_ from_file _nested_tensor_from_mask")
)


@cache
def rule_for(operation: Any) -> Rule:
    """The rule that computes the bytes of an operation's largest result. Refuses those that could reach memory outside
    their arguments."""
    packet = operation.overloadpacket
    if packet in _REFUSED:
        raise NotAllowedError(f"{operation} is not among the operations that trainers may run")
    found = RULES.get(packet)
    if operation is _aten.normal.float_float:
        return sizes.sized(2)
    if found is not None:
        return found
    if torch.Tag.pointwise in operation.tags:
        return sizes.pointwise
    returns = operation._schema.returns
    if not any("Tensor" in str(each.type) for each in returns):
        return lambda *args, **kwargs: 0
    if operation.is_view or not {torch.Tag.inplace, torch.Tag.reduction}.isdisjoint(operation.tags):
        return sizes.within
    return partial(_measured, operation)


def _measured(operation: Callable[..., Any], /, *args: Any, **kwargs: Any) -> int:
    """The rule for other operations: runs the operation on meta tensors and measures the results."""
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("meta")}
    made = operation(*tree_map_only(Tensor, _meta, args), **tree_map_only(Tensor, _meta, kwargs))
    return max((sizes.nbytes(each) for each in tree_leaves(made) if isinstance(each, Tensor)), default=0)


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

"""The groups of the `basic` level, and all groups together."""

from __future__ import annotations

from typing import Final

from ps_service.functions.extra_groups import MORE
from ps_service.functions.group import Group, Level


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_BASIC: Final = (
    Group(
        "arithmetic",
        Level.BASIC,
        "Works element by element; the result has the shape to which the arguments broadcast, which is computed first.",
        _names(
            "abs absolute neg negative positive add sub subtract mul multiply pow float_power square sqrt rsqrt "
            "reciprocal sign sgn addcmul addcdiv lerp clamp clamp_min clamp_max clip maximum minimum fmax fmin rsub "
            "logaddexp logaddexp2 hypot copysign heaviside xlogy nan_to_num"
        ),
        in_place=True,
        operators=_names("__abs__ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __neg__ __pos__ __pow__ __rpow__")
        + _names("__iadd__ __isub__ __imul__"),
        grows=False,
        sparse=frozenset(_names("add sub mul neg __add__ __sub__ __mul__ __rmul__ __neg__")),
    ),
    Group(
        "division",
        Level.BASIC,
        "Element by element; for integers, zero as a divisor and the smallest number divided by -1 are refused.",
        _names("div divide true_divide floor_divide remainder fmod"),
        in_place=True,
        operators=_names("__truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __itruediv__"),
        grows=False,
    ),
    Group(
        "elementary functions",
        Level.BASIC,
        "Work element by element; the result has the shape of the argument.",
        _names(
            "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 arcsin arccos arctan arctan2 sinh "
            "cosh tanh asinh acosh atanh sigmoid logit erf erfc erfinv ceil floor round trunc fix frac lgamma digamma "
            "deg2rad rad2deg sinc real imag conj angle i0"
        ),
        in_place=True,
        grows=False,
    ),
    Group(
        "comparison and logic",
        Level.BASIC,
        "Work element by element; the result has the shape to which the arguments broadcast.",
        _names(
            "eq ne lt le gt ge greater greater_equal less less_equal not_equal isclose isnan isinf isfinite isposinf "
            "isneginf isreal signbit logical_and logical_or logical_xor logical_not masked_fill"
        ),
        in_place=True,
        operators=_names("__eq__ __ne__ __lt__ __le__ __gt__ __ge__"),
        grows=False,
    ),
    Group(
        "bits",
        Level.BASIC,
        "Work element by element on integers and truth values.",
        _names("bitwise_and bitwise_or bitwise_xor bitwise_not"),
        operators=_names("__and__ __or__ __xor__ __invert__"),
        grows=False,
    ),
    Group(
        "questions",
        Level.BASIC,
        "Answer with one truth value.",
        _names("equal allclose is_nonzero is_floating_point is_complex is_signed"),
        grows=False,
    ),
    Group(
        "reductions",
        Level.BASIC,
        "The result has at most as many elements as the argument; quantities that depend on a dimension are checked "
        "by torch.",
        _names(
            "sum mean prod max min amax amin aminmax argmax argmin all any std var std_mean var_mean norm nansum "
            "nanmean logsumexp count_nonzero median nanmedian cumsum cumprod cummax cummin logcumsumexp trace dist "
            "sort argsort topk kthvalue mode"
        ),
        grows=False,
        sparse=frozenset({"sum"}),
    ),
    Group(
        "matrix products",
        Level.BASIC,
        "The shape of the result, and of every product in between, is computed before it is made.",
        _names(
            "matmul mm bmm mv dot vdot inner outer ger addmm addmv addbmm baddbmm addr einsum tensordot cross kron "
            "chain_matmul"
        ),
        operators=_names("__matmul__ __rmatmul__"),
        grows=False,
        checks={"einsum": "einsum", "tensordot": "tensordot"},
        sparse=frozenset(_names("matmul mm __matmul__")),
    ),
    Group(
        "norms and products of torch.linalg",
        Level.BASIC,
        "The result has at most as many elements as the product of the arguments; a norm that needs singular values is "
        "of a finite matrix of at most 4,096 rows and columns.",
        _names("norm vector_norm matrix_norm vecdot matmul cross diagonal multi_dot"),
        only="torch.linalg",
        checks={"norm": "norm", "matrix_norm": "norm"},
    ),
    Group(
        "shape",
        Level.BASIC,
        "They return a view, or copy the elements once; torch checks the new shape against the old.",
        _names(
            "reshape flatten unflatten ravel squeeze unsqueeze transpose swapaxes swapdims permute movedim moveaxis t "
            "adjoint narrow select diagonal tril triu roll flip fliplr flipud rot90 atleast_1d atleast_2d "
            "atleast_3d clone detach"
        ),
        grows=False,
        sparse=frozenset({"t", "transpose", "clone", "detach"}),
    ),
    Group(
        "shape that grows",
        Level.BASIC,
        "The size of the result is computed before it is made; so is the number of pieces.",
        _names(
            "broadcast_to tile cat concat concatenate stack hstack vstack dstack column_stack row_stack "
            "split split_with_sizes chunk tensor_split hsplit vsplit dsplit unbind meshgrid broadcast_tensors "
            "block_diag cartesian_prod diag diag_embed diagflat repeat_interleave"
        ),
        checks={name: "pieces" for name in ("chunk", "split", "tensor_split", "hsplit", "vsplit", "dsplit", "unbind")},
        sparse=frozenset({"cat", "stack"}),
    ),
    Group(
        "choosing by index",
        Level.BASIC,
        "Indices are held against the dimension that they choose from before anything is read or written.",
        _names(
            "index_select gather take take_along_dim masked_select nonzero argwhere where scatter scatter_add "
            "index_add index_copy index_fill"
        ),
    ),
    Group(
        "making tensors",
        Level.BASIC,
        "Their size is known from their arguments and held against the limit before memory is taken. Every element is "
        "written, so no earlier contents of memory can be read.",
        _names("zeros ones full arange linspace logspace eye tensor scalar_tensor zeros_like ones_like full_like"),
    ),
    Group(
        "making random tensors",
        Level.BASIC,
        "As above. They draw from the owner's generator, as dropout does; nothing that seeds or sets it is listed.",
        _names("rand randn randint randperm rand_like randn_like randint_like bernoulli"),
    ),
    Group(
        "activations",
        Level.BASIC,
        "Work element by element or along one dimension; the result has the size of the argument.",
        _names(
            "relu relu6 elu selu celu leaky_relu prelu gelu logsigmoid hardshrink tanhshrink softsign softplus "
            "softmin softmax softshrink log_softmax hardsigmoid silu mish hardswish hardtanh threshold glu normalize"
        ),
        in_place=True,
        grows=False,
    ),
    Group(
        "dropout",
        Level.BASIC,
        "The result has the size of the argument. They draw from the owner's generator.",
        _names("dropout alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d rrelu gumbel_softmax"),
    ),
    Group(
        "linear layers and convolutions",
        Level.BASIC,
        "The size of the result, and of the columns that some convolutions build, is computed first.",
        _names("linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d unfold fold"),
        only="torch.nn.functional",
    ),
    Group(
        "convolutions of torch itself",
        Level.BASIC,
        "As above.",
        _names("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"),
        only="torch",
    ),
    Group(
        "normalization",
        Level.BASIC,
        "The result has the size of the input; the running statistics and weights must have one number for each "
        "channel.",
        _names("batch_norm layer_norm group_norm instance_norm rms_norm local_response_norm"),
        only="torch.nn.functional",
        checks={"batch_norm": "channels", "instance_norm": "channels"},
    ),
    Group(
        "pooling",
        Level.BASIC,
        "The size of the result is computed before it is made; the indices of an unpooling must lie in its output.",
        _names(
            "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices "
            "max_pool2d_with_indices max_pool3d_with_indices adaptive_avg_pool1d adaptive_avg_pool2d "
            "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lp_pool1d lp_pool2d "
            "lp_pool3d max_unpool1d max_unpool2d max_unpool3d"
        ),
        only="torch.nn.functional",
    ),
    Group(
        "embedding",
        Level.BASIC,
        "Indices must name a row of the table, and the offsets of bags must ascend within the indices.",
        _names("embedding embedding_bag one_hot"),
        only="torch.nn.functional",
    ),
    Group(
        "losses",
        Level.BASIC,
        "Work element by element; classes that are asked for must exist, and so must the labels and lengths of CTC.",
        _names(
            "l1_loss mse_loss smooth_l1_loss huber_loss nll_loss cross_entropy binary_cross_entropy "
            "binary_cross_entropy_with_logits kl_div poisson_nll_loss gaussian_nll_loss hinge_embedding_loss "
            "cosine_embedding_loss margin_ranking_loss triplet_margin_loss soft_margin_loss multi_margin_loss "
            "multilabel_margin_loss multilabel_soft_margin_loss ctc_loss"
        ),
        only="torch.nn.functional",
    ),
    Group(
        "distances",
        Level.BASIC,
        "The size of the result is computed before it is made.",
        _names("pairwise_distance cosine_similarity pdist cdist"),
    ),
    Group(
        "images",
        Level.BASIC,
        "The size of the result is computed before it is made.",
        _names("interpolate upsample pad pixel_shuffle pixel_unshuffle channel_shuffle grid_sample affine_grid"),
        only="torch.nn.functional",
    ),
    Group(
        "attention",
        Level.BASIC,
        "The size of the result, and of everything in between, is computed before it is made.",
        _names("scaled_dot_product_attention multi_head_attention_forward"),
        only="torch.nn.functional",
    ),
    Group(
        "methods of tensors",
        Level.BASIC,
        "They return a property of a tensor, a view, or a converted copy.",
        _names(
            "size dim ndimension numel nelement stride element_size is_contiguous item view view_as reshape_as "
            "contiguous cpu to float double half bfloat16 int long short char bool type_as sum_to_size "
            "is_coalesced"
        ),
        only="torch.Tensor",
        checks={"to": "to", "view": "view"},
        sparse=frozenset(_names("size dim ndimension is_coalesced cpu")),
    ),
    Group(
        "methods of tensors that grow",
        Level.BASIC,
        "The size of the result is computed before it is made; lists have a bounded number of elements.",
        _names("expand expand_as repeat unfold tolist new_full new_ones new_zeros new_tensor coalesce to_dense"),
        only="torch.Tensor",
        checks={"tolist": "tolist"},
        sparse=frozenset(_names("coalesce to_dense")),
    ),
    Group(
        "filling",
        Level.BASIC,
        "They write to a floating-point tensor that the owner keeps, element by element.",
        _names("zero fill copy"),
        in_place=True,
        only="torch.Tensor",
        grows=False,
    ),
    Group(
        "functions of Python",
        Level.BASIC,
        "Of numbers of 64 bits, tensors, strings and lists of them, which are bounded like the arguments of other "
        "functions; the operations of torch in them are checked as well.",
        _names("abs all any divmod len max min round sorted sum"),
        only="builtins",
        checks={"round": "digits", "sum": "summands"},
    ),
)

GROUPS: Final = (*_BASIC, *MORE)

"""The groups of functions that an owner offers at its levels, and why each of them is safe."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from ps_service.functions import arguments


class Level(IntEnum):
    """Which functions an owner offers. Each level includes the levels below it."""

    OFF = 0
    BASIC = 1
    ALL = 2


@dataclass(frozen=True)
class Group:
    """Functions that trainers may call for the same reason. Lists of names are separated by spaces."""

    title: str
    reason: str
    names: str  # without a namespace: every namespace that has one of that name offers it
    level: Level = Level.BASIC  # the lowest that includes them
    only: str = ""  # the only namespace that offers them; empty for all
    operators: str = ""  # the special methods of tensors that belong to the group
    in_place: bool = False  # whether those that end in an underscore are listed too, for floating-point tensors
    grows: bool = True  # whether a result can have more elements than the product of those of its arguments
    checks: dict[str, arguments.Check] = field(default_factory=dict)  # a further check of the arguments, by function
    sparse: str = ""  # those that take tensors in COO layout


_LINALG: Final = (
    "det slogdet inv inv_ex cholesky cholesky_ex qr eig eigvals eigh eigvalsh svd svdvals solve solve_ex "
    "solve_triangular lstsq pinv matrix_rank matrix_exp cond lu lu_factor tensorinv tensorsolve"
)

GROUPS: Final = (
    Group(
        "arithmetic",
        "Works element by element; the result has the shape to which the arguments broadcast, which is computed first.",
        "abs absolute neg negative positive add sub subtract mul multiply pow float_power square sqrt rsqrt reciprocal "
        "sign sgn addcmul addcdiv lerp clamp clamp_min clamp_max clip maximum minimum fmax fmin rsub logaddexp "
        "logaddexp2 hypot copysign heaviside xlogy nan_to_num",
        operators="__abs__ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __neg__ __pos__ __pow__ __rpow__ "
        "__iadd__ __isub__ __imul__",
        in_place=True,
        grows=False,
        sparse="neg add sub mul __add__ __sub__ __mul__ __rmul__ __neg__",
    ),
    Group(
        "division",
        "Element by element; for integers, zero as a divisor and the smallest number divided by -1 are refused.",
        "div divide true_divide floor_divide remainder fmod",
        operators="__truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __itruediv__",
        in_place=True,
        grows=False,
    ),
    Group(
        "elementary functions",
        "Work element by element; the result has the shape of the argument.",
        "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 arcsin arccos arctan arctan2 sinh cosh "
        "tanh asinh acosh atanh sigmoid logit erf erfc erfinv ceil floor round trunc fix frac lgamma digamma deg2rad "
        "rad2deg sinc real imag conj angle i0",
        in_place=True,
        grows=False,
    ),
    Group(
        "comparison and logic",
        "Work element by element; the result has the shape to which the arguments broadcast.",
        "eq ne lt le gt ge greater greater_equal less less_equal not_equal isclose isnan isinf isfinite isposinf "
        "isneginf isreal signbit logical_and logical_or logical_xor logical_not masked_fill",
        operators="__eq__ __ne__ __lt__ __le__ __gt__ __ge__",
        in_place=True,
        grows=False,
    ),
    Group(
        "bits",
        "Work element by element on integers and truth values.",
        "bitwise_and bitwise_or bitwise_xor bitwise_not",
        operators="__and__ __or__ __xor__ __invert__",
        grows=False,
    ),
    Group(
        "questions",
        "Answer with one truth value.",
        "equal allclose is_nonzero is_floating_point is_complex is_signed",
        grows=False,
    ),
    Group(
        "reductions",
        "The result has at most as many elements as the argument; quantities that depend on a dimension are checked by "
        "torch.",
        "sum mean prod max min amax amin aminmax argmax argmin all any std var std_mean var_mean norm nansum nanmean "
        "logsumexp count_nonzero median nanmedian cumsum cumprod cummax cummin logcumsumexp trace dist sort argsort "
        "topk kthvalue mode",
        grows=False,
        sparse="sum",
    ),
    Group(
        "matrix products",
        "The shape of the result, and of every product in between, is computed before it is made.",
        "matmul mm bmm mv dot vdot inner outer ger addmm addmv addbmm baddbmm addr einsum tensordot cross kron "
        "chain_matmul",
        operators="__matmul__ __rmatmul__",
        grows=False,
        checks={"einsum": arguments.einsum, "tensordot": arguments.tensordot},
        sparse="matmul mm __matmul__",
    ),
    Group(
        "norms and products of torch.linalg",
        "The result has at most as many elements as the product of the arguments; a norm that needs singular values is "
        "of a finite matrix of at most 4,096 rows and columns.",
        "norm vector_norm matrix_norm vecdot matmul cross diagonal multi_dot",
        only="torch.linalg",
        checks={"norm": arguments.norm, "matrix_norm": arguments.norm},
    ),
    Group(
        "shape",
        "They return a view, or copy the elements once; torch checks the new shape against the old.",
        "reshape flatten unflatten ravel squeeze unsqueeze transpose swapaxes swapdims permute movedim moveaxis t "
        "adjoint narrow select diagonal tril triu roll flip fliplr flipud rot90 atleast_1d atleast_2d atleast_3d clone "
        "detach",
        grows=False,
        sparse="transpose t clone detach",
    ),
    Group(
        "shape that grows",
        "The size of the result is computed before it is made; so is the number of pieces.",
        "broadcast_to tile cat concat concatenate stack hstack vstack dstack column_stack row_stack split "
        "split_with_sizes chunk tensor_split hsplit vsplit dsplit unbind meshgrid broadcast_tensors block_diag "
        "cartesian_prod diag diag_embed diagflat repeat_interleave",
        checks=dict.fromkeys(
            ["chunk", "split", "tensor_split", "hsplit", "vsplit", "dsplit", "unbind"], arguments.pieces
        ),
        sparse="cat stack",
    ),
    Group(
        "choosing by index",
        "Indices are held against the dimension that they choose from before anything is read or written.",
        "index_select gather take take_along_dim masked_select nonzero argwhere where scatter scatter_add index_add "
        "index_copy index_fill",
    ),
    Group(
        "making tensors",
        "Their size is known from their arguments and held against the limit before memory is taken. Every element is "
        "written, so no earlier contents of memory can be read.",
        "zeros ones full arange linspace logspace eye tensor scalar_tensor zeros_like ones_like full_like",
    ),
    Group(
        "making random tensors",
        "As above. They draw from the owner's generator, as dropout does; nothing that seeds or sets it is listed.",
        "rand randn randint randperm rand_like randn_like randint_like bernoulli",
    ),
    Group(
        "activations",
        "Work element by element or along one dimension; the result has the size of the argument.",
        "relu relu6 elu selu celu leaky_relu prelu gelu logsigmoid hardshrink tanhshrink softsign softplus softmin "
        "softmax softshrink log_softmax hardsigmoid silu mish hardswish hardtanh threshold glu normalize",
        in_place=True,
        grows=False,
    ),
    Group(
        "dropout",
        "The result has the size of the argument. They draw from the owner's generator.",
        "dropout alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d rrelu gumbel_softmax",
    ),
    Group(
        "linear layers and convolutions",
        "The size of the result, and of the columns that some convolutions build, is computed first.",
        "linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d unfold fold",
        only="torch.nn.functional",
    ),
    Group(
        "convolutions of torch itself",
        "As above.",
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
        only="torch",
    ),
    Group(
        "normalization",
        "The result has the size of the input; the running statistics and weights must have one number for each "
        "channel.",
        "batch_norm layer_norm group_norm instance_norm rms_norm local_response_norm",
        only="torch.nn.functional",
        checks={"batch_norm": arguments.channels, "instance_norm": arguments.channels},
    ),
    Group(
        "pooling",
        "The size of the result is computed before it is made; the indices of an unpooling must lie in its output.",
        "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices "
        "max_pool2d_with_indices max_pool3d_with_indices adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lp_pool1d lp_pool2d lp_pool3d max_unpool1d "
        "max_unpool2d max_unpool3d",
        only="torch.nn.functional",
    ),
    Group(
        "embedding",
        "Indices must name a row of the table, and the offsets of bags must ascend within the indices.",
        "embedding embedding_bag one_hot",
        only="torch.nn.functional",
    ),
    Group(
        "losses",
        "Work element by element; classes that are asked for must exist, and so must the labels and lengths of CTC.",
        "l1_loss mse_loss smooth_l1_loss huber_loss nll_loss cross_entropy binary_cross_entropy "
        "binary_cross_entropy_with_logits kl_div poisson_nll_loss gaussian_nll_loss hinge_embedding_loss "
        "cosine_embedding_loss margin_ranking_loss triplet_margin_loss soft_margin_loss multi_margin_loss "
        "multilabel_margin_loss multilabel_soft_margin_loss ctc_loss",
        only="torch.nn.functional",
    ),
    Group(
        "distances",
        "The size of the result is computed before it is made.",
        "pairwise_distance cosine_similarity pdist cdist",
    ),
    Group(
        "images",
        "The size of the result is computed before it is made.",
        "interpolate upsample pad pixel_shuffle pixel_unshuffle channel_shuffle grid_sample affine_grid",
        only="torch.nn.functional",
    ),
    Group(
        "attention",
        "The size of the result, and of everything in between, is computed before it is made.",
        "scaled_dot_product_attention multi_head_attention_forward",
        only="torch.nn.functional",
    ),
    Group(
        "methods of tensors",
        "They return a property of a tensor, a view, or a converted copy.",
        "size dim ndimension numel nelement stride element_size is_contiguous item view view_as reshape_as contiguous "
        "cpu to float double half bfloat16 int long short char bool type_as sum_to_size is_coalesced",
        only="torch.Tensor",
        checks={"to": arguments.to, "view": arguments.view},
        sparse="size dim ndimension cpu is_coalesced",
    ),
    Group(
        "methods of tensors that grow",
        "The size of the result is computed before it is made; lists have a bounded number of elements.",
        "expand expand_as repeat unfold tolist new_full new_ones new_zeros new_tensor coalesce to_dense",
        only="torch.Tensor",
        checks={"tolist": arguments.tolist},
        sparse="coalesce to_dense",
    ),
    Group(
        "filling",
        "They write to a floating-point tensor that the owner keeps, element by element.",
        "zero fill copy",
        only="torch.Tensor",
        in_place=True,
        grows=False,
    ),
    Group(
        "functions of Python",
        "Of numbers of 64 bits, tensors, strings and lists of them, which are bounded like the arguments of other "
        "functions; the operations of torch in them are checked as well.",
        "abs all any divmod len max min round sorted sum",
        only="builtins",
        checks={"round": arguments.digits, "sum": arguments.summands},
    ),
    Group(
        "more elementary functions",
        "Work element by element; the result has the shape to which the arguments broadcast.",
        "nextafter ldexp arctanh arcsinh arccosh isin polar complex view_as_real view_as_complex resolve_conj",
        level=Level.ALL,
        grows=False,
    ),
    Group(
        "shifts",
        "Element by element; the amounts must lie between 0 and the number of bits.",
        "bitwise_left_shift bitwise_right_shift",
        level=Level.ALL,
        operators="__lshift__ __rshift__",
    ),
    Group(
        "integers",
        "Element by element; the smallest number of each integer type is refused.",
        "gcd lcm",
        level=Level.ALL,
    ),
    Group(
        "statistics",
        "The result is bounded by the argument, or by the number of bins, which is held against the limit.",
        "quantile nanquantile histc bincount unique unique_consecutive msort searchsorted bucketize renorm cov "
        "corrcoef diff cumulative_trapezoid trapezoid",
        level=Level.ALL,
        checks={"bincount": arguments.bincount, "histc": arguments.bins},
    ),
    Group(
        "linear algebra",
        "Of square or tall matrices with finite elements; the result is bounded by the argument.",
        "matrix_power det logdet slogdet inverse cholesky qr matrix_exp",
        level=Level.ALL,
        checks={
            **dict.fromkeys(["det", "logdet", "slogdet", "inverse", "cholesky", "qr", "matrix_exp"], arguments.finite),
            "matrix_power": arguments.matrix_power,
        },
    ),
    Group(
        "linear algebra of torch.linalg",
        "Of matrices with finite elements, up to 4,096 rows and columns; the result is bounded by the argument. "
        "Singular values and eigenvalues may differ from those of a local call in their last digit.",
        f"{_LINALG} matrix_power",
        level=Level.ALL,
        only="torch.linalg",
        checks={**dict.fromkeys(_LINALG.split(), arguments.finite), "matrix_power": arguments.matrix_power},
    ),
    Group(
        "more of shape",
        "The size of the result is computed before it is made.",
        "select_scatter slice_scatter diagonal_scatter tril_indices triu_indices vander",
        level=Level.ALL,
    ),
    Group(
        "more random tensors",
        "They draw from the owner's generator; the size of the result is computed before it is made.",
        "normal multinomial",
        level=Level.ALL,
    ),
    Group(
        "sparse tensors",
        "Every index is held against the shape, because torch's own check is always switched on.",
        "sparse_coo_tensor",
        level=Level.ALL,
        only="torch",
        checks={"sparse_coo_tensor": arguments.sparse},
        sparse="sparse_coo_tensor",
    ),
    Group(
        "windows",
        "The size is the first argument, and held against the limit.",
        "hann_window hamming_window bartlett_window blackman_window kaiser_window",
        level=Level.ALL,
    ),
)

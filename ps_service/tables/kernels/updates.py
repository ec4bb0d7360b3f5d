"""Row-wise optimizers as loops over rows in place, compiled by numba. Imported only where that is installed.

`rows` are different rows. `grouped` is `(begins, sources, scales, gradients)`: the gradient of row `i` is the sum of
some rows of `gradients`, those with the numbers `sources[begins[i]:begins[i + 1]]`, in this order, each multiplied by
its number of `scales`, which has one for all or one for each source. `lrs` and `decays` have one number for each row,
or one for all. The formulas are those of `ps_service.tables.rules`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ps_service.tables.compiled import compiled
from ps_service.tables.kernels.prefetching import AHEAD, prefetch_row

_ONE = np.float32(1)


@partial(compiled, reorders=True)
def mean_square(gradient: Any) -> Any:
    """The mean of the squares."""
    total = np.float32(0)
    for k in range(len(gradient)):
        total += gradient[k] * gradient[k]
    return total / np.float32(len(gradient))


@compiled
def correction(table: Any, beta: Any, steps: Any) -> Any:
    """`1 - beta ** steps` in float64, from a table for the first numbers of steps."""
    number = np.int64(steps)
    return table[number] if number < len(table) else 1 - beta ** np.float64(steps)


@compiled
def summed(begins: Any, sources: Any, scales: Any, gradients: Any, i: Any, total: Any) -> None:
    """Writes the gradient of row `i` into `total`."""
    total[:] = 0
    for j in range(begins[i], begins[i + 1]):
        source = gradients[sources[j]]
        scale = scales[j if len(scales) > 1 else 0]
        for k in range(len(total)):
            total[k] += source[k] * scale


@compiled
def sum_all(grouped: Any, sums: Any) -> None:
    """Writes the gradients of all rows into `sums`."""
    begins, sources, scales, gradients = grouped
    for i in range(len(sums)):
        summed(begins, sources, scales, gradients, i, sums[i])


@compiled
def decay(row: Any, lr: Any, weight_decay: Any) -> None:
    """Decoupled weight decay of one row."""
    if weight_decay != 0:
        factor = _ONE - lr * weight_decay
        for k in range(len(row)):
            row[k] *= factor


@compiled
def sgd(values: Any, rows: Any, grouped: Any, lrs: Any, decays: Any) -> None:
    """`SGD` without momentum."""
    begins, sources, scales, gradients = grouped
    gradient = np.empty(values.shape[1], np.float32)
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            prefetch_row(values, rows[i + AHEAD])
            prefetch_row(gradients, sources[begins[i + AHEAD]])
        summed(begins, sources, scales, gradients, i, gradient)
        lr, row = lrs[i if len(lrs) > 1 else 0], values[rows[i]]
        decay(row, lr, decays[i if len(decays) > 1 else 0])
        for k in range(len(row)):
            row[k] -= gradient[k] * lr


@compiled
def momentum(values: Any, velocities: Any, rows: Any, grouped: Any, lrs: Any, decays: Any, factor: Any) -> None:
    """`SGD` with momentum."""
    begins, sources, scales, gradients = grouped
    gradient = np.empty(values.shape[1], np.float32)
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            prefetch_row(values, rows[i + AHEAD])
            prefetch_row(velocities, rows[i + AHEAD])
            prefetch_row(gradients, sources[begins[i + AHEAD]])
        summed(begins, sources, scales, gradients, i, gradient)
        lr, row, velocity = lrs[i if len(lrs) > 1 else 0], values[rows[i]], velocities[rows[i]]
        decay(row, lr, decays[i if len(decays) > 1 else 0])
        for k in range(len(row)):
            velocity[k] = velocity[k] * factor + gradient[k]
            row[k] -= velocity[k] * lr


@compiled
def adagrad(values: Any, sums: Any, rows: Any, grouped: Any, lrs: Any, decays: Any, eps: Any) -> None:
    """`Adagrad`."""
    begins, sources, scales, gradients = grouped
    gradient = np.empty(values.shape[1], np.float32)
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            prefetch_row(values, rows[i + AHEAD])
            prefetch_row(sums, rows[i + AHEAD])
            prefetch_row(gradients, sources[begins[i + AHEAD]])
        summed(begins, sources, scales, gradients, i, gradient)
        lr, row, total = lrs[i if len(lrs) > 1 else 0], values[rows[i]], sums[rows[i]]
        decay(row, lr, decays[i if len(decays) > 1 else 0])
        for k in range(len(row)):
            total[k] += gradient[k] * gradient[k]
            row[k] -= gradient[k] / (np.sqrt(total[k]) + eps) * lr


@compiled
def row_wise_adagrad(values: Any, sums: Any, rows: Any, grouped: Any, lrs: Any, decays: Any, eps: Any) -> None:
    """`RowWiseAdagrad`."""
    begins, sources, scales, gradients = grouped
    gradient = np.empty(values.shape[1], np.float32)
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            prefetch_row(values, rows[i + AHEAD])
            prefetch_row(sums, rows[i + AHEAD])
            prefetch_row(gradients, sources[begins[i + AHEAD]])
        summed(begins, sources, scales, gradients, i, gradient)
        lr, row = lrs[i if len(lrs) > 1 else 0], values[rows[i]]
        decay(row, lr, decays[i if len(decays) > 1 else 0])
        sums[rows[i], 0] += mean_square(gradient)
        step = lr / (np.sqrt(sums[rows[i], 0]) + eps)
        for k in range(len(row)):
            row[k] -= gradient[k] * step


@compiled
def adam(
    values: Any,
    moments: Any,
    squares: Any,
    steps: Any,
    rows: Any,
    grouped: Any,
    lrs: Any,
    decays: Any,
    first: Any,
    second: Any,
    firsts: Any,
    seconds: Any,
    eps: Any,
) -> None:
    """`LazyAdam`, or `PartialRowWiseAdam` where `squares` has one column. The betas are float64; `firsts` and `seconds`
    are tables of their corrections."""
    row_wise = squares.shape[1] == 1 and values.shape[1] != 1
    old, new = np.float32(second), np.float32(1 - second)
    share = np.float32(1 - first)
    begins, sources, scales, gradients = grouped
    gradient = np.empty(values.shape[1], np.float32)
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            prefetch_row(values, rows[i + AHEAD])
            prefetch_row(moments, rows[i + AHEAD])
            prefetch_row(squares, rows[i + AHEAD])
            prefetch_row(gradients, sources[begins[i + AHEAD]])
        summed(begins, sources, scales, gradients, i, gradient)
        number = rows[i]
        lr, row, moment, square = lrs[i if len(lrs) > 1 else 0], values[number], moments[number], squares[number]
        decay(row, lr, decays[i if len(decays) > 1 else 0])
        steps[number, 0] += _ONE
        step = lr / np.float32(correction(firsts, first, steps[number, 0]))
        root = np.float32(np.sqrt(correction(seconds, second, steps[number, 0])))
        if row_wise:
            square[0] = square[0] * old + mean_square(gradient) * new
            factor = step / (np.sqrt(square[0]) / root + eps)
            for k in range(len(row)):
                moment[k] += (gradient[k] - moment[k]) * share
            for k in range(len(row)):
                row[k] -= moment[k] * factor
        else:
            # Three loops, because with four arrays in one the compiler uses no vectors.
            for k in range(len(row)):
                moment[k] += (gradient[k] - moment[k]) * share
            for k in range(len(row)):
                square[k] = square[k] * old + gradient[k] * gradient[k] * new
            for k in range(len(row)):
                row[k] -= moment[k] / (np.sqrt(square[k]) / root + eps) * step


@compiled
def ftrl(values: Any, linears: Any, sums: Any, rows: Any, grouped: Any, lrs: Any, beta: Any, l1: Any, l2: Any) -> None:
    """`FTRL`."""
    begins, sources, scales, gradients = grouped
    gradient = np.empty(values.shape[1], np.float32)
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            prefetch_row(values, rows[i + AHEAD])
            prefetch_row(linears, rows[i + AHEAD])
            prefetch_row(sums, rows[i + AHEAD])
            prefetch_row(gradients, sources[begins[i + AHEAD]])
        summed(begins, sources, scales, gradients, i, gradient)
        lr, row, linear, total = lrs[i if len(lrs) > 1 else 0], values[rows[i]], linears[rows[i]], sums[rows[i]]
        for k in range(len(row)):
            before = np.sqrt(total[k])
            total[k] += gradient[k] * gradient[k]
            root = np.sqrt(total[k])
            linear[k] += gradient[k] - (root - before) / lr * row[k]
            if abs(linear[k]) <= l1:
                row[k] = 0
            else:
                shrunk = (l1 if linear[k] > 0 else -l1) - linear[k]
                row[k] = shrunk / ((beta + root) / lr + l2)

"""Lets torch say what it says once per process about its rarer kinds of tensors, before warnings are errors."""

from __future__ import annotations

import warnings

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.empty(0, dtype=torch.complex32)
    torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.quint8)
    torch.eye(1).to_sparse_csr()

"""Shows requests in the profiles of torch's profilers."""

from trainer_client.profiling import torch_profiles

torch_profiles.install()

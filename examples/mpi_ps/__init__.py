"""The MPI parameter server: every trainer has the whole model, pushes encoded gradients, and gets parameters back."""

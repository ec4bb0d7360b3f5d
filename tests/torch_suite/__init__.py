"""Runs torch's own tests of its rpc, as they lie in the installed wheel, on the modules of this project.

    python -m tests.torch_suite                        # all of them: some minutes
    python -m tests.torch_suite RpcTest.test_nested    # those whose names contain one of these words
    python -m tests.torch_suite --page                 # runs nothing; puts the last results into the page of docs

The bodies of the tests are unchanged. Different are the imports (see `facade`), the arguments of `init_rpc`, and the
marks that say what other processes may call.
"""

"""The sides: programs that do the work of the rows, each in the idiom of its library.

ours        trainer_client, against owners that `ps-service serve` runs
torch_rpc   torch.distributed.rpc, its autograd and its optimizer
local       plain torch in one process, which is also what all results are compared with
"""

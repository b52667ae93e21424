"""Compiles a model when it is imported, so that forked processes have torch's compiler loaded.

It loads some hundred modules and builds its tables with the first model, two seconds for each process.
"""

import torch

_threads = torch.get_num_threads()
torch.set_num_threads(1)  # threads that compute do not survive a fork
# The first backward decides which threads autograd has. If it were that of a compilation, a build with CUDA
# would start threads for eight GPUs on a machine without any, and forked processes could run no backward.
torch.ones((), requires_grad=True).backward()
torch.compile(torch.nn.Linear(2, 1), backend="aot_eager")(torch.ones(3, 2))
torch._dynamo.reset()
torch.set_num_threads(_threads)

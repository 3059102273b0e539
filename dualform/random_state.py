"""Random numbers belong to the whole process: a thread that needs them in a fixed order has them for itself.

with RANDOM:
    torch.manual_seed(0)
    model(batch)                # dropout draws what it would draw if no other thread were there
"""

from threading import RLock

RANDOM = RLock()

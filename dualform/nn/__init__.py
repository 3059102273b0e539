"""Replace fused PyTorch modules by ones whose linear maps can be recorded.

model = dualform.nn.unfuse(model)            # every torch.nn.LSTM in it becomes a dualform.nn.LSTM
"""

from dualform.nn.attention import MultiheadAttention as MultiheadAttention
from dualform.nn.lstm import LSTM as LSTM
from dualform.nn.swap import unfuse as unfuse

"""Replace fused PyTorch modules by ones whose linear maps can be recorded.

model = dualform.nn.unfuse(model)       # every torch.nn.LSTM in it becomes a dualform.nn.LSTM, and so on
"""

from dualform.nn.attention import MultiheadAttention as MultiheadAttention
from dualform.nn.cells import GRUCell as GRUCell
from dualform.nn.cells import LSTMCell as LSTMCell
from dualform.nn.cells import RNNCell as RNNCell
from dualform.nn.gru import GRU as GRU
from dualform.nn.lstm import LSTM as LSTM
from dualform.nn.rnn import RNN as RNN
from dualform.nn.swap import unfuse as unfuse

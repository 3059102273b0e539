"""The paper's language model: an embedding, one LSTM layer, a linear map to the vocabulary.

    model = LanguageModel(vocabulary=107, embedding=64, hidden=1024)
    logits, state = model(tokens)                 # tokens (batch, time), logits (batch, time, vocabulary)

A run names `FACTORY` and the arguments of the model, so that the model can be made again later.
"""

from torch import Tensor, nn

from dualform.nn import LSTM

FACTORY = f"{__name__}:LanguageModel"
LAYER = "lstm.l0"  # the layer that the paper studies: all gates, whose key is [input, previous hidden state]

State = tuple[Tensor, Tensor]


class LanguageModel(nn.Module):
    """Predicts each next token from those before it."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.lstm = LSTM(embedding, hidden, batch_first=True)
        self.decoder = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        hidden, state = self.lstm(self.dropout(self.embedding(tokens)), state)
        return self.decoder(self.dropout(hidden)), state

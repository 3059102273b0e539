"""Modules as Lightning's users write them: the autoencoder of its README, and a GAN with manual optimisation."""

from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dualform

ROWS, WIDTH = 22, 6


class AutoEncoder(L.LightningModule):
    """An encoder and a decoder, called one after the other in `training_step`."""

    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.Adam, **options: Any) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, WIDTH))
        self.optimizer, self.options = optimizer, {"lr": 1e-2, **options}
        self.interrupted_at: int | None = None

    def forward(self, x: Tensor) -> Any:
        return self.encoder(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        if self.interrupted_at == self.global_step:
            raise KeyboardInterrupt
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        with torch.enable_grad():  # as where forces are gradients of energies
            self.log("val_loss", F.mse_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.parameters(), **self.options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class GAN(L.LightningModule):
    """A generator and a discriminator, stepped in turn by optimisers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, WIDTH))
        self.discriminator = nn.Sequential(nn.Linear(WIDTH, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Any:
        return self.discriminator(x if x.shape[1] == WIDTH else self.generator(x))

    def judged(self, x: Tensor, real: bool) -> Tensor:
        verdict = self.discriminator(x)
        return F.binary_cross_entropy_with_logits(verdict, torch.full_like(verdict, float(real)))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        optimizers: Any = self.optimizers()
        optimizer_g, optimizer_d = optimizers
        z = torch.randn(len(x), 4)

        self.toggle_optimizer(optimizer_g)
        optimizer_g.zero_grad()
        self.manual_backward(self.judged(self.generator(z), real=True))
        self.clip_gradients(optimizer_g, gradient_clip_val=0.3, gradient_clip_algorithm="norm")
        optimizer_g.step()
        self.untoggle_optimizer(optimizer_g)

        self.toggle_optimizer(optimizer_d)
        optimizer_d.zero_grad()
        self.manual_backward((self.judged(x, real=True) + self.judged(self.generator(z).detach(), real=False)) / 2)
        optimizer_d.step()
        self.untoggle_optimizer(optimizer_d)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        parts = self.generator, self.discriminator
        return [torch.optim.Adam(part.parameters(), lr=1e-2, betas=(0.5, 0.999)) for part in parts]


def data() -> TensorDataset:
    """Rows that are told apart by their first entry, and labels."""
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(5))
    return TensorDataset(rows, torch.arange(ROWS) % 3)


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(data(), **{"batch_size": 4, "shuffle": True, **options})


def trainer(*callbacks: L.Callback, **options: Any) -> L.Trainer:
    """Return a trainer that shows and logs nothing."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return L.Trainer(callbacks=[*callbacks], **{"enable_checkpointing": False, "max_epochs": 2, **quiet, **options})


def slots_of(memory: dualform.Memory, model: nn.Module, layer: str, query: Tensor) -> Iterator[tuple[float, Any, int]]:
    """Yield the attention weight, the tag `id` and the step of every slot of a layer that sees the model's input."""
    rows = memory.attend(model, query)[layer].top(10_000)
    yield from zip(rows["score"].tolist(), rows["id"].tolist(), rows["step"].tolist(), strict=True)


def assert_keys_are_rows(
    memory: dualform.Memory, model: nn.Module, layer: str = "encoder.0", close: float = 1e-5
) -> list[int]:
    """Compare the key of each slot with the row of the data set that its tag names; return the tags in order."""
    dtype = next(model.parameters()).dtype
    query = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(6)).to(dtype)
    slots = sorted(slots_of(memory, model, layer, query), key=lambda slot: slot[2])
    rows = data().tensors[0].to(dtype)
    for score, row, _ in slots:
        assert abs(score - float(rows[row] @ query[0])) < close
    return [row for _, row, _ in slots]

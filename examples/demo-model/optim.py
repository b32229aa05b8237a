"""Muon for the matrices of the layers, Adam for the rest (embeddings, norms, gates, Engram)."""
import torch

MUON = ("wq_a.weight", "wq_b.weight", "wkv.weight", "wo_b.weight", "wgate.weight", "wo_a",
        "w1.weight", "w3.weight", "w2.weight")
MOMENTUM, BETAS = 0.95, (0.9, 0.95)


def _orthogonal(g):
    """Five Newton-Schulz steps on [..., m, n]: all singular values towards 1."""
    wide = g.shape[-2] > g.shape[-1]
    x = g.transpose(-1, -2) if wide else g
    x = x / (x.flatten(-2).norm(dim=-1)[..., None, None] + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.transpose(-1, -2) if wide else x


def _stacked(name, p, inter):
    """The parameter as a stack of the matrices that are orthogonalised each on its own."""
    if name.endswith(("w1.weight", "w3.weight")):
        return p.unflatten(0, (-1, inter))
    if name.endswith("w2.weight"):
        return p.unflatten(1, (-1, inter)).transpose(0, 1)
    return p if p.dim() == 3 else p[None]


class Optimizer:
    def __init__(self, model, lr_muon, lr_adam):
        self.lr_muon, self.lr_adam, self.step_count = lr_muon, lr_adam, 0
        self.inter = model.c.moe_intermediate_size
        self.muon, self.adam = {}, {}
        for name, p in model.named_parameters():
            engram = name.startswith("engram")
            if name.endswith(MUON) and not engram and "indexer" not in name:
                self.muon[name] = p
            else:
                self.adam[name] = p
        zeros = lambda group: {n: torch.zeros_like(p) for n, p in group.items()}
        self.momentum, self.first, self.second = zeros(self.muon), zeros(self.adam), zeros(self.adam)

    def state(self):
        return {"momentum": self.momentum, "first": self.first, "second": self.second,
                "step": self.step_count}

    def load(self, state):
        for mine, theirs in ((self.momentum, state["momentum"]), (self.first, state["first"]),
                             (self.second, state["second"])):
            for name in mine:
                mine[name].copy_(theirs[name])
        self.step_count = state["step"]

    @torch.no_grad()
    def step(self, factor):
        """One update with both rates times factor; frees the gradients."""
        self.step_count += 1
        shapes = {}
        for name, p in self.muon.items():
            if p.grad is None:
                continue
            m = self.momentum[name].mul_(MOMENTUM).add_(p.grad)
            g = _stacked(name, p.grad + MOMENTUM * m, self.inter)
            shapes.setdefault(g.shape[1:], []).append((name, p, g))
            p.grad = None
        for (rows, columns), group in shapes.items():
            update = _orthogonal(torch.cat([g for _, _, g in group]))
            scale = self.lr_muon * factor * max(1, rows / columns) ** 0.5
            for (name, p, g), u in zip(group, update.split([len(g) for _, _, g in group])):
                _stacked(name, p, self.inter).add_(u, alpha=-scale)
        c1, c2 = 1 - BETAS[0] ** self.step_count, 1 - BETAS[1] ** self.step_count
        for name, p in self.adam.items():
            if p.grad is None:
                continue
            m, v = self.first[name], self.second[name]
            m.mul_(BETAS[0]).add_(p.grad, alpha=1 - BETAS[0])
            v.mul_(BETAS[1]).addcmul_(p.grad, p.grad, value=1 - BETAS[1])
            p.addcdiv_(m / c1, (v / c2).sqrt_().add_(1e-8), value=-self.lr_adam * factor)
            p.grad = None

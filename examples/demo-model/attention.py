"""Sliding window plus compressed rows, one softmax with a sink, one key/value head.

Written as its own autograd function: queries go in blocks, a block sees only the keys that are
visible to any of its queries, and the probabilities are kept for the backward pass. Keys are the
values, so their two gradients are one sum.
"""
import torch

BLOCK = 64
NEVER = -1e30
_masks = {}


def _window_mask(first, end, window):
    """Window keys of the queries first..end-1: their first position, and an additive mask."""
    start = max(0, first - window + 1)
    key = ("window", end - first, first - start, window)
    if key not in _masks:
        q, k = torch.arange(first, end)[:, None], torch.arange(start, end)[None]
        hidden = (k > q) | (k <= q - window)
        _masks[key] = torch.zeros(end - first, end - start).masked_fill_(hidden, NEVER)[:, None]
    return start, _masks[key]


def _row_mask(first, end, ratio, n_rows):
    """Rows visible to some query: their number, how many all queries see, a mask of the rest."""
    low, high = min(n_rows, (first + 1) // ratio), min(n_rows, end // ratio)
    key = ("rows", end - first, first % ratio, ratio, high - low)
    if key not in _masks:
        q, r = torch.arange(first, end)[:, None], torch.arange(low, high)[None]
        hidden = (r + 1) * ratio > q + 1
        _masks[key] = torch.zeros(end - first, high - low).masked_fill_(hidden, NEVER)[:, None]
    return low, high, _masks[key]


def _probabilities(q, keys, sink, n_window, window_mask, low, row_mask, selected):
    """[B, T*H, N] probabilities of the keys and [B, T*H, 1] of the sink."""
    B, T, H, d = q.shape
    scores = torch.bmm(q.reshape(B, T * H, d), keys.transpose(1, 2)).mul_(d**-0.5)
    view = scores.view(B, T, H, -1)
    view[..., :n_window].add_(window_mask)
    if row_mask is not None and row_mask.shape[-1]:
        view[..., n_window + low :].add_(row_mask)
    if selected is not None:
        view[..., n_window:].masked_fill_(~selected[:, :, None], NEVER)
    sinks = sink.detach().repeat(T)[None, :, None]
    top = torch.maximum(scores.amax(2, keepdim=True), sinks)
    scores.sub_(top).clamp_min_(-60.0).exp_()  # far below: exp is slow, and this is as good as 0
    sink_mass = (sinks - top).exp_()
    total = scores.sum(2, keepdim=True).add_(sink_mass)
    return scores.div_(total), sink_mass / total


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, window_keys, rows, sink, ratio, window, selected, mass):
        B, T, H, d = q.shape
        out, blocks = torch.empty_like(q), []
        for first in range(0, T, BLOCK):
            end = min(T, first + BLOCK)
            start, window_mask = _window_mask(first, end, window)
            keys, n_window, low, high, row_mask = window_keys[:, start:end], end - start, 0, 0, None
            if rows is not None:
                low, high, row_mask = _row_mask(first, end, ratio, rows.shape[1])
                keys = torch.cat((keys, rows[:, :high]), 1)
            chosen = None if selected is None else selected[:, first:end, :high]
            p, p_sink = _probabilities(
                q[:, first:end], keys, sink, n_window, window_mask, low, row_mask, chosen
            )
            out[:, first:end] = torch.bmm(p, keys).view(B, end - first, H, d)
            if mass is not None and high:
                mass[:, first:end, :high] += p.view(B, end - first, H, -1)[..., n_window:].sum(2)
            blocks.append((first, end, start, high, p, p_sink, keys))
        ctx.save_for_backward(q, out)
        ctx.blocks, ctx.row_shape = blocks, None if rows is None else rows.shape
        return out

    @staticmethod
    def backward(ctx, grad):
        q, out = ctx.saved_tensors
        B, T, H, d = q.shape
        grad_q, grad_keys = torch.empty_like(q), q.new_zeros(B, T, d)
        grad_rows = None if ctx.row_shape is None else q.new_zeros(ctx.row_shape)
        grad_sink = q.new_zeros(H)
        delta = (grad * out).sum(-1)
        for first, end, start, high, p, p_sink, keys in ctx.blocks:
            n = end - first
            g = grad[:, first:end].reshape(B, n * H, d)
            dl = delta[:, first:end].reshape(B, n * H, 1)
            grad_both = torch.bmm(p.transpose(1, 2), g)
            ds = torch.bmm(g, keys.transpose(1, 2)).sub_(dl).mul_(p).mul_(d**-0.5)
            grad_q[:, first:end] = torch.bmm(ds, keys).view(B, n, H, d)
            grad_both.baddbmm_(ds.transpose(1, 2), q[:, first:end].reshape(B, n * H, d))
            grad_keys[:, start:end] += grad_both[:, : end - start]
            if high:
                grad_rows[:, :high] += grad_both[:, end - start :]
            grad_sink -= (p_sink * dl).view(B, n, H).sum((0, 1))
        ctx.blocks = None
        return grad_q, grad_keys, grad_rows, grad_sink, None, None, None, None


@torch._dynamo.disable
def attend(q, window_keys, rows, sink, ratio, window, selected=None, mass=None):
    """q [B,T,H,d], window_keys [B,T,d], rows [B,N,d] or None, sink [H] -> [B,T,H,d].

    selected [B,T,N] bool restricts the rows. mass [B,T,N], when given, gets the attention that
    the rows received, summed over the heads (for the indexer's training).
    """
    return _Attention.apply(
        q.contiguous(), window_keys, rows, sink, ratio, window, selected, mass
    )

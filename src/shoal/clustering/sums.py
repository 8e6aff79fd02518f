"""Sums whose bits do not depend on the device, the number of threads or the size of a block."""

from torch import Tensor


def halving_sum(terms: Tensor) -> Tensor:
    """Add up the last dimension along a halving tree that only its length shapes; overwrites `terms`.

    Each addition is a separate elementwise one, which IEEE arithmetic rounds the same way everywhere; a call that sums
    would add in an order of its own.
    """
    width = terms.shape[-1]
    while width > 1:
        half = width // 2
        terms[..., :half].add_(terms[..., half : 2 * half])  # += on a slice would also copy it onto itself
        if width % 2:
            terms[..., 0].add_(terms[..., width - 1])
        width = half
    return terms[..., 0]

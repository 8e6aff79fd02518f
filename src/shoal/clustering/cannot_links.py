"""Cannot-links: images that must not be in certain categories leave them for the nearest other one, after the cut.

N images, D columns, K categories.
"""

from collections.abc import Mapping, Set

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.clustering.categories import category_centers


def keep_apart(points: Tensor, categories: Ints, n_categories: int, apart: Mapping[int, Set[int]]) -> Ints:
    """(N,) the categories (N,) of unit rows (N, D), 0 … K-1, with no row in a category that `apart` names for it.

    Such a row goes to the category with the nearest center, as it was before any row left. One that may be in no
    category with images gets the number K, all of these the same one.
    """
    wrong = [row for row, forbidden in sorted(apart.items()) if int(categories[row]) in forbidden]
    if not wrong:
        return categories
    centers = category_centers(points, categories, n_categories)  # (K, D)
    rows = points[torch.tensor(wrong, device=points.device)].to(centers.dtype)  # (M, D)
    cosines = (rows @ centers.T).cpu().numpy()  # (M, K)
    cosines[:, np.bincount(categories, minlength=n_categories) == 0] = -np.inf
    moved = categories.copy()
    for at, row in enumerate(wrong):
        cosines[at, sorted(apart[row])] = -np.inf
        best = int(cosines[at].argmax())
        moved[row] = best if np.isfinite(cosines[at, best]) else n_categories
    return moved

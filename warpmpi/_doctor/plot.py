# SPDX-License-Identifier: BSD-3-Clause
"""A picture of the bandwidth between all pairs of ranks."""

from __future__ import annotations

from .job import Job


def draw(job: Job, path: str) -> None:
    """Draw one square for each kind of memory. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kinds = [
        kind
        for kind in ("host", "gpu")
        if any(row["memory"] == kind for row in job.pairs)
    ]
    if not kinds:
        return
    size = job.size
    side = max(3.0, 0.9 * size)
    figure, every = pyplot.subplots(
        1, len(kinds), figsize=(side * len(kinds) + 1, side), squeeze=False
    )
    for axes, kind in zip(every[0], kinds, strict=True):
        values = [[float("nan")] * size for _ in range(size)]
        for row in job.pairs:
            if row["memory"] == kind:
                values[row["from"]][row["to"]] = row["gbps"]
                if size <= 16:
                    told = f"{row['transport']}\n{row['latency_us']:.1f} us\n"
                    told += f"{row['gbps']:.1f}"
                    place = row["to"], row["from"]
                    axes.text(*place, told, ha="center", va="center", size=7)
        image = axes.imshow(values, cmap="viridis", alpha=0.6, vmin=0)
        figure.colorbar(image, ax=axes, label="GB/s")
        if size <= 16:
            axes.set(xticks=range(size), yticks=range(size))
        axes.set(title=f"{kind} arrays", xlabel="to rank", ylabel="from rank")
    figure.tight_layout()
    figure.savefig(path, dpi=150)

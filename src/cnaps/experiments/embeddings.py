"""What the adaptation networks make of tasks: t-SNE of z_G and of FiLM parameters, coloured by data set."""

from __future__ import annotations

import numpy as np
import torch

from cnaps.experiments.evaluation import TaskSet, ahead, task_arrays
from cnaps.experiments.reporting import COLOURS, MARKERS, Report, Table, new_figure
from cnaps.nn.model import CNAPs
from cnaps.progress import track


@torch.no_grad()
def embeddings_report(model: CNAPs, task_set: TaskSet, *, size: int, seed: int = 0) -> Report:
    """A panel for z_G, for the first and for the last FiLM layer; the silhouette says how far apart they lie."""
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_score
    from sklearn.preprocessing import StandardScaler

    every = [(name, each) for name, tasks in task_set.tasks.items() for each in tasks]
    names = [name for name, _ in every]
    loaded = ahead(lambda pair: task_arrays(task_set.collections[pair[0]], pair[1], size), every)
    vectors: dict[str, list[np.ndarray]] = {"z_G": [], "first FiLM layer": [], "last FiLM layer": []}
    for images, labels in track(loaded, "adapting", total=len(every)):
        adapted = model.adapt(model.preprocess(images), labels)
        vectors["z_G"].append(adapted.task_embedding.numpy())
        vectors["first FiLM layer"].append(torch.cat(adapted.film.stages[0][0]).numpy())
        vectors["last FiLM layer"].append(torch.cat(adapted.film.stages[-1][-1]).numpy())
    figure = new_figure(14, 4.6)
    table = Table("Silhouette by data set (1: apart, 0: mixed), in the original space", ["what", "silhouette"])
    points = {}
    for axes, (what, rows) in zip(figure.subplots(1, 3), vectors.items(), strict=True):
        values = StandardScaler().fit_transform(np.stack(rows))
        perplexity = min(30.0, (len(rows) - 1) / 3)
        placed = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(values)
        table.rows.append([what, round(float(silhouette_score(values, names)), 3)])
        points[what] = [[round(float(x), 3) for x in point] for point in placed]
        for i, name in enumerate(task_set.tasks):
            mine = np.array([other == name for other in names])
            style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
            axes.scatter(*placed[mine].T, s=14, label=name, **style)
        axes.set(title=what, xticks=[], yticks=[])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize="small")
    data = {"data sets": names, "silhouette": {row[0]: row[1] for row in table.rows}, "points": points}
    text = [
        "A dot is a task, its colour the data set; tasks of one data set that lie together get like parameters."
    ]
    return Report("embeddings", "Task embeddings", text, {"embeddings": table}, {"embeddings": figure}, data)

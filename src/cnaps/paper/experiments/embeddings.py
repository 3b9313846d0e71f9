"""What the adaptation networks make of tasks: t-SNE of z_G and of FiLM parameters, coloured by data set."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cnaps.nn.model import CNAPs
from cnaps.paper.experiments.evaluation import TaskSet, task_arrays
from cnaps.paper.experiments.reporting import Report, Table, new_figure, style
from cnaps.parallel import read_ahead
from cnaps.progress import track


@torch.no_grad()
def embed_tasks(model: CNAPs, task_set: TaskSet, *, size: int, seed: int = 0) -> dict[str, Any]:
    """z_G and the first and last FiLM layer of each task in the plane, and silhouettes by data set."""
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_score
    from sklearn.preprocessing import StandardScaler

    every = [(name, each) for name, tasks in task_set.tasks.items() for each in tasks]
    names = [name for name, _ in every]
    loaded = read_ahead(
        lambda pair: task_arrays(task_set.collections[pair[0]], pair[1], size), every, threads=1, depth=2
    )
    vectors: dict[str, list[np.ndarray]] = {"z_G": [], "first FiLM layer": [], "last FiLM layer": []}
    for images, labels in track(loaded, "adapting", total=len(every)):
        adapted = model.adapt(model.preprocess(images), labels)
        vectors["z_G"].append(adapted.task_embedding.numpy())
        vectors["first FiLM layer"].append(torch.cat(adapted.film.stages[0][0]).numpy())
        vectors["last FiLM layer"].append(torch.cat(adapted.film.stages[-1][-1]).numpy())
    silhouettes, points = {}, {}
    for what, rows in vectors.items():
        values = StandardScaler().fit_transform(np.stack(rows))
        placed = TSNE(perplexity=min(30.0, (len(rows) - 1) / 3), init="pca", random_state=seed).fit_transform(
            values
        )
        silhouettes[what] = round(float(silhouette_score(values, names)), 3)
        points[what] = placed.astype(float).round(3).tolist()
    setup = {"model": model.fingerprint(), "protocol": task_set.protocol}
    return {"setup": setup, "data sets": names, "silhouette": silhouettes, "points": points}


def embeddings_report(data: dict[str, Any]) -> Report:
    """A panel for z_G, for the first and for the last FiLM layer; the silhouette says how far apart they lie."""
    names = np.array(data["data sets"])
    figure = new_figure(14, 4.6)
    for axes, (what, points) in zip(figure.subplots(1, 3), data["points"].items(), strict=True):
        for i, name in enumerate(dict.fromkeys(data["data sets"])):
            axes.scatter(*np.array(points)[names == name].T, s=14, label=name, **style(i))
        axes.set(title=what, xticks=[], yticks=[])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize="small")
    caption = "Silhouette by data set (1: apart, 0: mixed), in the original space"
    table = Table(caption, ["what", "silhouette"], list(map(list, data["silhouette"].items())))
    text = [
        "A dot is a task, its colour the data set; tasks of one data set that lie together get like parameters."
    ]
    return Report("embeddings", "Task embeddings", text, {"embeddings": table}, {"embeddings": figure}, data)

"""Write the photographs of the tutorial into the current folder.

`photos/` has 486 photographs and `new/` has 12; `labels.csv` has the labels of 121 of the 486, and
`truth.csv` the categories of all 486.
    python examples/tutorial_photos.py
"""

import csv
import shutil
from pathlib import Path

from shoal.discovery.api import PHOTOS, demo_table

N_NEW = 12


def write_table(file: Path, labels: dict[str, str]) -> None:
    with file.open("w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows([("path", "label"), *labels.items()])


def main() -> None:
    truth = demo_table("truth.csv")
    folders = {"photos": list(truth)[:-N_NEW], "new": list(truth)[-N_NEW:]}
    for folder, names in folders.items():
        Path(folder).mkdir()
        for name in names:
            shutil.copy(PHOTOS / name, folder)
    labels = demo_table("labels.csv")
    for name in folders["new"]:
        labels.pop(name, None)
        del truth[name]
    write_table(Path("labels.csv"), labels)
    write_table(Path("truth.csv"), truth)
    print(f"{len(folders['photos'])} photographs in photos/, {len(labels)} labels in labels.csv")


if __name__ == "__main__":
    main()

"""Teach the shipped model three classes of your own images and label new ones.

python examples/own_images.py

Put your own folders in place of the ones made here: `support` holds one folder per class, `new` the images
to label.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from pathaware import FewShotClassifier
from pathaware.data import open_store

with TemporaryDirectory() as folder:
    # Stand-ins for your images: three characters, two images of each to learn from and two to label.
    support, new = Path(folder) / "support", Path(folder) / "new"
    images = open_store("glyphs").images
    for label in ("alpha", "beta", "gamma"):
        (support / label).mkdir(parents=True)
        (new / label).mkdir(parents=True)
    for number, label in enumerate(("alpha", "beta", "gamma")):
        for i in range(4):
            image = Image.fromarray(255 - images[20 * number + i, 0].numpy())
            image.save((support if i < 2 else new) / label / f"{i}.png")

    paths = sorted(support.glob("*/*.png"))
    classifier = FewShotClassifier.from_run("glyphs")
    classifier.fit(paths, [path.parent.name for path in paths])

    unlabelled = sorted(new.glob("*/*.png"))
    for path, row in zip(unlabelled, classifier.predict_proba(unlabelled), strict=True):
        label, probability = classifier.classes_[row.argmax()], row.max()
        print(f"{path.relative_to(new)}: {label} ({100 * probability:.0f} %)")

"""The model `photos`: meta-train its head on features of EfficientNet-Lite0, ship it, and measure it.

    python -m pathaware_research.studies.photos features IMAGES FEATURES  # minutes on a CPU
    python -m pathaware_research.studies.photos choose FEATURES results/use     # heads on validation sets
    python -m pathaware_research.studies.photos ship IMAGES FEATURES            # into the package
    python -m pathaware_research.studies.photos evaluate FEATURES results/use   # the tables of docs/photos.md
    python -m pathaware_research.studies.photos drawn FEATURES results/use      # by what tasks are drawn from
    python -m pathaware_research.studies.photos time results/use     # CPU seconds per photograph
    python -m pathaware_research.studies.photos reference results/use           # beside another network

IMAGES has a folder per set, and in it one per class; `tasks.py` lists the sets. `features` computes those of
sets that FEATURES does not have yet. The sets in `tasks.TEST` are only read by `evaluate` and `drawn`, which
reads `textures-first` and `waste-first`, too: the first 20 and 40 photographs of each class by name.
"""

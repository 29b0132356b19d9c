"""The model `photos`: meta-train its adaptation, ship it, and measure it beside simple classifiers.

    pathaware pretrain miniimagenet --model resnet12 --width 64,128,256,480 --head cosine --crop 0.35 \
        --cutmix 0.5 --rotation 0.5 --set warmup=1 --set batch=256 --set rate=0.1 --out runs/backbone
    pathaware data import grocery --from FOLDER --proportions 0.01,0,0.99     # 80 of 81 classes are tested
    # of all images, minutes on a GPU
    python -m pathaware_research.studies.photos features runs/backbone runs/features
    python -m pathaware_research.studies.photos choose results/use  # the penalty of logistic regression
    python -m pathaware_research.studies.photos train runs/backbone runs/photos        # minutes on a CPU
    python -m pathaware_research.studies.photos ship runs/photos  # into the package, in half precision
    python -m pathaware_research.studies.photos evaluate results/use  # the tables of docs/photos.md
    # beside models for one size of task
    python -m pathaware_research.studies.photos fixed runs/backbone runs results/use
    python -m pathaware_research.studies.photos calibrate results/use  # temperatures and thresholds, measured
    python -m pathaware_research.studies.photos card results/use  # accuracies in the model's card
    python -m pathaware_research.studies.photos time results/use  # seconds per photograph, on idle cores

All commands but `features`, `ship`, `card` and `time` take `--features runs/features`: float16 arrays
`DATA-plain.npy` and `DATA-mirror.npy` of all images in the order of the store. A few of them are compared
with the backbone's own. Images of another size are scaled to 84 × 84. The images of grocery are those of
Klasson, Zhang and Kjellström (WACV 2019), one folder for each of the 81 classes.
"""

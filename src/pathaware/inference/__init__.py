"""Using trained models: adapt to a few labelled images, then classify, evaluate or export."""
